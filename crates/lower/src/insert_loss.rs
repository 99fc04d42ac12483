//! Starts the backward tasks.
//!
//! Needs: a task graph whose loss gradient is read, or is a parameter's gradient, but not written.
//! Gives: the same with a first task that writes one into it.

use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskOp};

use crate::{LowerError, Options};

pub fn insert_loss(mut tasks: TaskGraph, _options: &Options) -> Result<TaskGraph, LowerError> {
    let Some(loss) = tasks.loss else { return Ok(tasks) };
    if let Some(seed) = unwritten(&tasks) {
        let device = tasks.buffers[seed].device;
        let layer = tasks.buffers[loss].name.clone();
        let op = TaskOp::Fill { value: 1.0 };
        let task = Task { op, reads: Vec::new(), writes: vec![seed], device, layer, microbatch: 0 };
        tasks.tasks = std::iter::once(task).chain(tasks.tasks.iter().map(|(_, task)| task.clone())).collect();
    }
    Ok(tasks)
}

/// The first temporary that is read, by a task or as a gradient, before anything writes it.
fn unwritten(tasks: &TaskGraph) -> Option<BufferId> {
    let mut written: Vec<bool> = tasks.buffers.iter().map(|(_, buffer)| buffer.role.is_fed()).collect();
    for (_, task) in tasks.tasks.iter() {
        let index = |buffer| phalanx_ir::Id::index(tasks.root(buffer));
        if let Some(&seed) = task.reads.iter().find(|&&buffer| !written[index(buffer)]) {
            return Some(tasks.root(seed));
        }
        task.writes.iter().for_each(|&buffer| written[index(buffer)] = true);
    }
    let roots = tasks.gradients.iter().map(|&(_, gradient)| tasks.root(gradient));
    roots.into_iter().find(|&root| !written[phalanx_ir::Id::index(root)])
}
