//! Element-wise tasks that can be part of a chain.

use phalanx_ir::parallel::tile_groups;
use phalanx_ir::sharded::{Operand, ShardedGraph};
use phalanx_ir::tasks::{BufferId, Function, Role, TaskId};
use phalanx_ir::{DType, IdVec};

use crate::HYPER;
use crate::rewrite::Touches;

/// A task that computes one tensor element by element from tensors that are cut as it is, or dually; if it is random, also
/// from the scalars of the training step.
pub struct ChainLink {
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
pub fn links(sharded: &ShardedGraph, touches: &Touches) -> Vec<ChainLink> {
    let hyper = sharded.find(HYPER, |role| role == Role::Input);
    sharded.tasks.ids().filter_map(|id| link(sharded, touches, hyper, id)).collect()
}

fn link(sharded: &ShardedGraph, touches: &Touches, hyper: Option<BufferId>, id: TaskId) -> Option<ChainLink> {
    let task = &sharded.tasks[id];
    let function = Function::of(&task.op)?;
    let (operands, scalars) = task.reads.split_at_checked(function.arity())?;
    let [write] = &task.writes[..] else { return None };
    let result = &sharded.buffers[write.buffer];
    let own = result.view_of.is_none() && touches.writers[write.buffer] == [id];
    // One task for every tile, where the tile lies: so every link of a tensor can have the tensor's own grid.
    let one_each = task.groups.len() == result.ty.tiles()
        && tile_groups(&result.ty, &write.map, &task.extents, &task.groups) == result.groups;
    let (dual_ty, dual_map) = (result.ty.dual(), write.map.dual());
    let is_alike = |read: &Operand| {
        let ty = &sharded.buffers[read.buffer].ty;
        (*ty == result.ty && read.map == write.map) || (*ty == dual_ty && read.map == dual_map)
    };
    // All random links read the same scalars, so that those of a chain do.
    let known = scalars.len() == usize::from(function.is_random())
        && scalars.iter().all(|read| Some(read.buffer) == hyper);
    let fits = own && one_each && known && result.ty.dtype() == DType::F32 && operands.iter().all(is_alike);
    let reads = || operands.iter().map(|read| read.buffer).collect();
    fits.then(|| ChainLink { task: id, function, reads: reads(), write: write.buffer })
}

/// Whether the host reads the bytes of each buffer after the step, or will when updates are inserted.
pub fn kept(sharded: &ShardedGraph) -> IdVec<BufferId, bool> {
    let mut kept: IdVec<BufferId, bool> =
        sharded.buffers.iter().map(|(_, buffer)| buffer.role != Role::Temp).collect();
    let gradients = sharded.gradients.iter().map(|&(_, gradient)| gradient);
    let outputs = sharded.outputs.iter().map(|&(_, output)| output);
    for buffer in gradients.chain(outputs).chain(sharded.loss) {
        kept[sharded.root(buffer)] = true;
    }
    kept
}

/// The link that each task is.
pub fn by_task(sharded: &ShardedGraph, links: &[ChainLink]) -> IdVec<TaskId, Option<usize>> {
    let mut by_task: IdVec<TaskId, Option<usize>> = sharded.tasks.ids().map(|_| None).collect();
    links.iter().enumerate().for_each(|(index, link)| by_task[link.task] = Some(index));
    by_task
}

/// Bytes of all tiles of a buffer.
pub fn bytes(sharded: &ShardedGraph, buffer: BufferId) -> u64 {
    let ty = &sharded.buffers[buffer].ty;
    (ty.tile().bytes() * ty.tiles()) as u64
}
