//! Element-wise tasks that can be part of a chain.

use phalanx_ir::parallel::tile_sites;
use phalanx_ir::tasks::{BufferId, Function, Role, TaskId};
use phalanx_ir::wide::{Operand, WideGraph};
use phalanx_ir::{DType, IdVec};

use crate::HYPER;
use crate::rewrite::Touches;

/// A task that computes one tensor element by element from tensors that are cut as it is, or dually; if it is random, also
/// from the scalars of the training step.
pub struct Link {
    /// The task.
    pub task: TaskId,
    /// What it computes.
    pub function: Function,
    /// From what, by slot, without the scalars.
    pub reads: Vec<BufferId>,
    /// The result, which it alone writes.
    pub write: BufferId,
}

/// All links of a graph, in order.
pub fn links(wide: &WideGraph, touches: &Touches) -> Vec<Link> {
    let hyper = wide.find(HYPER, |role| role == Role::Input);
    wide.tasks.ids().filter_map(|id| link(wide, touches, hyper, id)).collect()
}

fn link(wide: &WideGraph, touches: &Touches, hyper: Option<BufferId>, id: TaskId) -> Option<Link> {
    let task = &wide.tasks[id];
    let function = Function::of(&task.op)?;
    let (operands, scalars) = task.reads.split_at_checked(function.arity())?;
    let [write] = &task.writes[..] else { return None };
    let result = &wide.buffers[write.buffer];
    let own = result.view_of.is_none() && touches.writers[write.buffer] == [id];
    // One task for every tile, where the tile lies: so every link of a tensor can have the tensor's own grid.
    let one_each = task.sites.len() == result.ty.tiles()
        && tile_sites(&result.ty, &write.map, &task.extents, &task.sites) == result.sites;
    let (dual_ty, dual_map) = (result.ty.dual(), write.map.dual());
    let is_alike = |read: &Operand| {
        let ty = &wide.buffers[read.buffer].ty;
        (*ty == result.ty && read.map == write.map) || (*ty == dual_ty && read.map == dual_map)
    };
    // All random links read the same scalars, so that those of a chain do.
    let known = scalars.len() == usize::from(function.is_random())
        && scalars.iter().all(|read| Some(read.buffer) == hyper);
    let fits = own && one_each && known && result.ty.dtype() == DType::F32 && operands.iter().all(is_alike);
    let reads = || operands.iter().map(|read| read.buffer).collect();
    fits.then(|| Link { task: id, function, reads: reads(), write: write.buffer })
}

/// Whether somebody reads the bytes of each buffer after the step, or will when updates are inserted.
pub fn kept(wide: &WideGraph) -> IdVec<BufferId, bool> {
    let mut kept: IdVec<BufferId, bool> =
        wide.buffers.iter().map(|(_, buffer)| buffer.role != Role::Temp).collect();
    let gradients = wide.gradients.iter().map(|&(_, gradient)| gradient);
    let outputs = wide.outputs.iter().map(|&(_, output)| output);
    for buffer in gradients.chain(outputs).chain(wide.loss) {
        kept[wide.root(buffer)] = true;
    }
    kept
}

/// The link that each task is.
pub fn by_task(wide: &WideGraph, links: &[Link]) -> IdVec<TaskId, Option<usize>> {
    let mut by_task: IdVec<TaskId, Option<usize>> = wide.tasks.ids().map(|_| None).collect();
    links.iter().enumerate().for_each(|(index, link)| by_task[link.task] = Some(index));
    by_task
}

/// Bytes of all tiles of a buffer.
pub fn bytes(wide: &WideGraph, buffer: BufferId) -> u64 {
    let ty = &wide.buffers[buffer].ty;
    (ty.tile().bytes() * ty.tiles()) as u64
}
