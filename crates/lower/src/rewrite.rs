//! What fusing passes share: who reads and writes a buffer, and dropping buffers that nobody touches any more.

use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

/// Readers and writers of every buffer's bytes, in task order.
pub struct Touches {
    /// Tasks that read the bytes.
    pub readers: IdVec<BufferId, Vec<TaskId>>,
    /// Tasks that write them.
    pub writers: IdVec<BufferId, Vec<TaskId>>,
}

impl Touches {
    /// Collects them.
    pub fn of(tasks: &TaskGraph) -> Touches {
        let empty = || tasks.buffers.ids().map(|_| Vec::new()).collect::<IdVec<BufferId, Vec<TaskId>>>();
        let mut touches = Touches { readers: empty(), writers: empty() };
        for (id, task) in tasks.tasks.iter() {
            task.reads.iter().for_each(|&buffer| touches.readers[tasks.root(buffer)].push(id));
            task.writes.iter().for_each(|&buffer| touches.writers[tasks.root(buffer)].push(id));
        }
        touches
    }
}

/// The same graph with these tasks and without buffers that nothing mentions.
pub fn rebuild(graph: &TaskGraph, tasks: Vec<Task>) -> TaskGraph {
    let mut used = vec![false; graph.buffers.len()];
    let mut mark = |buffer: BufferId| {
        let mut next = Some(buffer);
        while let Some(buffer) = next {
            used[buffer.index()] = true;
            next = graph.buffers[buffer].view_of;
        }
    };
    tasks.iter().flat_map(|task| task.reads.iter().chain(&task.writes)).for_each(|&buffer| mark(buffer));
    graph.gradients.iter().for_each(|&(param, gradient)| [param, gradient].into_iter().for_each(&mut mark));
    graph.outputs.iter().for_each(|&(_, output)| mark(output));
    graph.loss.iter().for_each(|&loss| mark(loss));
    let kept = graph.buffers.iter().filter(|(_, buffer)| buffer.role.is_kept()).map(|(id, _)| id);
    kept.for_each(&mut mark);

    let mut new = TaskGraph { name: graph.name.clone(), ..TaskGraph::default() };
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
        let buffers = task.reads.iter_mut().chain(&mut task.writes);
        buffers.for_each(|buffer| *buffer = rename(&renamed, *buffer));
        new.tasks.push(task);
    }
    let pair = |&(a, b): &(BufferId, BufferId)| (rename(&renamed, a), rename(&renamed, b));
    new.gradients = graph.gradients.iter().map(pair).collect();
    let output = |(name, buffer): &(String, BufferId)| (name.clone(), rename(&renamed, *buffer));
    new.outputs = graph.outputs.iter().map(output).collect();
    new.loss = graph.loss.map(|loss| rename(&renamed, loss));
    new
}
