//! Adds clipping and the optimizer.
//!
//! Needs: gradients of parameters.
//! Gives: for a training goal, the sum of squares of all gradients, the factor that clips them, and one update task a
//! parameter with its state buffers; kept gradients become outputs.

use phalanx_ir::tasks::{Buffer, BufferId, Role, Task, TaskGraph, TaskOp};
use phalanx_ir::{Binary, TensorType, leaves_of};

use crate::expand_passes::keep;
use crate::{Decays, Goal, LowerError, Optimizer, Options, Rule};

/// The name of the input `f32[8]` fed with every step: learning rate, 1 - beta1^t, 1 - beta2^t, step number.
pub const HYPER: &str = "hyper";

/// The name of the output with the gradient norm and the clip factor.
const CLIP: &str = "gradient_norm";

/// Leaves of the gradient norm along each dimension: it is cheap, so it allows the finest plans.
const NORM_LEAVES: usize = 8;

pub fn insert_updates(mut tasks: TaskGraph, options: &Options) -> Result<TaskGraph, LowerError> {
    let kept = match &options.goal {
        Goal::Infer => return Ok(tasks),
        Goal::Gradients => true,
        Goal::Train(optimizer) => optimizer.keep_gradients,
    };
    let gradients = tasks.gradients.clone();
    if kept {
        for &(param, gradient) in &gradients {
            let name = format!("{}.grad", tasks.buffers[param].name);
            keep(&mut tasks, name, gradient);
        }
    }
    if let Goal::Train(optimizer) = &options.goal {
        let mut updates = Updates { microbatch: last_microbatch(&tasks), tasks: &mut tasks, optimizer };
        let clip = optimizer.clip.map(|max_norm| updates.clip(&gradients, max_norm));
        gradients.iter().for_each(|&(param, gradient)| updates.update(param, gradient, clip));
    }
    Ok(tasks)
}

fn last_microbatch(tasks: &TaskGraph) -> u32 {
    tasks.tasks.iter().map(|(_, task)| task.microbatch).max().unwrap_or(0)
}

struct Updates<'a> {
    tasks: &'a mut TaskGraph,
    optimizer: &'a Optimizer,
    microbatch: u32,
}

impl Updates<'_> {
    fn buffer(&mut self, like: BufferId, name: &str, ty: TensorType, role: Role) -> BufferId {
        let device = self.tasks.buffers[like].device;
        self.tasks.buffers.push(Buffer { name: name.to_string(), ty, device, role, view_of: None })
    }

    fn emit(&mut self, layer: &str, op: TaskOp, reads: &[BufferId], writes: &[BufferId]) {
        let (device, microbatch) = (self.tasks.buffers[writes[0]].device, self.microbatch);
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.tasks.tasks.push(Task { op, reads, writes, device, layer: layer.to_string(), microbatch });
    }

    /// The gradient norm over all parameters, summed in their order, and the factor that clips it.
    fn clip(&mut self, gradients: &[(BufferId, BufferId)], max_norm: f32) -> BufferId {
        let mut total = None;
        for &(param, gradient) in gradients {
            let name = self.tasks.buffers[param].name.clone();
            let shape = self.tasks.buffers[gradient].ty.shape.clone();
            let squares = self.buffer(gradient, &format!("{name}.squares"), TensorType::f32([1]), Role::Temp);
            let op = TaskOp::SumSquares {
                row_leaves: leaves_of(shape.rows(), NORM_LEAVES),
                col_leaves: leaves_of(shape.last(), NORM_LEAVES),
            };
            self.emit(&name, op, &[gradient], &[squares]);
            total = Some(match total {
                None => squares,
                Some(before) => {
                    let sum = self.buffer(gradient, "squares", TensorType::f32([1]), Role::Temp);
                    self.emit(&name, TaskOp::Binary { kind: Binary::Add }, &[before, squares], &[sum]);
                    sum
                }
            });
        }
        let total = total.expect("a trained graph has a parameter with a gradient");
        let clip = self.buffer(total, CLIP, TensorType::f32([2]), Role::Temp);
        keep(self.tasks, CLIP.to_string(), clip);
        self.emit(CLIP, TaskOp::ClipScale { max_norm }, &[total], &[clip]);
        clip
    }

    fn update(&mut self, param: BufferId, gradient: BufferId, clip: Option<BufferId>) {
        let Buffer { name, ty, .. } = self.tasks.buffers[param].clone();
        let decay = match self.optimizer.decays {
            Decays::Matrices if ty.shape.rank() < 2 => 0.0,
            _ => self.optimizer.decay,
        };
        let hyper = match self.tasks.find(HYPER, |role| role == Role::Input) {
            Some(hyper) => hyper,
            None => self.buffer(param, HYPER, TensorType::f32([8]), Role::Input),
        };
        let reads: Vec<_> = [gradient, hyper].into_iter().chain(clip).collect();
        let clip = clip.is_some();
        let (op, states): (_, &[&str]) = match self.optimizer.rule {
            Rule::Adam { beta1, beta2, eps, decoupled } => {
                (TaskOp::AdamW { beta1, beta2, eps, decay, decoupled, clip }, &["m", "v"])
            }
            Rule::Sgd { momentum, nesterov } => {
                let states: &[&str] = if momentum > 0.0 { &["velocity"] } else { &[] };
                (TaskOp::Sgd { momentum, decay, nesterov, clip }, states)
            }
        };
        let mut writes = vec![param];
        for state in states {
            writes.push(self.buffer(param, &format!("{name}.{state}"), ty.clone(), Role::State));
        }
        self.emit(&name, op, &reads, &writes);
    }
}
