//! Our own executor on a shape, in both modes of the runtime.
//!
//! Replay: the shape is a flow, frozen and bound once and launched for every run. As in every program of ours, the
//! order in which a processor runs its tasks is fixed when the flow is made: row after row. Immediate: every run spawns
//! all tasks anew, each after the merge of the finish events of those it reads. Tasks are non-blocking; each processor
//! has a block of neighboring columns, and none takes work from another.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Flow, FlowError, OpId, Task, TaskKind};
use phalanx_runtime::{Config, Context, Event, Fault, Graph, GraphError, Launch, LaunchError, Options};
use phalanx_runtime::{ProcessorId, Runtime};

use super::{PatternShape, busy, timing::timed};

/// How tasks come to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// All at once, in a graph that was bound before.
    Replay,
    /// One by one.
    Immediate,
}

/// Why a graph of tasks was not measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TasksError {
    /// The graph is no flow.
    #[error("{}", .0.iter().map(FlowError::to_string).collect::<Vec<_>>().join("; "))]
    Flow(Vec<FlowError>),
    /// The flow was not bound.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A run was not started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A task failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A task was left out.
    #[error("task {task} of {tasks} did not run, yet the run has ended: the executor is at fault")]
    LeftOut { task: usize, tasks: usize },
}

impl From<Vec<FlowError>> for TasksError {
    fn from(errors: Vec<FlowError>) -> Self {
        Self::Flow(errors)
    }
}

/// A runtime for measurements, on the cores that this process may use.
pub(super) fn start(processors: u32) -> Runtime {
    Runtime::new(Config::new(processors, std::thread::available_parallelism().map_or(1, usize::from)))
}

/// One run of a graph.
type Runner<'a> = Box<dyn Fn() -> Result<(), TasksError> + 'a>;

/// A shape on a runtime of its own.
pub struct Ours {
    runtime: Runtime,
    /// By task: where it runs.
    owners: Vec<ProcessorId>,
    /// By task: what it reads.
    reads: Arc<Vec<Vec<usize>>>,
    flow: Flow,
}

impl Ours {
    /// Starts a runtime and freezes the flow.
    pub fn new(shape: PatternShape, processors: u32) -> Result<Self, TasksError> {
        let runtime = start(processors);
        let n = runtime.processors().len();
        let owner = |task| ProcessorId((task % shape.width * n / shape.width) as u32);
        let owners: Vec<_> = (0..shape.tasks()).map(owner).collect();
        let reads: Vec<Vec<usize>> = (0..shape.tasks()).map(|task| shape.reads(task).collect()).collect();
        let mut builder = Builder::new(shape.pattern.name(), n as u32);
        let mut ops: Vec<OpId> = Vec::with_capacity(shape.tasks());
        let mut last: Vec<Option<OpId>> = vec![None; n];
        for (owner, reads) in owners.iter().zip(&reads) {
            let op = builder.task(nonblocking(owner.0));
            reads.iter().for_each(|&read| builder.edge(ops[read], op));
            let before = last[owner.0 as usize].replace(op);
            before.into_iter().for_each(|before| builder.edge(before, op));
            ops.push(op);
        }
        Ok(Self { runtime, owners, reads: Arc::new(reads), flow: builder.finish()? })
    }

    /// Runs the graph twice, the second time with everything used again; an error unless every task runs once, after
    /// all that it reads.
    pub fn check(&self, mode: LaunchMode) -> Result<(), TasksError> {
        let record = Arc::new(Record::new(&self.reads));
        let kept = Arc::clone(&record);
        let run = self.runs(mode, move |task, context| kept.note(task, context))?;
        for _ in 0..2 {
            run()?;
            record.clear()?;
        }
        Ok(())
    }

    /// Seconds of `repeat` runs with bodies of `grain` iterations, after one that is not timed.
    pub fn seconds(&self, mode: LaunchMode, grain: u64, repeat: usize) -> Result<Vec<f64>, TasksError> {
        timed(repeat, self.runs(mode, move |_, _| busy(grain))?)
    }

    /// Runs in `mode`, in which each task calls `body` with its number.
    fn runs<B>(&self, mode: LaunchMode, body: B) -> Result<Runner<'_>, TasksError>
    where
        B: Fn(usize, &Context<'_>) + Clone + Send + Sync + 'static,
    {
        if mode == LaunchMode::Immediate {
            return Ok(Box::new(move || self.spawn(&body)));
        }
        let function = move |context: &Context<'_>| {
            let op = context.op().expect("a body in a flow belongs to an operation");
            body(op.index(), context);
        };
        let processors: Vec<_> = self.runtime.processors().collect();
        let graph = self.runtime.graph(self.flow.clone(), vec![Box::new(function)], &processors)?;
        Ok(Box::new(move || replay(&graph)))
    }

    /// Spawns all tasks and waits for them.
    fn spawn<B>(&self, body: &B) -> Result<(), TasksError>
    where
        B: Fn(usize, &Context<'_>) + Clone + Send + 'static,
    {
        let mut finishes: Vec<Event> = Vec::with_capacity(self.reads.len());
        let mut before = Vec::new();
        for (task, reads) in self.reads.iter().enumerate() {
            before.clear();
            before.extend(reads.iter().map(|&read| finishes[read]));
            let options = Options { after: self.runtime.events().merge(&before), ..Options::default() };
            let body = body.clone();
            let spawned = self.runtime.spawn(self.owners[task], options, move |context| body(task, context));
            finishes.push(spawned.finish());
        }
        wait_for_all(&self.runtime, &finishes)
    }
}

/// A non-blocking task with the only function of its table.
pub(super) fn nonblocking(processor: u32) -> Task<'static> {
    Task { processor, kind: TaskKind::NonBlocking, name: "task", ..Task::default() }
}

/// One run of `graph`, to its end.
pub(super) fn replay(graph: &Graph) -> Result<(), TasksError> {
    Ok(graph.run(Launch::default())??)
}

/// Waits for all events, the youngest first: once they have triggered, most of the older ones have.
pub(super) fn wait_for_all(runtime: &Runtime, events: &[Event]) -> Result<(), TasksError> {
    events.iter().rev().try_for_each(|&event| runtime.wait(event))?;
    Ok(())
}

/// Which tasks of a run are done. Relaxed throughout: this is to show whether the executor orders tasks, so it must not
/// do so itself.
struct Record {
    done: Vec<AtomicBool>,
    reads: Arc<Vec<Vec<usize>>>,
}

impl Record {
    fn new(reads: &Arc<Vec<Vec<usize>>>) -> Self {
        Self { done: reads.iter().map(|_| AtomicBool::new(false)).collect(), reads: Arc::clone(reads) }
    }

    /// Called by a task, which fails if it is early or runs again.
    fn note(&self, task: usize, context: &Context<'_>) {
        if let Some(read) = self.reads[task].iter().find(|&&read| !self.done[read].load(Relaxed)) {
            context.fail(format_args!("task {task} started before task {read}, which it reads, was done"));
        }
        if self.done[task].swap(true, Relaxed) {
            context.fail(format_args!("task {task} ran twice in one run"));
        }
    }

    /// Forgets a run that has ended; an error if a task did not run.
    fn clear(&self) -> Result<(), TasksError> {
        let mut done = self.done.iter().map(|done| done.swap(false, Relaxed));
        match done.position(|done| !done) {
            Some(task) => Err(TasksError::LeftOut { task, tasks: self.done.len() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::*;

    #[test]
    fn both_doors_run_every_pattern_in_order() {
        for pattern in Pattern::ALL {
            for (width, steps, processors) in [(1, 6, 2), (2, 9, 2), (5, 8, 2), (7, 12, 3)] {
                let shape = PatternShape { pattern, width, steps };
                let ours = Ours::new(shape, processors).unwrap();
                for mode in [LaunchMode::Replay, LaunchMode::Immediate] {
                    ours.check(mode).unwrap_or_else(|error| panic!("{shape:?} by {mode:?}: {error}"));
                    assert_eq!(ours.seconds(mode, 1, 3).unwrap().len(), 3);
                }
            }
        }
    }

    #[test]
    fn processors_own_blocks_of_columns() {
        let owners = |width, processors| {
            let shape = PatternShape { pattern: Pattern::NoComm, width, steps: 2 };
            Ours::new(shape, processors).unwrap().owners.iter().map(|owner| owner.0).collect::<Vec<_>>()
        };
        assert_eq!(owners(5, 2), [0, 0, 0, 1, 1, 0, 0, 0, 1, 1]);
        assert_eq!(owners(2, 3), [0, 1, 0, 1]);
    }

    #[test]
    fn the_check_finds_tasks_that_are_early_left_out_or_run_twice() {
        let runtime = start(1);
        let record = Arc::new(Record::new(&Arc::new(vec![vec![], vec![0]])));
        let note = |task| {
            let record = Arc::clone(&record);
            let on = runtime.processors().next().unwrap();
            let spawned = runtime.spawn(on, Options::default(), move |context| record.note(task, context));
            runtime.wait(spawned.finish()).map_err(|fault| fault.cause().to_string())
        };
        let early = "failed: task 1 started before task 0, which it reads, was done";
        assert_eq!(note(1), Err(early.to_string()));
        assert!(matches!(record.clear(), Err(TasksError::LeftOut { task: 0, tasks: 2 })));
        record.done.iter().for_each(|done| done.store(false, Relaxed));
        assert_eq!(note(0), Ok(()));
        assert_eq!(note(0), Err("failed: task 0 ran twice in one run".to_string()));
        assert_eq!(note(1), Ok(()));
        assert!(record.clear().is_ok());
    }
}
