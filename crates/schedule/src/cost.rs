//! How long tasks take. Only their order depends on it, never a result.

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};
use phalanx_link::{Part, Topology};

/// What a step's tasks take, in nanoseconds, and what the bytes that change devices travel on.
#[derive(Clone, Debug)]
pub struct TaskCosts {
    /// The work of each task on its device; of a `receive`, copying and adding what has arrived.
    pub tasks: IdVec<TaskId, u64>,
    /// How devices are connected; none if they share memory, so that bytes are there at once.
    pub topology: Option<Topology>,
}

impl TaskCosts {
    /// Estimates from operators and sizes alone.
    pub fn modelled(tasks: &TaskGraph, topology: Option<Topology>) -> TaskCosts {
        TaskCosts { tasks: tasks.tasks.ids().map(|task| modelled(tasks, task)).collect(), topology }
    }
}

/// What every `receive` brings from which device.
pub(crate) struct Parts {
    starts: Vec<u32>,
    parts: Vec<Part>,
}

impl Parts {
    /// The parts; none where devices share memory.
    pub fn new(tasks: &TaskGraph, topology: Option<&Topology>) -> Parts {
        let device = |buffer: BufferId| tasks.buffers[buffer].device.index() as u32;
        let mut parts = Parts { starts: vec![0], parts: Vec::new() };
        for (_, task) in tasks.tasks.iter() {
            if topology.is_some() && matches!(task.op, TaskOp::Receive { .. }) {
                let sources = tasks.sources(&task.reads);
                for &write in &task.writes {
                    let element = tasks.buffers[write].ty.dtype.bytes() as u64;
                    for piece in sources.pieces(write).into_iter().flatten() {
                        let bytes = piece.rect.volume() as u64 * element;
                        let part = |&source: &BufferId| {
                            let over = device(tasks.image(source));
                            Part { from: device(source), over, bytes }
                        };
                        parts.parts.extend(piece.sources.iter().map(part));
                    }
                }
                parts.join();
            }
            parts.starts.push(parts.parts.len() as u32);
        }
        parts
    }

    /// Makes one part for each device of those of the last task.
    fn join(&mut self) {
        let first = self.starts.last().map_or(0, |&start| start as usize);
        let mut last = self.parts.split_off(first);
        last.sort_unstable_by_key(|part| part.from);
        for part in last {
            match self.parts[first..].last_mut().filter(|before| before.from == part.from) {
                Some(before) => before.bytes += part.bytes,
                None => self.parts.push(part),
            }
        }
    }

    /// What a task brings, by device ascending.
    pub fn of(&self, task: TaskId) -> &[Part] {
        &self.parts[self.starts[task.index()] as usize..self.starts[task.index() + 1] as usize]
    }
}

/// Reading or writing a byte takes about a tenth of a nanosecond; the estimate is made in such units.
const UNITS: u64 = 10;
/// Starting a task.
const START: u64 = 4096;
/// Floating-point operations a core does in one unit: it is built for about sixteen per byte it can load.
const OPERATIONS: f64 = 16.0;

/// The estimate for a task, in nanoseconds. Sending only marks bytes as ready, so it is free.
pub fn modelled(tasks: &TaskGraph, id: TaskId) -> u64 {
    let task = &tasks.tasks[id];
    if let TaskOp::Send { .. } = task.op {
        return 0;
    }
    let bytes = |&buffer: &BufferId| tasks.buffers[buffer].ty.bytes() as u64;
    let touched: u64 = task.reads.iter().chain(&task.writes).map(bytes).sum();
    (START + touched + (operations(tasks, id) / OPERATIONS) as u64) / UNITS
}

/// Floating-point operations of a task that multiplies matrices or attends; 0 for others.
pub fn operations(tasks: &TaskGraph, id: TaskId) -> f64 {
    let task = &tasks.tasks[id];
    let first = task.reads.first().zip(task.reads.get(1)).zip(task.writes.first());
    match (&task.op, first) {
        (
            TaskOp::Linear { .. }
            | TaskOp::LinearGradInput { .. }
            | TaskOp::LinearGradWeight { .. }
            | TaskOp::LinearCrossEntropy { .. },
            Some(((&a, &b), &c)),
        ) => product(tasks, [a, b, c], 1.0),
        (TaskOp::Conv { .. } | TaskOp::ConvGradInput { .. }, Some(((&a, &w), &c))) => {
            convolution(tasks, w, [a, c])
        }
        (TaskOp::ConvGradWeight { .. }, Some(((&a, &b), &w))) => convolution(tasks, w, [a, b]),
        (TaskOp::Matmul { .. }, Some(((&a, &b), &c))) => product(tasks, [a, b, c], batch(tasks, c)),
        (TaskOp::Call { kernel: "attention", .. }, _) => 4.0 * attention(tasks, task.writes.first()),
        (TaskOp::Call { kernel: "attention_grad", .. }, _) => 10.0 * attention(tasks, task.reads.last()),
        _ => 0.0,
    }
}

fn elements(tasks: &TaskGraph, buffer: BufferId) -> f64 {
    tasks.buffers[buffer].ty.shape.elements() as f64
}

/// The operations of a matrix product, whichever operands are transposed: the root of m·k × k·n × m·n is m·k·n.
fn product(tasks: &TaskGraph, operands: [BufferId; 3], batch: f64) -> f64 {
    let sizes = operands.map(|buffer| elements(tasks, buffer) / batch);
    2.0 * batch * (sizes[0] * sizes[1] * sizes[2]).sqrt()
}

/// The operations of a convolution with this weight between two tensors: the one with windows has the fewer elements of space,
/// and each of those meets every element of the weight once.
fn convolution(tasks: &TaskGraph, weight: BufferId, ends: [BufferId; 2]) -> f64 {
    let positions = |buffer: BufferId| {
        let shape = &tasks.buffers[buffer].ty.shape;
        elements(tasks, buffer) / shape.dims().last().copied().unwrap_or(1) as f64
    };
    2.0 * elements(tasks, weight) * ends.map(positions).into_iter().fold(f64::INFINITY, f64::min)
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
