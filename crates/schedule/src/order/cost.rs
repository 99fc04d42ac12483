//! How long a task takes, roughly. Only the order of tasks on several devices depends on it, never a result.

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId, TaskOp};

/// One unit is the time to read or write one byte: about a tenth of a nanosecond for one core.
const START: u64 = 4096;
/// Floating-point operations a core does in one unit: it is built for about sixteen per byte it can load.
const OPERATIONS: f64 = 16.0;

/// The estimate. Sending only marks bytes as ready, so it is free.
pub(crate) fn cost(tasks: &TaskGraph, task: TaskId) -> u64 {
    let task = &tasks.tasks[task];
    if let TaskOp::Send { .. } = task.op {
        return 0;
    }
    let bytes = |&buffer: &BufferId| tasks.buffers[buffer].ty.bytes() as u64;
    let touched: u64 = task.reads.iter().chain(&task.writes).map(bytes).sum();
    let first = task.reads.first().zip(task.reads.get(1)).zip(task.writes.first());
    let operations = match (&task.op, first) {
        (
            TaskOp::Linear { .. } | TaskOp::LinearGradInput { .. } | TaskOp::LinearGradWeight { .. },
            Some(((&a, &b), &c)),
        ) => product(tasks, [a, b, c], 1.0),
        (TaskOp::Matmul { .. }, Some(((&a, &b), &c))) => product(tasks, [a, b, c], batch(tasks, c)),
        (TaskOp::Attention { .. }, _) => 4.0 * attention(tasks, task.writes.first()),
        (TaskOp::AttentionGrad { .. }, _) => 10.0 * attention(tasks, task.reads.last()),
        _ => 0.0,
    };
    START + touched + (operations / OPERATIONS) as u64
}

fn elements(tasks: &TaskGraph, buffer: BufferId) -> f64 {
    tasks.buffers[buffer].ty.shape.elements() as f64
}

/// The operations of a matrix product, whichever operands are transposed: the root of m·k × k·n × m·n is m·k·n.
fn product(tasks: &TaskGraph, operands: [BufferId; 3], batch: f64) -> f64 {
    let sizes = operands.map(|buffer| elements(tasks, buffer) / batch);
    2.0 * batch * (sizes[0] * sizes[1] * sizes[2]).sqrt()
}

/// How many matrices a batched product has.
fn batch(tasks: &TaskGraph, result: BufferId) -> f64 {
    let dims = tasks.buffers[result].ty.shape.dims();
    dims[..dims.len().saturating_sub(2)].iter().product::<usize>().max(1) as f64
}

/// Elements of the result times the positions each of them attends to.
fn attention(tasks: &TaskGraph, result: Option<&BufferId>) -> f64 {
    result.map_or(0.0, |&buffer| {
        let context = tasks.buffers[buffer].ty.shape.dims().get(1).copied().unwrap_or(1);
        elements(tasks, buffer) * context as f64
    })
}
