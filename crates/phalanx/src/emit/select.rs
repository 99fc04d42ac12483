//! Which kernel a task becomes, and with which parameters. The kernel's own file says how they come from the task.

use std::borrow::Cow;

use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId, TaskOp, TaskView};
use phalanx_kernels::table;
use phalanx_program::{MAX_SLICES, RECEIVE};

use super::EmitError;

/// A kernel, its parameter words, and the buffers it works on in the order in which it takes them.
pub struct Choice<'a> {
    pub kernel: &'static str,
    pub words: Vec<u64>,
    pub reads: Cow<'a, [BufferId]>,
    pub writes: Cow<'a, [BufferId]>,
}

impl<'a> Choice<'a> {
    /// A movement of the task's buffers, which the runtime executes.
    pub fn movement(task: &'a Task, words: Vec<u64>) -> Choice<'a> {
        Choice { kernel: RECEIVE, words, reads: (&task.reads).into(), writes: (&task.writes).into() }
    }
}

/// The kernel of a task. Movements have none.
pub fn select(tasks: &TaskGraph, id: TaskId) -> Result<Choice<'_>, EmitError> {
    let task = &tasks.tasks[id];
    if let TaskOp::Move { .. } | TaskOp::Send { .. } | TaskOp::Receive { .. } = task.op {
        return Ok(Choice::movement(task, Vec::new()));
    }
    let found = task.reads.len().max(task.writes.len());
    if found > MAX_SLICES {
        return Err(EmitError::TooMany { layer: task.layer.to_string(), found });
    }
    let (operator, view) = (task.op.name(), TaskView::new(tasks, task));
    let wrong = |reason: String| EmitError::Task { layer: task.layer.to_string(), operator, reason };
    let kernel = table::for_task(operator).ok_or_else(|| wrong("there is no such kernel".into()))?;
    let words = (kernel.task)(&view).map_err(wrong)?;
    let slots = (kernel.arguments)(&words);
    let sides = [("reads", &slots.reads, &task.reads), ("writes", &slots.writes, &task.writes)];
    for (does, slots, buffers) in sides {
        if slots.len() != buffers.len() {
            let list = if slots.is_empty() { "nothing".into() } else { format!("`{}`", slots.join("`, `")) };
            return Err(wrong(format!("it {does} {list}, but its task has {} buffers", buffers.len())));
        }
    }
    let mut reads = Cow::from(&task.reads);
    if (kernel.swaps)(&view) {
        reads.to_mut().swap(0, 1);
    }
    Ok(Choice { kernel: kernel.name, words, reads, writes: (&task.writes).into() })
}

#[cfg(test)]
mod tests;
