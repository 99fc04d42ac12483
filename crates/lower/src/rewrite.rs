//! What rewriting passes need: the tasks that touch a buffer, and a graph without buffers that no task
//! mentions.

use phalanx_ir::sharded::{ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, TaskId};
use phalanx_ir::{Id, IdVec};

/// For every buffer that owns bytes, the tasks that read and write them, in order.
pub struct Touches {
    pub readers: IdVec<BufferId, Vec<TaskId>>,
    pub writers: IdVec<BufferId, Vec<TaskId>>,
}

impl Touches {
    pub fn of(sharded: &ShardedGraph) -> Touches {
        let empty = || sharded.buffers.ids().map(|_| Vec::new()).collect();
        let mut touches = Touches { readers: empty(), writers: empty() };
        for (id, task) in sharded.tasks.iter() {
            task.read_buffers().for_each(|buffer| touches.readers[sharded.root(buffer)].push(id));
            task.written_buffers().for_each(|buffer| touches.writers[sharded.root(buffer)].push(id));
        }
        touches
    }
}

/// The same graph with these tasks and without buffers that nothing mentions.
pub fn rebuild(graph: &ShardedGraph, tasks: Vec<ShardedTask>) -> ShardedGraph {
    let mut used = vec![false; graph.buffers.len()];
    let mut mark = |buffer: BufferId| {
        let mut next = Some(buffer);
        while let Some(buffer) = next {
            used[buffer.index()] = true;
            next = graph.buffers[buffer].view_of;
        }
    };
    tasks.iter().flat_map(|task| task.read_buffers().chain(task.written_buffers())).for_each(&mut mark);
    graph.gradients.iter().for_each(|&(param, gradient)| [param, gradient].into_iter().for_each(&mut mark));
    graph.outputs.iter().for_each(|&(_, output)| mark(output));
    graph.loss.iter().for_each(|&loss| mark(loss));
    let kept = graph.buffers.iter().filter(|(_, buffer)| buffer.role.is_kept()).map(|(id, _)| id);
    kept.for_each(&mut mark);

    let mut new = ShardedGraph { name: graph.name.clone(), ..ShardedGraph::default() };
    let mut renamed: Vec<Option<BufferId>> = vec![None; graph.buffers.len()];
    let rename = |renamed: &[Option<BufferId>], buffer: BufferId| {
        renamed[buffer.index()].expect("every mentioned buffer is kept")
    };
    for (id, buffer) in graph.buffers.iter().filter(|(id, _)| used[id.index()]) {
        let mut buffer = buffer.clone();
        buffer.view_of = buffer.view_of.map(|of| rename(&renamed, of));
        renamed[id.index()] = Some(new.buffers.push(buffer));
    }
    for mut task in tasks {
        let operands = task.reads.iter_mut().chain(&mut task.writes);
        operands.for_each(|operand| operand.buffer = rename(&renamed, operand.buffer));
        new.tasks.push(task);
    }
    let pair = |&(a, b): &(BufferId, BufferId)| (rename(&renamed, a), rename(&renamed, b));
    new.gradients = graph.gradients.iter().map(pair).collect();
    let output = |(name, buffer): &(String, BufferId)| (name.clone(), rename(&renamed, *buffer));
    new.outputs = graph.outputs.iter().map(output).collect();
    new.loss = graph.loss.map(|loss| rename(&renamed, loss));
    new
}
