//! From parallel graph to task graph, one pass a file.
//!
//! | pass | gives |
//! | --- | --- |
//! | `expand-passes` | forward and backward tasks; gradients pruned where no task needs them, fan-out sums explicit |
//! | `insert-loss` | the loss and its gradient of one |
//! | `fuse-loss` | the last linear layer, its cross entropy and the gradient of that as one task |
//! | `fuse-epilogues` | residual adds inside the linear tasks before them |
//! | `fuse-sums` | gradient sums inside the tasks that compute the last addend |
//! | `fuse-elementwise` | chains of element-wise tasks as one task each, gradients of activations inside products |
//! | `insert-updates` | clipping and optimizer tasks |
//! | `insert-copies` | every operand on the devices that read it; chains of movements joined |
//! | `spread-sums` | large sums that several devices need computed in parts, then gathered |
//! | `two-levels` | sums and gathers of devices on several nodes as one inside nodes and one across them |
//! | `expand-shards` | one task for every place of a grid, one buffer for every tile and device |
//! | `fuse-movements` | movements named, small ones in buckets |
//! | `split-movements` | movements as sends and receives |
//!
//! The passes up to `two-levels` work on sharded tasks, those from `expand-shards` on tasks of single tiles. Each takes the
//! graph of the one before and returns a new one.
#![forbid(unsafe_code)]

mod device_classes;
mod expand_passes;
mod expand_shards;
mod frozen;
mod fuse_elementwise;
mod fuse_epilogues;
mod fuse_loss;
mod fuse_movements;
mod fuse_sums;
mod groups;
mod insert_copies;
mod insert_loss;
mod insert_updates;
mod options;
mod rewrite;
mod split_movements;
mod spread_sums;
mod two_levels;

pub use device_classes::DeviceClasses;
pub use expand_passes::mask_salt;
pub use frozen::FrozenParameters;
pub use fuse_movements::movement_kind;
use groups::GroupPatterns;
pub use insert_updates::HYPER;
pub use options::{BucketSizes, Decays, Goal, Leaves, LowerOptions, Optimizer, ParameterGroup, UpdateRule};

use std::collections::HashMap;
use std::fmt::Display;

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::sharded::ShardedGraph;
use phalanx_ir::tasks::TaskGraph;
use phalanx_ir::{Op, OpError, cut_choices, leaves_of};

/// Why a graph cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum LowerError {
    /// The first output is not a loss.
    #[error("`{output}` is {ty}; a trained graph returns a scalar f32[] loss first")]
    NoLoss { output: String, ty: String },
    /// No parameter has a gradient.
    #[error("loss `{output}` depends on no parameter that is trained; add one, or freeze fewer")]
    NothingToTrain { output: String },
    /// A pattern freezes nothing.
    #[error(
        "`{pattern}`, which is to be frozen, matches no parameter of the model; the closest names are {close}"
    )]
    NothingFrozen { pattern: String, close: String },
    /// A set of characters in a pattern is not closed or empty.
    #[error(
        "`{pattern}`, which is to be frozen, is no pattern: close its brackets and put something between them"
    )]
    FrozenPattern { pattern: String },
    /// A group of parameters is empty.
    #[error("the group `{pattern}` matches no parameter of the model; the closest names are {close}")]
    EmptyGroup { pattern: String, close: String },
    /// A set of characters in a pattern is not closed or empty.
    #[error("the group `{pattern}` is no pattern: close its brackets and put something between them")]
    GroupPattern { pattern: String },
    /// A layer breaks its parallel rule.
    #[error("layer `{layer}`: {error}")]
    Rule { layer: String, error: OpError },
    /// A cut that does not follow the leaves of a sum.
    #[error(
        "layer `{layer}` sums over {what} in {leaves} blocks, which the plan cuts {degree} ways: the bits would depend on \
         the plan. {}, or allow other bits with --bits free", remedy(what, *extent, *leaves, *degree)
    )]
    Unaligned {
        layer: String,
        what: String,
        /// How long the summed axis is; 0 if it does not matter.
        extent: usize,
        leaves: usize,
        degree: usize,
    },
    /// A pass broke an invariant: a bug.
    #[error("after {pass}: {error}")]
    Broken { pass: &'static str, error: String },
}

/// The most blocks of a sum that the options allow.
const MOST_LEAVES: usize = 1024;

/// What to do about a cut off the leaves: more of them where that helps, else another number of ways.
fn remedy(what: &str, extent: usize, leaves: usize, degree: usize) -> String {
    let (flag, ways) = match what {
        "the batch" => ("--blocks-batch", "devices along it times --accumulate"),
        "features" => ("--blocks-feature", "devices along them"),
        "time" => ("--blocks-sequence", "devices along it"),
        _ => return "Cut another dimension".into(),
    };
    if degree.is_power_of_two() && leaves_of(extent, MOST_LEAVES) >= degree {
        return format!("Try {flag} {degree}, cut another dimension");
    }
    let choices = cut_choices(extent, leaves);
    format!(
        "Sums are binary trees, so {what} of {extent} can be cut a power of two ways: use {choices} ({ways}), cut another \
         dimension"
    )
}

/// What a pass works on.
pub enum PassRun {
    /// Sharded tasks.
    Sharded(fn(ShardedGraph, &LowerOptions) -> Result<ShardedGraph, LowerError>),
    /// Sharded tasks in, tasks out.
    Expand(fn(&ShardedGraph) -> TaskGraph),
    /// Tasks.
    Tasks(fn(TaskGraph, &LowerOptions) -> TaskGraph),
}

/// A pass by name, for `explain`, `opt` and file tests.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: PassRun,
}

/// The passes after `expand-passes`, in order.
pub const PASSES: &[Pass] = &[
    Pass { name: "insert-loss", run: PassRun::Sharded(insert_loss::insert_loss) },
    Pass { name: "fuse-loss", run: PassRun::Sharded(fuse_loss::fuse_loss) },
    Pass { name: "fuse-epilogues", run: PassRun::Sharded(fuse_epilogues::fuse_epilogues) },
    Pass { name: "fuse-sums", run: PassRun::Sharded(fuse_sums::fuse_sums) },
    Pass { name: "fuse-elementwise", run: PassRun::Sharded(fuse_elementwise::fuse_elementwise) },
    Pass { name: "insert-updates", run: PassRun::Sharded(insert_updates::insert_updates) },
    Pass { name: "insert-copies", run: PassRun::Sharded(insert_copies::insert_copies) },
    Pass { name: "spread-sums", run: PassRun::Sharded(spread_sums::spread_sums) },
    Pass { name: "two-levels", run: PassRun::Sharded(two_levels::two_levels) },
    Pass { name: "expand-shards", run: PassRun::Expand(expand_shards::expand_shards) },
    Pass { name: FUSE_MOVEMENTS, run: PassRun::Tasks(fuse_movements::fuse_movements) },
    Pass { name: "split-movements", run: PassRun::Tasks(split_movements::split_movements) },
];

const FUSE_MOVEMENTS: &str = "fuse-movements";

/// The name of the first pass.
pub const EXPAND_PASSES: &str = "expand-passes";

/// A graph between two passes.
pub enum Stage {
    /// Before `expand-shards`.
    Sharded(ShardedGraph),
    /// From `expand-shards` on.
    Tasks(TaskGraph),
}

impl Stage {
    /// The first pass.
    pub fn start(graph: &ParallelGraph, options: &LowerOptions) -> Result<Stage, LowerError> {
        expand_passes::expand_passes(graph, options).map(Stage::Sharded)
    }

    /// The graph after `pass`; `None` if the pass works on another level.
    pub fn run(self, pass: &Pass, options: &LowerOptions) -> Option<Result<Stage, LowerError>> {
        Some(match (self, &pass.run) {
            (Stage::Sharded(sharded), PassRun::Sharded(run)) => run(sharded, options).map(Stage::Sharded),
            (Stage::Sharded(sharded), PassRun::Expand(run)) => Ok(Stage::Tasks(run(&sharded))),
            (Stage::Tasks(tasks), PassRun::Tasks(run)) => Ok(Stage::Tasks(run(tasks, options))),
            _ => return None,
        })
    }

    /// The graph, to be printed.
    pub fn text(&self) -> &dyn Display {
        match self {
            Stage::Sharded(sharded) => sharded,
            Stage::Tasks(tasks) => tasks,
        }
    }

    /// Checks the graph's invariants.
    pub fn verify(&self, pass: &'static str) -> Result<(), LowerError> {
        let error = match self {
            Stage::Sharded(sharded) => sharded.verify().err().map(|errors| errors[0].to_string()),
            Stage::Tasks(tasks) => return verified(tasks, pass),
        };
        error.map_or(Ok(()), |error| Err(LowerError::Broken { pass, error }))
    }
}

/// Checks that no leaf and no output is a partial sum: the host writes and reads tiles, and adds none.
fn check_host_values(graph: &ParallelGraph) -> Result<(), LowerError> {
    let leaves = graph.leaves(Op::is_source).map(|leaf| (leaf, "leave its sum degree out".to_string()));
    let reduced = |&output: &ValueId| {
        (output, format!("apply reduction degree={} to it", graph.ty(output).sum_degree()))
    };
    for (value, fix) in leaves.chain(graph.outputs().iter().map(reduced)) {
        if graph.ty(value).sum_degree() > 1 {
            let (found, layer) = (graph.ty(value).to_string(), graph.values()[value].name.clone());
            let wanted = "the host writes and reads no partial sums".to_string();
            let error = OpError { slot: "result".into(), found, wanted, fix };
            return Err(LowerError::Rule { layer, error });
        }
    }
    Ok(())
}

/// Runs all passes; `observe` sees the graph after each.
pub fn lower(
    graph: &ParallelGraph,
    options: &LowerOptions,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<TaskGraph, LowerError> {
    let sharded = shard(graph, options, &mut observe)?;
    expand(&sharded, None, options, observe)
}

/// Runs the passes on sharded tasks. Sizes of buckets play no part in them.
pub fn shard(
    graph: &ParallelGraph,
    options: &LowerOptions,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<ShardedGraph, LowerError> {
    check_host_values(graph)?;
    let mut stage = Stage::start(graph, options)?;
    observe(EXPAND_PASSES, stage.text());
    for pass in PASSES.iter().take_while(|pass| matches!(pass.run, PassRun::Sharded(_))) {
        stage = stage.run(pass, options).expect("the passes follow each other")?;
        if cfg!(debug_assertions) && pass.name != "insert-loss" {
            stage.verify(pass.name)?;
        }
        observe(pass.name, stage.text());
    }
    match stage {
        Stage::Sharded(sharded) => Ok(sharded),
        Stage::Tasks(_) => unreachable!("no pass has expanded it"),
    }
}

/// Runs the passes after those: all devices, or one of each class.
pub fn expand(
    sharded: &ShardedGraph,
    classes: Option<&DeviceClasses>,
    options: &LowerOptions,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<TaskGraph, LowerError> {
    let (mut tasks, mut teams) = (TaskGraph::default(), HashMap::new());
    for pass in PASSES {
        tasks = match (&pass.run, classes) {
            (PassRun::Sharded(_), _) => continue,
            (PassRun::Expand(_), Some(classes)) => {
                let expanded = expand_shards::expand_classes(sharded, classes);
                teams = expanded.1;
                expanded.0
            }
            (PassRun::Expand(run), None) => run(sharded),
            (PassRun::Tasks(_), Some(_)) if pass.name == FUSE_MOVEMENTS => {
                fuse_movements::fuse_in_teams(tasks, &teams, options)
            }
            (PassRun::Tasks(run), _) => run(tasks, options),
        };
        if cfg!(debug_assertions) {
            verified(&tasks, pass.name)?;
        }
        observe(pass.name, &tasks);
    }
    verified(&tasks, "lowering")?;
    Ok(tasks)
}

fn verified(tasks: &TaskGraph, pass: &'static str) -> Result<(), LowerError> {
    let error = tasks.verify().err().map(|errors| errors[0].to_string());
    error.map_or(Ok(()), |error| Err(LowerError::Broken { pass, error }))
}
