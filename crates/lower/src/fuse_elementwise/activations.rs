//! Releases activations from linear tasks and convolutions where only links read them: these compute them from the value before, which is
//! saved for the backward pass anyway. So the activation itself is never written.

use phalanx_ir::parallel::TileMap;
use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, EpilogueFlags, TaskId, TaskOp};
use phalanx_ir::{Activation, IdVec, Unary};

use super::links::{ChainLink, by_task, kept, links};
use crate::rewrite::{Touches, rebuild};

/// The graph with an activation of its own before every reader of a released one.
pub fn release(sharded: &ShardedGraph) -> ShardedGraph {
    let touches = Touches::of(sharded);
    let links = links(sharded, &touches);
    let scene =
        Scene { sharded, links: &links, by_task: by_task(sharded, &links), kept: kept(sharded), touches };
    let mut released: IdVec<BufferId, Option<Released>> = sharded.buffers.ids().map(|_| None).collect();
    let (mut graph, mut list) = (sharded.clone(), Vec::new());
    for (id, task) in sharded.tasks.iter() {
        let mut task = task.clone();
        if let Some(activation) = scene.released(id) {
            let (y, before) = (task.writes[0].buffer, task.writes.remove(1));
            task.writes[0] = before.clone();
            let bare = EpilogueFlags { activation: Activation::None, residual: false, save_pre: false };
            task.op.set_epilogue(bare);
            released[y] = Some(Released { activation, before: before.buffer });
        }
        for y in sharded.tasks[id].read_buffers() {
            let Some(Released { activation, before }) = released[y] else { continue };
            if !task.read_buffers().any(|read| read == y) {
                continue;
            }
            let own = graph.buffers.push(sharded.buffers[y].clone());
            list.push(activate(sharded, &task, activation, [before, y], own));
            task.reads.iter_mut().filter(|read| read.buffer == y).for_each(|read| read.buffer = own);
        }
        list.push(task);
    }
    rebuild(&graph, list)
}

/// What a released activation is computed from.
#[derive(Clone, Copy)]
struct Released {
    activation: Activation,
    before: BufferId,
}

struct Scene<'a> {
    sharded: &'a ShardedGraph,
    touches: Touches,
    links: &'a [ChainLink],
    by_task: IdVec<TaskId, Option<usize>>,
    kept: IdVec<BufferId, bool>,
}

impl Scene<'_> {
    /// The activation of a product that saves the value before it, if only links cut like it read it.
    fn released(&self, id: TaskId) -> Option<Activation> {
        let task = &self.sharded.tasks[id];
        let flags = task.op.epilogue().filter(|flags| flags.save_pre && !flags.residual)?;
        let [y, before] = [0, 1].map(|slot| &self.sharded.buffers[task.writes[slot].buffer]);
        let (buffer, readers) = (task.writes[0].buffer, &self.touches.readers[task.writes[0].buffer]);
        let own = y.view_of.is_none() && !self.kept[buffer] && self.touches.writers[buffer] == [id];
        let alike = (&y.ty, &y.groups) == (&before.ty, &before.groups);
        let is_link = |reader: &TaskId| {
            self.by_task[*reader].is_some_and(|link| {
                let ChainLink { reads, write, .. } = &self.links[link];
                let result = &self.sharded.buffers[*write];
                reads.contains(&buffer) && (&result.ty, &result.groups) == (&y.ty, &y.groups)
            })
        };
        (own && alike && !readers.is_empty() && readers.iter().all(is_link)).then_some(flags.activation)
    }
}

/// The task that computes `own`, a copy of the released `y`, just before its `reader`.
fn activate(
    sharded: &ShardedGraph,
    reader: &ShardedTask,
    activation: Activation,
    [before, y]: [BufferId; 2],
    own: BufferId,
) -> ShardedTask {
    let (extents, map) = sharded.buffers[y].ty.grid();
    let operand = |buffer: BufferId, map: &TileMap| Operand { buffer, map: map.clone() };
    ShardedTask {
        op: TaskOp::Unary { kind: Unary::Act(activation) },
        reads: vec![operand(before, &map)],
        writes: vec![operand(own, &map)],
        extents,
        groups: sharded.buffers[y].groups.clone(),
        layer: reader.layer.clone(),
        microbatch: reader.microbatch,
    }
}
