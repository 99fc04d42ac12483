//! Lets the task that computes the last addend of a gradient sum add it in place.
//!
//! Needs: a verified task graph.
//! Gives: the same values, with no `add(a, b)` where b is computed only for it by a task that can accumulate, and a is
//! a temporary that nobody reads after that task starts; neither is a parameter's gradient itself. The bits stay: the task computes a + b.

use phalanx_ir::tasks::{BufferId, Role, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Binary, Id};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, Options};

pub fn fuse_sums(mut tasks: TaskGraph, _options: &Options) -> Result<TaskGraph, LowerError> {
    // Each fusion changes who reads and writes what, so the next one is looked for in the result.
    let mut from = 0;
    while let Some((position, fused)) = fuse_next(&tasks, from) {
        (from, tasks) = (position, fused);
    }
    Ok(tasks)
}

fn fuse_next(tasks: &TaskGraph, from: usize) -> Option<(usize, TaskGraph)> {
    let touches = Touches::of(tasks);
    let fused = |id: TaskId| Some((id.index(), fuse(tasks, &touches, id)?));
    tasks.tasks.ids().skip(from).find_map(fused)
}

fn fuse(tasks: &TaskGraph, touches: &Touches, id: TaskId) -> Option<TaskGraph> {
    let add = &tasks.tasks[id];
    let &[a, b] = &add.reads[..] else { return None };
    let sum = add.writes[0];
    let same = [a, b].iter().all(|&buffer| tasks.buffers[buffer].ty == tasks.buffers[sum].ty);
    if add.op != (TaskOp::Binary { kind: Binary::Add }) || !same {
        return None;
    }
    if [a, b].iter().any(|&addend| is_gradient(tasks, addend)) {
        return None;
    }
    let producer = sole_producer(tasks, touches, b, id)?;
    let op = tasks.tasks[producer].op.clone().accumulating()?;
    let whole = tasks.tasks[producer].writes[0] == b && tasks.tasks[producer].op.accumulates() == Some(false);
    if !whole || !free_at(tasks, touches, a, producer, id) {
        return None;
    }
    let mut list: Vec<Task> = tasks.tasks.iter().map(|(_, task)| task.clone()).collect();
    list[producer.index()].op = op;
    list[producer.index()].writes[0] = a;
    list.remove(id.index());
    Some(rename(tasks, list, sum, a))
}

/// Whether the bytes of `buffer` are the gradient of a parameter, which updates will read.
fn is_gradient(tasks: &TaskGraph, buffer: BufferId) -> bool {
    tasks.gradients.iter().any(|&(_, gradient)| tasks.root(gradient) == tasks.root(buffer))
}

/// The task that writes `buffer`, if it is a temporary that only `reader` reads.
fn sole_producer(tasks: &TaskGraph, touches: &Touches, buffer: BufferId, reader: TaskId) -> Option<TaskId> {
    let root = tasks.root(buffer);
    let alone = touches.readers[root] == [reader] && tasks.buffers[root].role == Role::Temp;
    match touches.writers[root][..] {
        [producer] if alone => Some(producer),
        _ => None,
    }
}

/// Whether `buffer` is a temporary, complete before `task`, and read from `task` on only by `reader`.
fn free_at(tasks: &TaskGraph, touches: &Touches, buffer: BufferId, task: TaskId, reader: TaskId) -> bool {
    let root = tasks.root(buffer);
    let readers = &touches.readers[root];
    tasks.buffers[root].role == Role::Temp
        && touches.writers[root].iter().all(|&writer| writer < task)
        && readers.iter().all(|&other| other < task || other == reader)
        && !tasks.tasks[task].reads.iter().any(|&read| tasks.root(read) == root)
}

/// The graph with these tasks, `to` standing for `from`.
fn rename(tasks: &TaskGraph, mut list: Vec<Task>, from: BufferId, to: BufferId) -> TaskGraph {
    let mut graph = tasks.clone();
    let swap = |buffer: &mut BufferId| {
        if *buffer == from {
            *buffer = to;
        }
    };
    for task in &mut list {
        task.reads.iter_mut().chain(&mut task.writes).for_each(swap);
    }
    graph.gradients.iter_mut().for_each(|(_, gradient)| swap(gradient));
    graph.outputs.iter_mut().for_each(|(_, output)| swap(output));
    for id in graph.buffers.ids() {
        if graph.buffers[id].view_of == Some(from) {
            graph.buffers[id].view_of = Some(to);
        }
    }
    rebuild(&graph, list)
}
