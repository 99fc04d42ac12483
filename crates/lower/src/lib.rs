//! From parallel graph to task graph, one pass a file.
//!
//! | pass | gives |
//! | --- | --- |
//! | `expand-passes` | forward and backward tasks; gradients pruned where nobody needs them, fan-out sums explicit |
//! | `insert-loss` | the loss and its gradient of one |
//! | `fuse-epilogues` | residual adds inside the linear tasks before them |
//! | `fuse-sums` | gradient sums inside the tasks that compute the last addend |
//! | `insert-updates` | clipping and optimizer tasks |
//!
//! Each pass takes the task graph of the one before and returns a new one.
#![forbid(unsafe_code)]

mod expand_passes;
mod fuse_epilogues;
mod fuse_sums;
mod insert_loss;
mod insert_updates;
mod rewrite;

pub use insert_updates::HYPER;

use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::tasks::{TaskError, TaskGraph};

/// What the step is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// The model's outputs.
    Infer,
    /// The model's outputs and the gradients of its first one, kept for the host.
    Gradients,
    /// The loss, and parameters updated by it.
    Train(Optimizer),
}

/// How parameters follow their gradients. The learning rate is fed with every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Weight decay.
    pub decay: f32,
    /// Which parameters decay.
    pub decays: Decays,
    /// The largest gradient norm let through; `None` for no clipping.
    pub clip: Option<f32>,
    /// Gradients stay readable after the step.
    pub keep_gradients: bool,
}

/// The usual optimizers, with no decay and no clipping; fields can be set afterwards.
impl Optimizer {
    /// An optimizer with this rule.
    pub fn new(rule: Rule) -> Self {
        Optimizer { rule, decay: 0.0, decays: Decays::All, clip: None, keep_gradients: false }
    }

    /// Stochastic gradient descent with momentum.
    pub fn sgd(momentum: f32) -> Self {
        Optimizer::new(Rule::Sgd { momentum, nesterov: false })
    }

    /// Adam with the usual constants.
    pub fn adam() -> Self {
        Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false })
    }

    /// AdamW with the usual constants and this weight decay.
    pub fn adamw(decay: f32) -> Self {
        let rule = Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true };
        Optimizer { decay, ..Optimizer::new(rule) }
    }
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decays {
    /// All of them.
    All,
    /// Those with two dimensions or more: no biases, no norm weights.
    Matrices,
}

/// An update rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// Decay of the velocity; zero for none.
        momentum: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// Adam; `decoupled` makes it AdamW.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
        /// Weight decay acts on the parameter, not on the gradient.
        decoupled: bool,
    },
}

/// Leaves of the sums that a plan may split, by class of axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Sums over rows: weight and bias gradients, losses.
    pub batch: usize,
    /// Sums over features: matrix products.
    pub feature: usize,
}

/// Everything the passes need to know besides the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the step is for.
    pub goal: Goal,
    /// How sums are cut.
    pub leaves: Leaves,
    /// Seed of dropout.
    pub seed: u64,
}

/// Why a graph cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The first output is not a loss.
    #[error("`{output}` is {ty}; a trained graph returns a scalar f32[] loss first")]
    NoLoss {
        /// The first output.
        output: String,
        /// Its type.
        ty: String,
    },
    /// No parameter has a gradient.
    #[error("loss `{output}` depends on no parameter; nothing can be trained")]
    NothingToTrain {
        /// The loss.
        output: String,
    },
    /// A tensor is tiled.
    #[error("`{value}` is {ty}; only whole tensors can be lowered")]
    Tiled {
        /// The value.
        value: String,
        /// Its tiling.
        ty: String,
    },
    /// A pass broke an invariant: a bug.
    #[error("after {pass}: {error}")]
    Broken {
        /// The pass.
        pass: &'static str,
        /// The first broken invariant.
        error: TaskError,
    },
}

/// A pass by name, for `explain` and file tests.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: fn(TaskGraph, &Options) -> Result<TaskGraph, LowerError>,
}

/// The passes after `expand-passes`, in order.
pub const PASSES: &[Pass] = &[
    Pass { name: "insert-loss", run: insert_loss::insert_loss },
    Pass { name: "fuse-epilogues", run: fuse_epilogues::fuse_epilogues },
    Pass { name: "fuse-sums", run: fuse_sums::fuse_sums },
    Pass { name: "insert-updates", run: insert_updates::insert_updates },
];

/// The name of the first pass.
pub const EXPAND_PASSES: &str = "expand-passes";

/// Runs all passes; `observe` sees the graph after each.
pub fn lower(
    graph: &ParallelGraph,
    options: &Options,
    mut observe: impl FnMut(&'static str, &TaskGraph),
) -> Result<TaskGraph, LowerError> {
    let mut tasks = expand_passes::expand_passes(graph, options)?;
    observe(EXPAND_PASSES, &tasks);
    for pass in PASSES {
        tasks = (pass.run)(tasks, options)?;
        if cfg!(debug_assertions) {
            check(&tasks, pass.name)?;
        }
        observe(pass.name, &tasks);
    }
    check(&tasks, "lowering")?;
    Ok(tasks)
}

fn check(tasks: &TaskGraph, pass: &'static str) -> Result<(), LowerError> {
    tasks.verify().map_err(|mut errors| LowerError::Broken { pass, error: errors.swap_remove(0) })
}
