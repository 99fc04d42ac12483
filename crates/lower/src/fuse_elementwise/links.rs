//! Element-wise tasks that can be part of a chain.

use phalanx_ir::parallel::tile_sites;
use phalanx_ir::tasks::{BufferId, Function, Role, TaskId};
use phalanx_ir::wide::{Operand, WideGraph};
use phalanx_ir::{DType, IdVec};

use crate::rewrite::Touches;

/// A task that computes one tensor element by element from tensors that are cut as it is, or dually.
pub struct Link {
    /// The task.
    pub task: TaskId,
    /// What it computes.
    pub function: Function,
    /// From what, by slot.
    pub reads: Vec<BufferId>,
    /// The result, which it alone writes.
    pub write: BufferId,
}

/// All links of a graph, in order.
pub fn links(wide: &WideGraph, touches: &Touches) -> Vec<Link> {
    wide.tasks.ids().filter_map(|id| link(wide, touches, id)).collect()
}

fn link(wide: &WideGraph, touches: &Touches, id: TaskId) -> Option<Link> {
    let task = &wide.tasks[id];
    let function = Function::of(&task.op)?;
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
    let fits = own && one_each && result.ty.dtype() == DType::F32 && task.reads.iter().all(is_alike);
    fits.then(|| Link { task: id, function, reads: task.read_buffers().collect(), write: write.buffer })
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
