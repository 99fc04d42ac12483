//! The order in which tasks run: earliest microbatch first, then as the task graph lists them.
//!
//! With several microbatches this finishes the backward tasks of one before the next one's forward tasks begin, so
//! only one microbatch's activations are alive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::Id;
use phalanx_ir::tasks::{TaskGraph, TaskId};

pub fn order(tasks: &TaskGraph) -> Vec<TaskId> {
    let predecessors = tasks.predecessors();
    let mut waiting: Vec<usize> = predecessors.iter().map(|(_, before)| before.len()).collect();
    let mut successors = vec![Vec::new(); tasks.tasks.len()];
    for (id, before) in predecessors.iter() {
        before.iter().for_each(|other| successors[other.index()].push(id));
    }
    let priority = |id: TaskId| Reverse((tasks.tasks[id].microbatch, id));
    let free = tasks.tasks.ids().filter(|id| waiting[id.index()] == 0);
    let mut ready: BinaryHeap<_> = free.map(priority).collect();
    let mut order = Vec::with_capacity(tasks.tasks.len());
    while let Some(Reverse((_, id))) = ready.pop() {
        order.push(id);
        for &next in &successors[id.index()] {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(priority(next));
            }
        }
    }
    order
}
