//! Graphs: flows bound to processors and functions, replayed run after run.
//!
//! A [`Graph`] is made once and launched often. Launching creates no events but the finish event and those of the
//! posts, builds nothing and, once as many runs have been in flight as will be, allocates nothing: what changes in a
//! run lies in a [`run_state::RunState`], used again and again. Within a run, operations release each other directly:
//! the last arrival at a gate puts the segment behind it into its processor's queue, or on the stack of the worker that
//! arrived. `README.md` in this directory describes the whole protocol and why it neither loses nor repeats anything.

mod call;
mod device;
mod error;
mod executor;
mod gate;
mod interpolate;
mod launch;
#[cfg(all(test, loom))]
mod models;
mod pending;
mod queue;
mod release;
mod remote;
mod run;
mod run_state;
mod serial;
mod stepper;

pub(crate) use call::Name;
pub use error::{GraphError, LaunchError};
pub(crate) use executor::{Announced, EXPECTED, Executor};
pub use launch::{Launch, Run};
pub(crate) use pending::Pending;
pub use remote::Completion;
pub use stepper::{Effect, Stepper, Visit};

use std::cell::RefCell;
use std::sync::{Arc, OnceLock, Weak};

use crate::event::{Event, Events};
use crate::fault::{Fault, Outcome};
use crate::flow::{DIRECT, Flow, Lists, Mode, Segment, TaskKind};
use crate::processor::{Context, Processor, keep_promise, without_promise};
use crate::runtime::Runtime;
use crate::sync::Mutex;
use launch::Launches;
use release::Release;
use run_state::RunState;

std::thread_local! {
    /// Empty lists to use again, as many as were in use at a time.
    static LISTS: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) };
}

/// The body of an operation.
pub type Function = Box<dyn Fn(&Context<'_>) + Send + Sync>;

/// A flow that can be launched. It keeps its runtime alive.
#[derive(Clone)]
pub struct Graph {
    inner: Arc<Inner>,
    runtime: Runtime,
}

pub(crate) struct Inner {
    flow: Flow,
    functions: Vec<Function>,
    processors: Vec<Arc<Processor>>,
    /// The processor that direct operations report if no worker releases them.
    home: Arc<Processor>,
    events: Arc<Events>,
    /// By processor: whether it runs its segments in the order of their numbers.
    serial: Vec<bool>,
    /// By step: the segments it arrives at when its body has returned.
    arrivals: Lists,
    /// By segment: how to arrive at its gate.
    manner: Vec<Manner>,
    /// By segment: what its last step promises.
    tails: Vec<TaskKind>,
    /// By step: what follows it.
    follows: Vec<Follows>,
    /// Whether it has remote steps.
    remote: bool,
    /// Whether all its other steps are non-blocking.
    nonblocking: bool,
    /// By post: how many steps it has.
    n_post: Vec<u32>,
    /// Processors that have segments.
    members: Vec<u32>,
    /// The run states of a pipelined graph, run after run.
    ring: Vec<Arc<RunState>>,
    launches: Mutex<Launches>,
    /// What holds it while a run waits for an event.
    pending: Weak<Pending>,
    on_fault: OnceLock<OnFault>,
}

/// Called with the number of the run and the fault of an operation when the fault arises, on the thread on which it
/// does: to be quick.
pub(crate) type OnFault = Box<dyn Fn(u64, &Fault) + Send + Sync>;

impl Graph {
    pub(crate) fn new(
        flow: Flow,
        functions: Vec<Function>,
        processors: Vec<Arc<Processor>>,
        runtime: &Runtime,
        home: &Arc<Processor>,
    ) -> Result<Graph, GraphError> {
        check(&flow, &functions, &processors)?;
        let segments = flow.segments();
        let serial = serial::processors(&flow);
        let arrivals = serial::arrivals(&flow, &serial);
        let tail = |segment: &Segment| flow.steps()[segment.end as usize - 1].kind;
        let ring = match flow.mode() {
            Mode::Pipelined { depth } => {
                let state = |place| Arc::new(RunState::new(&flow, &arrivals, place, place == 0));
                (0..=depth).map(state).collect()
            }
            _ => Vec::new(),
        };
        let count = |post| flow.posts().items().iter().filter(|&&other| other == post).count() as u32;
        let inner = Inner {
            serial,
            manner: manners(&flow, &arrivals),
            arrivals,
            tails: segments.iter().map(tail).collect(),
            follows: Follows::of(&flow),
            remote: flow.steps().iter().any(|step| step.kind == TaskKind::Remote),
            nonblocking: flow
                .steps()
                .iter()
                .all(|step| matches!(step.kind, TaskKind::NonBlocking | TaskKind::Remote)),
            n_post: (0..flow.n_posts()).map(count).collect(),
            members: (0..flow.processors()).filter(|&processor| !flow.owned(processor).is_empty()).collect(),
            launches: Mutex::new(Launches::new(ring.len())),
            pending: runtime.pending(),
            on_fault: OnceLock::new(),
            ring,
            functions,
            processors,
            home: Arc::clone(home),
            events: Arc::clone(&home.events),
            flow,
        };
        Ok(Graph { inner: Arc::new(inner), runtime: runtime.clone() })
    }

    /// The flow.
    pub fn flow(&self) -> &Flow {
        &self.inner.flow
    }

    /// Calls `listener` with every fault that arises from now on. A run ends later, and not at all if a remote
    /// operation of it is never complete. Only the first listener counts.
    pub(crate) fn on_fault(&self, listener: OnFault) {
        let _ = self.inner.on_fault.set(listener);
    }
}

/// What follows a step: most have nothing to release.
#[derive(Clone, Copy)]
struct Follows {
    /// The first step from this one on that something follows, or the last of the segment.
    stop: u32,
    /// Successors when its body has returned.
    early: bool,
    /// Late successors, some in the next run, or posts.
    late: bool,
}

impl Follows {
    /// By step.
    fn of(flow: &Flow) -> Vec<Follows> {
        let follows = |step| Follows {
            stop: step,
            early: !flow.early().of(step).is_empty(),
            late: [flow.late(), flow.carried(), flow.posts()].iter().any(|list| !list.of(step).is_empty()),
        };
        let mut all: Vec<_> = (0..flow.steps().len() as u32).map(follows).collect();
        for segment in flow.segments() {
            for step in (segment.first as usize..segment.end as usize - 1).rev() {
                if !(all[step].early || all[step].late) {
                    all[step].stop = all[step + 1].stop;
                }
            }
        }
        all
    }
}

/// How arrivals at a gate meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// On several threads at the same time.
    Shared,
    /// All from the worker that holds the processor's worker core.
    Private,
    /// There is one.
    Only,
}

fn manners(flow: &Flow, arrivals: &Lists) -> Vec<Manner> {
    let segments = flow.segments();
    let mut manner: Vec<Manner> = (segments.iter().zip(serial::counts(flow, arrivals)))
        .map(|(segment, count)| match count + segment.carried_in {
            1 => Manner::Only,
            _ if segment.private => Manner::Private,
            _ => Manner::Shared,
        })
        .collect();
    let mut share = |segment: u32| {
        let manner = &mut manner[segment as usize];
        if *manner == Manner::Private {
            *manner = Manner::Shared;
        }
    };
    // Inputs come from other threads, and so does the start, at the same time as arrivals from the run before.
    flow.inputs().items().iter().for_each(|&segment| share(segment));
    let roots = flow.roots().iter().filter(|&&root| segments[root as usize].carried_in > 0);
    roots.for_each(|&root| share(root));
    manner
}

fn check(flow: &Flow, functions: &[Function], processors: &[Arc<Processor>]) -> Result<(), GraphError> {
    let given = processors.len();
    if (flow.processors() as usize) > given {
        let needed = flow.processors();
        return Err(GraphError::Processors { flow: flow.name().into(), needed, given });
    }
    for segment in flow.segments().iter().filter(|segment| segment.processor != DIRECT) {
        let step = &flow.steps()[segment.end as usize - 1];
        if device::is_on_device(step.kind) && processors[segment.processor as usize].device.get().is_none() {
            let (operation, processor) = (flow.label(step.op).into(), segment.processor);
            return Err(GraphError::NoDevice { flow: flow.name().into(), operation, processor });
        }
    }
    match flow.steps().iter().find(|step| step.function as usize >= functions.len()) {
        Some(step) => Err(GraphError::Function {
            flow: flow.name().into(),
            operation: flow.label(step.op).into(),
            function: step.function,
            given: functions.len(),
        }),
        None => Ok(()),
    }
}

impl Inner {
    fn steps_of(&self, segment: u32) -> (u32, u32) {
        let segment = &self.flow.segments()[segment as usize];
        (segment.first, segment.end)
    }

    /// What the last step of a segment promises; those before it are non-blocking.
    fn tail(&self, segment: u32) -> TaskKind {
        self.tails[segment as usize]
    }

    /// Puts a segment into its processor's queue; the caller wakes the processor.
    fn push(&self, state: &RunState, processor: u32, segment: u32) {
        let owned = self.flow.owned(processor);
        state.tails[processor as usize].push(&state.slots[owned.start as usize..owned.end as usize], segment);
    }

    /// The run state of the next run, in a pipelined graph.
    fn next(&self, state: &RunState) -> Option<&Arc<RunState>> {
        let n = self.ring.len();
        (n > 0).then(|| &self.ring[(state.place as usize + 1) % n])
    }

    /// Triggers an event, whose waiters may be code of users.
    fn tell(&self, event: Event, outcome: Outcome) {
        without_promise(|| {
            self.events.complete(event, outcome).expect("events of a run are triggered by it alone");
        });
    }

    /// Releases what follows something that happened outside a processor's cursor, direct segments included.
    fn outside(graph: &Arc<Inner>, state: &Arc<RunState>, what: impl FnOnce(&mut Release<'_>)) {
        let mut direct = LISTS.with_borrow_mut(Vec::pop).unwrap_or_default();
        let mut release = Release::new(graph, state, None, &mut direct);
        what(&mut release);
        release.wake();
        let mut done = 0;
        keep_promise(|| {
            while let Some(segment) = release.direct.pop() {
                release.run_direct(&graph.home, segment);
                done += 1;
            }
        });
        // One that was never used is not worth a place, which would have to be allocated.
        if direct.capacity() > 0 {
            LISTS.with_borrow_mut(|lists| lists.push(direct));
        }
        if done > 0 && state.complete(done) {
            Inner::finish(Arc::clone(graph), Arc::clone(state));
        }
    }

    /// One unit of work is complete.
    fn part_done(graph: &Arc<Inner>, state: &Arc<RunState>) {
        if state.complete(1) {
            Inner::finish(Arc::clone(graph), Arc::clone(state));
        }
    }

    /// A blocking step is complete.
    fn done(graph: &Arc<Inner>, state: &Arc<RunState>, step: u32, poisoned: bool) {
        Inner::outside(graph, state, |release| {
            release.early(step, poisoned);
            release.complete(step, poisoned);
        });
        Inner::part_done(graph, state);
    }
}
