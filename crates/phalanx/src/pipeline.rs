//! The compiler, read top to bottom: model → parallel graph → task graph → schedule → program.
//!
//! Each arrow is a pure function; each level is verified before the next one is made, the program when it is frozen. The
//! same model and settings give the same program, byte for byte.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_ir::graph::{Graph, VerifyError};
use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::sharded::ShardedGraph;
use phalanx_ir::tasks::TaskGraph;
use phalanx_ir::{Id, Precision};
use phalanx_link::{Link, Topology};
use phalanx_lower::{
    BucketSizes, DeviceClasses, Goal, Leaves, LowerError, LowerOptions, expand, lower, shard,
};
use phalanx_plan::{MOST_DEVICES, Plan, PlanError, parallelize};
use phalanx_program::{Placement, Program};
use phalanx_runtime::ExecutionMode;
use phalanx_schedule::overlap::{self, Limits, ScheduleChoice, ScheduleTotals, Search};
use phalanx_schedule::recompute::{self, Peak, Recompute};
use phalanx_schedule::{Schedule, ScheduleError, ScheduledLane, Style, TaskCosts, schedule_in};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::Pin;
use crate::classes;
use crate::costs::{self, CostTable, DeviceModel};
use crate::device::Check;
pub use crate::emit::EmitError;
use crate::emit::{Machine, emit, workspaces};
use crate::layout::Layout;
use crate::memory::{OverBudget, Snapshots};
use crate::setters::with_setters;

with_setters! {
    /// Everything besides the model that a program depends on. Fields are also set by the methods of the same names.
    ///
    /// ```
    /// use phalanx::{Goal, Optimizer, Plan, Settings};
    ///
    /// let settings = Settings::new(Goal::Train(Optimizer::adamw(0.1))).cores(1).seed(7);
    /// assert_eq!((settings.cores, settings.plan), (1, Plan::default()));
    /// ```
    #[derive(Clone, Debug, PartialEq)]
    pub struct Settings {
        /// What the step is for.
        pub goal: Goal,
        /// How the model is laid out.
        pub plan: Plan,
        /// Into how many reduction blocks sums that a plan may split are cut.
        pub leaves: Leaves,
        /// What matrix products are computed in.
        pub precision: Precision,
        /// Seed of dropout.
        pub seed: u64,
        /// Cores of each device.
        pub cores: usize,
        /// Whether each core's thread stays on it.
        pub pin: Pin,
        /// Which process has which device.
        pub placement: Placement,
        /// Whether plans may cut a sum inside of its reduction blocks; the bits then depend on the plan.
        pub free_bits: bool,
        /// How runs are executed: the same bits, for comparison and debugging.
        pub execution: ExecutionMode,
        /// What connects devices and holds their transfers back; none: they share memory.
        pub topology: Option<Topology>,
        /// By device: how fast it computes, for predictions; all as fast as kernel times say if there are none.
        pub speeds: Vec<f64>,
        /// Whether transfers run beside computing.
        pub overlap: Overlap,
        /// The most bytes a device may need; none for any number.
        pub memory: Option<u64>,
        /// Whether a copy of weights and optimizer state is kept beside them, which takes of the `memory`.
        pub snapshot: bool,
        /// Which activations are computed again instead of kept.
        pub recompute: Recompute,
        /// Whether tasks are joined.
        pub fusion: Fusion,
        /// Measured times of kernels; none: they are estimated.
        pub cost_table: Option<Arc<CostTable>>,
        /// A device that is not there, in predictions: kernel times and sizes of elements.
        pub device_model: Option<Arc<DeviceModel>>,
        /// What is checked while it runs.
        pub check: Check,
        /// How often the program will be run, so that looking for a better schedule takes no longer than it can save; none: it
        /// is looked for with all effort.
        pub runs: Option<u64>,
    }
}

/// Whether what a device receives has a lane of its own, so that it computes meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// If there is a link or another process. Else a transfer is a copy, which takes the same cores as computing.
    #[default]
    Auto,
    /// Yes, wherever that is expected to be faster.
    On,
    /// No.
    Off,
}

/// Whether tasks are joined: element-wise ones with each other and with the products before them, the last linear layer with
/// its loss. The bits do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Wherever that spares bytes.
    #[default]
    Auto,
    /// No.
    Off,
}

impl Settings {
    /// Defaults for a goal: one device with all cores of this machine, the whole batch at once.
    pub fn new(goal: Goal) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            goal,
            plan: Plan::default(),
            leaves: DEFAULT_LEAVES,
            precision: Precision::F32,
            seed: 0,
            cores,
            pin: Pin::Auto,
            placement: Placement::alone(),
            free_bits: false,
            execution: ExecutionMode::Replay,
            topology: None,
            speeds: Vec::new(),
            overlap: Overlap::Auto,
            memory: None,
            snapshot: false,
            recompute: Recompute::Auto,
            fusion: Fusion::Auto,
            cost_table: None,
            device_model: None,
            check: Check::None,
            runs: Some(DEFAULT_RUNS),
        }
    }
}

impl Settings {
    /// What tasks and transfers are taken to cost.
    pub fn costs(&self, tasks: &TaskGraph) -> TaskCosts {
        let topology = self.expected_topology();
        let mut costs = match (&self.device_model, &self.cost_table) {
            (Some(model), _) => TaskCosts { tasks: model.costs(tasks), topology },
            (None, Some(cost_table)) => {
                TaskCosts { tasks: cost_table.costs(tasks, self.cores).into_tasks(), topology }
            }
            (None, None) => TaskCosts::modelled(tasks, topology),
        };
        for (id, task) in tasks.tasks.iter() {
            if let Some(&speed) = self.speeds.get(task.device.index()).filter(|speed| **speed != 1.0) {
                costs.tasks[id] = (costs.tasks[id] as f64 / speed) as u64;
            }
        }
        costs
    }

    /// Takes times from the file `path`, after measuring what it lacks of `model`; `progress` is told how many kernels
    /// are done, of how many, and which is next.
    pub fn measure(
        &mut self,
        model: &Graph,
        path: &Path,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<(), Error> {
        let mut cost_table = self.measured(model, Some(path), progress)?;
        cost_table.save()?;
        self.cost_table = Some(Arc::new(cost_table));
        Ok(())
    }

    /// The same times, which are not kept; all are measured if there is no file.
    pub(crate) fn measured(
        &self,
        model: &Graph,
        path: Option<&Path>,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<CostTable, Error> {
        let mut cost_table = match path {
            Some(path) => CostTable::load(path)?,
            None => CostTable::new(costs::Machine::this()),
        };
        let tasks = lower_plainly(model, self)?;
        cost_table.measure(&tasks, self.cores, progress)?;
        Ok(cost_table)
    }

    /// Whether times of kernels are of use: to schedule transfers, or to tell what a step with a link will take.
    pub fn needs_costs(&self) -> bool {
        self.overlaps() || self.topology.is_some()
    }

    /// The topology that transfers are scheduled for: the one they are held back to, else what ranks can expect of each
    /// other.
    pub fn expected_topology(&self) -> Option<Topology> {
        let ranks = || self.placement.is_split().then(|| BETWEEN_RANKS.into());
        self.topology.clone().or_else(ranks)
    }

    /// What the program is made for.
    pub(crate) fn machine(&self) -> Machine<'_> {
        Machine { cores: self.cores, placement: &self.placement }
    }

    /// Whether transfers may run beside computing.
    pub fn overlaps(&self) -> bool {
        match self.overlap {
            Overlap::Auto => self.topology.is_some() || self.placement.is_split(),
            Overlap::On => true,
            Overlap::Off => false,
        }
    }
}

/// The most devices of a program: each has threads and memory of its own.
pub(crate) const MOST_RUN: usize = 4096;

/// How often a program is taken to be run if nothing is said.
const DEFAULT_RUNS: u64 = 1000;

/// The leaves of sums unless a model says otherwise: enough for eight devices along any axis. Over rows they cost less than
/// a percent of a step, since each is long. Over features a leaf ends after a few dozen elements, but those of a block are
/// added in the first-level cache. Over time only sums of vectors are cut, which take little of a step.
pub const DEFAULT_LEAVES: Leaves = Leaves { batch: 8, feature: 8, sequence: 8 };

/// The stages whose result can be printed, in order.
pub fn stages() -> Vec<&'static str> {
    let passes = phalanx_lower::PASSES.iter().map(|pass| pass.name);
    let before = ["build", "parallelize", phalanx_lower::EXPAND_PASSES];
    before.into_iter().chain(passes).chain(["recompute", "schedule", "emit"]).collect()
}

/// Compiles a model.
pub fn compile(model: &Graph, settings: &Settings) -> Result<Program, CompileError> {
    compile_observed(model, settings, |_, _| ())
}

/// Compiles a model; `observe` is shown the result of every stage.
pub fn compile_observed(
    model: &Graph,
    settings: &Settings,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<Program, CompileError> {
    let program = freeze(&lay_out(model, settings, &mut observe)?, settings)?;
    observe("emit", &program);
    Ok(program)
}

/// The program of a model that is laid out.
pub fn freeze(layout: &Layout, settings: &Settings) -> Result<Program, CompileError> {
    Ok(emit(&layout.tasks, &layout.schedule, settings.machine())?)
}

/// Compiles a model up to its schedule; `observe` is shown the result of every stage.
pub fn lay_out(
    model: &Graph,
    settings: &Settings,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<Layout, CompileError> {
    let devices = settings.plan.mesh.devices();
    if devices > MOST_RUN {
        return Err(CompileError::TooManyDevices { devices });
    }
    model.verify().map_err(CompileError::Graph)?;
    observe("build", model);

    let parallel = parallelize(model, &settings.plan)?;
    parallel.verify().map_err(CompileError::Graph)?;
    observe("parallelize", &parallel);

    schedule_lowered(parallel, settings, observe)
}

/// What [`lay_out`] gives for one device of each class, in a time that does not grow with the number of devices. It can be
/// looked at and simulated; no program comes of it. It may need more memory than the settings allow.
pub fn lay_out_classes(model: &Graph, settings: &Settings) -> Result<Layout, CompileError> {
    model.verify().map_err(CompileError::Graph)?;
    let parallel = parallelize(model, &settings.plan)?;
    parallel.verify().map_err(CompileError::Graph)?;
    let classes_of = |sharded: &ShardedGraph| Some(DeviceClasses::of(sharded, &classes::mesh(settings)));
    let Sharded { sharded, classes, options } = best_sharding(&parallel, settings, classes_of, None)?;
    let settings = &match &classes {
        Some(classes) => classes::settings(settings, classes),
        None => settings.clone(),
    };
    let mut tasks = expand(&sharded, classes.as_ref(), &options, |_, _| ())?;
    drop(sharded);
    if let Some(model) = &settings.device_model {
        model.resize(&mut tasks);
    }
    let tasks = recomputed(tasks, settings);
    Ok(Layout { classes, ..schedule_tasks(parallel, tasks, settings)? })
}

/// Compiles a model already on devices; `settings.plan` plays no part.
pub fn compile_parallel(parallel: &ParallelGraph, settings: &Settings) -> Result<Program, CompileError> {
    parallel.verify().map_err(CompileError::Graph)?;
    let Layout { tasks, schedule, .. } = schedule_lowered(parallel.clone(), settings, |_, _| ())?;
    Ok(emit(&tasks, &schedule, settings.machine())?)
}

/// The second half of [`lay_out`], from a verified parallel graph on.
fn schedule_lowered(
    parallel: ParallelGraph,
    settings: &Settings,
    mut observe: impl FnMut(&'static str, &dyn Display),
) -> Result<Layout, CompileError> {
    let Sharded { sharded, options, .. } = best_sharding(&parallel, settings, |_| None, Some(&mut observe))?;
    let tasks = expand(&sharded, None, &options, &mut observe)?;
    drop(sharded);
    let snapshots = Snapshots::new(&tasks, settings.snapshot);
    let memory = settings.memory.map(|budget| budget.saturating_sub(snapshots.largest()));
    let beside = &Settings { memory, ..settings.clone() };
    let tasks = recomputed(tasks, beside);
    observe("recompute", &tasks);
    let layout = schedule_tasks(parallel, tasks, beside)?;
    observe("schedule", &layout.schedule);
    OverBudget::check(&layout.tasks, &layout.schedule, settings.memory, &snapshots, || {
        smaller_schedules(&layout.tasks, beside)
    })?;
    Ok(layout)
}

/// Options that may make the arenas of a step smaller, and the schedules that come of them.
fn smaller_schedules(tasks: &TaskGraph, settings: &Settings) -> Vec<(&'static str, Schedule)> {
    let mut all = Vec::new();
    if settings.overlaps() {
        all.push(("--overlap off", plain_schedule(tasks, settings)));
    }
    // Otherwise all has been computed again that helps.
    if settings.recompute == Recompute::None {
        let recomputed = recompute::apply(tasks, &recompute::full(tasks));
        all.push(("--recompute full", plain_schedule(&recomputed, settings)));
    }
    all
}

/// The tasks with activations computed again, as the settings want it.
fn recomputed(tasks: TaskGraph, settings: &Settings) -> TaskGraph {
    let full = |tasks: &TaskGraph| recompute::apply(tasks, &recompute::full(tasks));
    match (settings.recompute, settings.memory) {
        (Recompute::Full, _) => full(&tasks),
        (Recompute::Auto, Some(budget)) => {
            let costs = settings.costs(&tasks);
            let mut peaks = |tasks: &TaskGraph| {
                let schedule = match settings.overlaps() {
                    true => choose(tasks, settings).into_chosen().schedule,
                    false => plain_schedule(tasks, settings),
                };
                let peak = |lane: &ScheduledLane| Peak { device: lane.device, bytes: lane.peak, budget };
                schedule.devices().iter().map(peak).collect()
            };
            let fitted = recompute::auto(&tasks, &|task| costs.tasks[task], &mut peaks);
            // What does not fit at best is told with the tensors to blame.
            fitted.map_or_else(|_| full(&tasks), |fitted| fitted.graph)
        }
        (Recompute::Auto | Recompute::None, _) => tasks,
    }
}

/// Schedules the tasks that `parallel` was lowered to.
pub fn schedule_tasks(
    parallel: ParallelGraph,
    tasks: TaskGraph,
    settings: &Settings,
) -> Result<Layout, CompileError> {
    let choice = settings.overlaps().then(|| Box::new(choose(&tasks, settings)));
    let schedule = match &choice {
        Some(choice) => choice.chosen().schedule.clone(),
        None => plain_schedule(&tasks, settings),
    };
    schedule.verify(&tasks).map_err(CompileError::Schedule)?;
    Ok(Layout { parallel, tasks, schedule, choice, classes: None })
}

/// The schedule in which every device does one thing at a time.
fn plain_schedule(tasks: &TaskGraph, settings: &Settings) -> Schedule {
    let workspaces = workspaces(tasks, settings.machine());
    schedule_in(tasks, &settings.costs(tasks), Style::default(), |task| workspaces[task])
}

/// The best schedule of a task graph, and the one without overlap.
pub fn choose(tasks: &TaskGraph, settings: &Settings) -> ScheduleChoice {
    choose_with(tasks, settings, settings.runs.map_or(Search::Full, |runs| Search::For { runs }))
}

fn choose_with(tasks: &TaskGraph, settings: &Settings, search: Search) -> ScheduleChoice {
    let costs = settings.costs(tasks);
    let workspaces = workspaces(tasks, settings.machine());
    overlap::choose(tasks, &costs, Limits { memory: settings.memory, search }, |task| workspaces[task])
}

/// The tasks of a model before anything is chosen: small movements are joined as if there were no link.
pub(crate) fn lower_plainly(model: &Graph, settings: &Settings) -> Result<TaskGraph, CompileError> {
    let parallel = parallelize(model, &settings.plan)?;
    Ok(lower(&parallel, &lower_options(settings, BucketSizes::default()), |_, _| ())?)
}

fn lower_options(settings: &Settings, buckets: BucketSizes) -> LowerOptions {
    let &Settings { leaves, seed, free_bits, .. } = settings;
    let fuse = settings.fusion == Fusion::Auto;
    let precision = settings.precision;
    LowerOptions {
        goal: settings.goal.clone(),
        leaves,
        precision,
        seed,
        free_bits,
        fuse,
        buckets,
        node: None,
    }
}

/// What is shown the result of every stage.
type Observe<'a> = dyn FnMut(&'static str, &dyn Display) + 'a;

/// Sharded tasks, and what is decided for the passes after them.
struct Sharded {
    sharded: ShardedGraph,
    classes: Option<DeviceClasses>,
    options: LowerOptions,
}

/// The tasks with sums in one level or in two, whichever gives the better schedule. `classes` finds devices that stand for
/// others; `observe` is shown the passes of what is chosen.
fn best_sharding(
    parallel: &ParallelGraph,
    settings: &Settings,
    classes: impl Fn(&ShardedGraph) -> Option<DeviceClasses>,
    mut observe: Option<&mut Observe<'_>>,
) -> Result<Sharded, CompileError> {
    let plain = lower_options(settings, BucketSizes::default());
    let node = settings.expected_topology().and_then(|topology| fast_node(&topology));
    let is_alone = node.is_none();
    let mut best: Option<(Sharded, Option<ScheduleTotals>)> = None;
    for node in node.map(Some).into_iter().chain([None]) {
        let options = LowerOptions { node, ..plain.clone() };
        let sharded = match &mut observe {
            Some(observe) if is_alone => shard(parallel, &options, observe)?,
            _ => shard(parallel, &options, |_, _| ())?,
        };
        let classes = classes(&sharded);
        let judged = match &classes {
            Some(classes) => &classes::settings(settings, classes),
            None => settings,
        };
        let (buckets, totals) = best_buckets(&sharded, classes.as_ref(), &options, judged)?;
        let better = best.as_ref().is_none_or(|(_, best)| {
            best.as_ref()
                .zip(totals.as_ref())
                .is_none_or(|(best, totals)| totals.is_better(best, settings.memory))
        });
        let is_judged = totals.is_some();
        if better {
            best = Some((Sharded { sharded, classes, options: LowerOptions { buckets, ..options } }, totals));
        }
        // What is too large to be judged goes over the slower level as little as it can.
        if !is_judged {
            break;
        }
    }
    let (best, _) = best.expect("at least one was tried");
    if let Some(observe) = observe.filter(|_| !is_alone) {
        shard(parallel, &best.options, observe)?;
    }
    Ok(best)
}

/// The devices of a node of a topology, if bytes move faster inside than between nodes.
fn fast_node(topology: &Topology) -> Option<usize> {
    match topology.levels() {
        [inner, .., outer] if inner.link.bytes_per_second > outer.link.bytes_per_second => Some(inner.size),
        _ => None,
    }
}

/// Into how large movements small ones are joined: what gives the best schedule, and what that comes to, where transfers are
/// scheduled at all.
fn best_buckets(
    sharded: &ShardedGraph,
    classes: Option<&DeviceClasses>,
    options: &LowerOptions,
    settings: &Settings,
) -> Result<(BucketSizes, Option<ScheduleTotals>), CompileError> {
    let Some(topology) = settings.expected_topology().filter(|_| settings.overlaps()) else {
        return Ok((BucketSizes::default(), None));
    };
    let mut best: Option<(BucketSizes, ScheduleTotals)> = None;
    for buckets in bucket_sizes(topology.outermost()) {
        let tasks = expand(sharded, classes, &LowerOptions { buckets, ..options.clone() }, |_, _| ())?;
        if tasks.tasks.len() > FEW {
            return Ok((buckets, None));
        }
        // Sizes are compared by schedules that need no search, which is left to the best of them.
        let totals = choose_with(&tasks, settings, Search::Off).chosen().totals;
        if best.as_ref().is_none_or(|(_, best)| totals.is_better(best, settings.memory)) {
            best = Some((buckets, totals));
        }
    }
    Ok(best.map_or_else(Default::default, |(buckets, totals)| (buckets, Some(totals))))
}

/// What ranks can expect of each other if nothing is said. Even between processes of one host a message takes a millisecond while
/// all cores compute, until a thread polls for it; a schedule for a slower network hides a faster one as well.
const BETWEEN_RANKS: Link = Link { latency: Duration::from_millis(1), bytes_per_second: 1e9 };

/// Tasks up to which several sizes of buckets are tried; with more, the first of them is taken.
const FEW: usize = 20_000;

/// Sizes to try. Below latency times bandwidth a movement takes longer for its latency than for its bytes.
fn bucket_sizes(link: Link) -> impl Iterator<Item = BucketSizes> {
    let balance = (link.latency.as_secs_f64() * link.bytes_per_second).min(64e6) as usize;
    let default = BucketSizes::default();
    let sizes = [1, 4, 16].map(|times| BucketSizes {
        small: (times * balance).max(default.small),
        full: (4 * times * balance).max(default.full),
        early: 4 * times * balance,
    });
    sizes.into_iter().chain([default])
}

/// Why a model does not compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model or its layout breaks a rule.
    #[error("{}", first(.0))]
    Graph(Vec<VerifyError>),
    /// A program would have more devices than one can.
    #[error(
        "the plan has {devices} devices: a program has at most {MOST_RUN}. `phalanx simulate` predicts a step of up to \
         {MOST_DEVICES}"
    )]
    TooManyDevices {
        /// How many.
        devices: usize,
    },
    /// The plan cannot be applied to the model.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// A pass cannot lower the model.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The schedule breaks a rule: a bug.
    #[error("{}", first(.0))]
    Schedule(Vec<ScheduleError>),
    /// A task has no kernel.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// A device would need more memory than it may.
    #[error(transparent)]
    OverBudget(#[from] Box<OverBudget>),
}

impl From<PlanError> for CompileError {
    fn from(error: PlanError) -> Self {
        CompileError::Plan(Box::new(error))
    }
}

/// The first of several errors, and how many follow.
pub(crate) fn first<E: Display>(errors: &[E]) -> String {
    match errors {
        [] => String::new(),
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}
