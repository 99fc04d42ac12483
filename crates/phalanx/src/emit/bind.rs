//! Which buffer of a task goes into which slot of its kernel: the one that has the slot's name.

use std::borrow::Cow;

use phalanx_ir::Names;
use phalanx_ir::tasks::{BufferId, Task, TaskOp};
use phalanx_kernels::table;

use super::select::Choice;
use super::{EmitError, Mismatch};

/// The names of the task's buffers, one for each.
pub fn named(task: &Task) -> Result<Names, EmitError> {
    let names = task.names();
    let sides = [("reads", &names.reads, &task.reads), ("writes", &names.writes, &task.writes)];
    let wrong = sides.into_iter().find(|(_, names, buffers)| names.len() != buffers.len());
    let error = wrong.map(|(does, names, buffers)| EmitError::Operands {
        layer: task.layer.to_string(),
        operator: task.op.to_text().0,
        does,
        expected: names[..].into(),
        found: buffers.len(),
    });
    error.map_or(Ok(names), Err)
}

/// The kernel with these words on the buffers of `task`, which have these names, each in the slot of its name.
pub fn bind<'a>(
    task: &'a Task,
    mut names: Names,
    kernel: &'static str,
    words: Vec<u64>,
) -> Result<Choice<'a>, EmitError> {
    let slots = (table::find(kernel).expect("a selected kernel is in the table").arguments)(&words);
    let roles = roles(&task.op);
    for name in names.reads.iter_mut().chain(&mut names.writes) {
        let role = roles.iter().find(|(operand, _)| operand == name);
        *name = role.map_or(*name, |&(_, slot)| slot);
    }
    let side = |does, buffers, names: &[&'static str], slots: &[&'static str]| {
        in_slots(buffers, names, slots).map_err(|mismatch| EmitError::Binding {
            layer: task.layer.to_string(),
            kernel,
            does,
            mismatch,
            expected: slots.into(),
            found: names.into(),
        })
    };
    let reads = side("reads", &task.reads[..], &names.reads, &slots.reads)?;
    let writes = side("writes", &task.writes, &names.writes, &slots.writes)?;
    Ok(Choice { kernel, words, reads, writes })
}

/// What the operands of a matrix task are in the product that computes it; all others go by their own names.
fn roles(op: &TaskOp) -> &'static [(&'static str, &'static str)] {
    match op {
        TaskOp::Linear { .. } => &[("x", "a"), ("weight", "b"), ("y", "out")],
        TaskOp::LinearGradInput { .. } => &[("dy", "a"), ("weight", "b"), ("dx", "out")],
        TaskOp::LinearGradWeight { transposed: false, .. } => &[("dy", "a"), ("x", "b"), ("dweight", "out")],
        TaskOp::LinearGradWeight { transposed: true, .. } => &[("x", "a"), ("dy", "b"), ("dweight", "out")],
        TaskOp::Matmul { .. } => &[("y", "out")],
        _ => &[],
    }
}

/// The buffers, one for each of these names, in the order of the slots.
fn in_slots<'a>(
    buffers: &'a [BufferId],
    names: &[&'static str],
    slots: &[&'static str],
) -> Result<Cow<'a, [BufferId]>, Mismatch> {
    for list in [names, slots] {
        let twice = list.iter().enumerate().find(|(at, name)| list[..*at].contains(name));
        twice.map_or(Ok(()), |(_, name)| Err(Mismatch::Twice(name)))?;
    }
    if names == slots {
        return Ok(Cow::Borrowed(buffers));
    }
    let unknown = names.iter().find(|name| !slots.contains(name));
    unknown.map_or(Ok(()), |name| Err(Mismatch::Unknown(name)))?;
    let buffer = |&slot| match names.iter().position(|&name| name == slot) {
        Some(at) => Ok(buffers[at]),
        None => Err(Mismatch::Missing(slot)),
    };
    slots.iter().map(buffer).collect()
}

#[cfg(test)]
mod tests;
