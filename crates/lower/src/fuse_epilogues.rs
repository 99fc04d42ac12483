//! Adds residuals inside the linear tasks whose result they are added to.
//!
//! Needs: a verified task graph.
//! Gives: the same values, with no `add` of a linear result that nobody else reads and a tensor of the same shape
//! that exists before it. Bits stay: the sum of two numbers does not depend on their order.

use phalanx_ir::tasks::{BufferId, Role, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Activation, Binary};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, Options};

pub fn fuse_epilogues(tasks: TaskGraph, _options: &Options) -> Result<TaskGraph, LowerError> {
    let touches = Touches::of(&tasks);
    let mut list: Vec<Option<Task>> = tasks.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for (id, task) in tasks.tasks.iter() {
        let Some((linear, residual)) = residual_of(&tasks, &touches, id) else { continue };
        let position = phalanx_ir::Id::index(linear);
        let Some(Task { op: TaskOp::Linear { residual: flag, .. }, reads, writes, .. }) = &mut list[position]
        else {
            continue;
        };
        if *flag {
            continue;
        }
        *flag = true;
        reads.push(residual);
        writes[0] = task.writes[0];
        list[phalanx_ir::Id::index(id)] = None;
    }
    Ok(rebuild(&tasks, list.into_iter().flatten().collect()))
}

/// The linear task and the residual that the add `id` joins, if they can become one task.
fn residual_of(tasks: &TaskGraph, touches: &Touches, id: TaskId) -> Option<(TaskId, BufferId)> {
    let add = &tasks.tasks[id];
    if add.op != (TaskOp::Binary { kind: Binary::Add }) {
        return None;
    }
    let shape = &tasks.buffers[add.writes[0]].ty;
    let candidate = |product: BufferId, residual: BufferId| {
        let root = tasks.root(product);
        let [linear] = touches.writers[root][..] else { return None };
        let plain = matches!(
            tasks.tasks[linear].op,
            TaskOp::Linear { activation: Activation::None, residual: false, .. }
        );
        let alone = touches.readers[root].len() == 1 && tasks.buffers[root].role == Role::Temp;
        // In another shape the rows of the sum would not be those of the product.
        let whole = tasks.tasks[linear].writes[0] == product;
        let same = tasks.buffers[product].ty == *shape && tasks.buffers[residual].ty == *shape;
        let exists = written_before(tasks, touches, residual, linear);
        (plain && alone && whole && same && exists && tasks.root(residual) != root)
            .then_some((linear, residual))
    };
    candidate(add.reads[1], add.reads[0]).or_else(|| candidate(add.reads[0], add.reads[1]))
}

/// Whether `buffer` holds its final value before `task` runs.
fn written_before(tasks: &TaskGraph, touches: &Touches, buffer: BufferId, task: TaskId) -> bool {
    let root = tasks.root(buffer);
    let fed = tasks.buffers[root].role.is_fed();
    let writers = &touches.writers[root];
    (fed || !writers.is_empty()) && writers.iter().all(|&writer| writer < task)
}
