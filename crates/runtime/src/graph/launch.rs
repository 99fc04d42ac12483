//! Starting runs and ending them: which run gets which run state, and when.
//!
//! A run waits in line until it may have a run state: one at a time, a ring of them, or as many as there are runs, as
//! the flow's mode says. It then waits for its start event and begins.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::Event;
use crate::fault::Outcome;
use crate::flow::Mode;
use crate::processor::{breaks_promise, without_promise};
use crate::profile::{Measured, Profile};
use crate::sync::lock;

use super::executor::Announced;
use super::interpolate::interpolate;
use super::pending::{OfRun, Pending};
use super::run_state::{RunState, Running};
use super::{Graph, Inner, LaunchError};

/// How a graph is launched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch<'a> {
    /// What must have happened before anything of the run starts. If it has not when the runtime ends, the run never starts:
    /// should the event trigger later, the events of the run are poisoned.
    pub start: Event,
    /// The events of the flow's inputs; missing ones have happened.
    pub inputs: &'a [Event],
    /// The run's own arguments; copied.
    pub args: &'a [u8],
    /// The higher one goes first.
    pub priority: i32,
    /// What the run is reported to, and its operations if that is asked for.
    pub profile: Option<&'a Profile>,
}

/// A run that has been launched.
#[derive(Clone, Debug)]
pub struct Run {
    /// Runs of the graph before it.
    pub number: u64,
    /// Triggers when all of it is complete, poisoned if anything was skipped or failed.
    pub finish: Event,
    /// The events of the flow's posts.
    pub posts: Vec<Event>,
}

/// A run in line.
struct Waiting {
    run: Run,
    start: Event,
    inputs: Vec<Event>,
    args: Vec<u8>,
    priority: i32,
    measured: Option<Arc<Measured>>,
}

impl OfRun for Waiting {
    fn events(&self) -> Vec<Event> {
        [self.run.posts.as_slice(), &[self.run.finish]].concat()
    }
}

/// All runs of a graph.
pub(super) struct Launches {
    /// Runs so far.
    launched: u64,
    /// Runs that have begun, so far.
    begun: u64,
    in_flight: u32,
    line: VecDeque<Waiting>,
    /// Whether a thread begins runs in line, and will look at the line again.
    serving: bool,
    /// Clean run states of a graph without a ring.
    free: Vec<Arc<RunState>>,
    states: u32,
    /// By place in the ring: whether the run state is clean.
    clean: Vec<bool>,
    destroyed: Option<Event>,
}

impl Launches {
    pub(super) fn new(ring: usize) -> Launches {
        Launches {
            launched: 0,
            begun: 0,
            in_flight: 0,
            line: VecDeque::new(),
            serving: false,
            free: Vec::new(),
            states: 0,
            clean: vec![true; ring],
            destroyed: None,
        }
    }

    /// A run state for the next run to begin, if it may.
    fn take_block(&mut self, graph: &Inner) -> Option<Arc<RunState>> {
        let state = match graph.flow.mode() {
            Mode::Pipelined { .. } => {
                let n = self.clean.len();
                let place = (self.begun % n as u64) as usize;
                // The run arrives at gates of the run state after its own, so that one must be clean as well.
                if !self.clean[place] || !self.clean[(place + 1) % n] {
                    return None;
                }
                self.clean[place] = false;
                let state = Arc::clone(&graph.ring[place]);
                // What a remote step that was skipped had to send to others is missing for good.
                if self.in_flight == 0 && !graph.remote {
                    state.forget_poison();
                }
                state
            }
            mode => {
                if self.in_flight > 0 && mode != Mode::Concurrent {
                    return None;
                }
                let new = || Arc::new(RunState::new(&graph.flow, &graph.arrivals, self.states, false));
                let state = self.free.pop().unwrap_or_else(new);
                self.states = self.states.max(state.place + 1);
                state
            }
        };
        self.begun += 1;
        self.in_flight += 1;
        Some(state)
    }

    /// The first run in line, with a run state, if it may begin.
    fn next_in_line(&mut self, graph: &Inner) -> Option<(Arc<RunState>, Waiting)> {
        let waiting = self.line.pop_front()?;
        let Some(state) = self.take_block(graph) else {
            self.line.push_front(waiting);
            return None;
        };
        Some((state, waiting))
    }
}

impl Graph {
    /// Starts a run, or lets it wait in line.
    pub fn launch(&self, launch: Launch<'_>) -> Result<Run, LaunchError> {
        let graph = &self.inner;
        let Launch { start, inputs, args, priority, profile } = launch;
        graph.check(&launch)?;
        let mut launches = lock(&graph.launches);
        if launches.destroyed.is_some() {
            return Err(LaunchError::Destroyed(graph.flow.name().into()));
        }
        if graph.flow.mode() == Mode::OneShot && launches.launched > 0 {
            return Err(LaunchError::Again(graph.flow.name().into()));
        }
        let posts = (0..graph.flow.n_posts()).map(|_| graph.events.create()).collect();
        let run = Run { number: launches.launched, finish: graph.events.create(), posts };
        launches.launched += 1;
        let measured = profile.map(|profile| graph.measure(profile, &run));
        let later = |measured| Waiting {
            run: run.clone(),
            start,
            inputs: inputs.into(),
            args: args.into(),
            priority,
            measured,
        };
        if graph.flow.mode() == Mode::Serializable && graph.events.outcome(start).is_none() {
            drop(launches);
            let waiting = later(measured);
            Pending::wait(graph, start, waiting, |graph, waiting, _| Inner::enter_line(graph, waiting));
            return Ok(run);
        }
        let state = if launches.line.is_empty() { launches.take_block(graph) } else { None };
        match state {
            None => launches.line.push_back(later(measured)),
            Some(state) => {
                drop(launches);
                state.measure(measured);
                Inner::begin(graph, &state, &run, &launch);
            }
        }
        Ok(run)
    }

    /// Lets the graph be launched no more, from now on; the event triggers when all of its runs are complete and
    /// `after` has triggered.
    pub fn destroy(&self, after: Event) -> Result<Event, LaunchError> {
        let mut launches = lock(&self.inner.launches);
        if launches.destroyed.is_some() {
            return Err(LaunchError::Destroyed(self.inner.flow.name().into()));
        }
        let done = self.inner.events.create();
        launches.destroyed = Some(done);
        let idle = launches.launched == launches.begun && launches.in_flight == 0;
        drop(launches);
        if idle {
            self.inner.tell(done, Ok(()));
        }
        Ok(self.inner.events.merge(&[after, done]))
    }
}

impl Inner {
    fn check(&self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        let graph = || self.flow.name().to_string();
        let (args, inputs) = (launch.args.len(), launch.inputs.len());
        if args != self.flow.run_args() as usize {
            return Err(LaunchError::Args { graph: graph(), need: self.flow.run_args(), given: args });
        }
        if inputs > self.flow.n_inputs() as usize {
            return Err(LaunchError::Inputs { graph: graph(), need: self.flow.n_inputs(), given: inputs });
        }
        if breaks_promise() {
            return Err(LaunchError::BrokenPromise(graph()));
        }
        Ok(())
    }

    /// A profile was requested for `run`.
    fn measure(&self, profile: &Profile, run: &Run) -> Arc<Measured> {
        let name = format!("run {} of {}", run.number, self.flow.name());
        Arc::new(Measured::new(profile, self.home.own.clock, &name))
    }

    fn enter_line(graph: &Arc<Inner>, waiting: Waiting) {
        lock(&graph.launches).line.push_back(waiting);
        Inner::serve_line(graph);
    }

    /// Begins the runs that may. One that ends while it begins calls this again; the call below it on the stack, or on
    /// another thread, goes on instead, so that a long line costs no stack.
    fn serve_line(graph: &Arc<Inner>) {
        let mut launches = lock(&graph.launches);
        if launches.serving {
            return;
        }
        while let Some((state, waiting)) = launches.next_in_line(graph) {
            launches.serving = true;
            drop(launches);
            let Waiting { run, start, inputs, args, priority, measured } = waiting;
            let launch = Launch { start, inputs: &inputs, args: &args, priority, profile: None };
            state.measure(measured);
            Inner::begin(graph, &state, &run, &launch);
            launches = lock(&graph.launches);
            launches.serving = false;
        }
    }

    /// Gives `state` to `run`, which begins when its start event triggers.
    fn begin(graph: &Arc<Inner>, state: &Arc<RunState>, run: &Run, launch: &Launch<'_>) {
        state.claim(run.number, run.finish, launch.priority, &run.posts);
        if !graph.flow.args().is_empty() {
            // SAFETY: this thread has claimed the run state, and its run starts below.
            unsafe { state.set_args(|args| interpolate(args, &graph.flow, launch.args)) };
        }
        for input in 0..graph.flow.n_inputs() {
            let event = launch.inputs.get(input as usize).copied().unwrap_or(Event::NONE);
            graph.when(event, state, input + 1);
        }
        graph.when(launch.start, state, 0);
    }

    /// Delivers input number `what - 1`, or the start if it is zero, when `event` triggers.
    fn when(self: &Arc<Inner>, event: Event, state: &Arc<RunState>, what: u32) {
        match self.events.outcome(event) {
            Some(outcome) => Inner::deliver(self, state, what, &outcome),
            None => {
                let deliver = move |graph: &Arc<Inner>, state, outcome: &Outcome| {
                    Inner::deliver(graph, &state, what, outcome);
                };
                Pending::wait(self, event, Arc::clone(state), deliver);
            }
        }
    }

    fn deliver(graph: &Arc<Inner>, state: &Arc<RunState>, what: u32, outcome: &Outcome) {
        let segments = match what {
            0 => graph.flow.roots(),
            input => graph.flow.inputs().of(input - 1),
        };
        if let Err(fault) = outcome {
            graph.keep(state, fault);
            segments.iter().for_each(|&segment| state.poison(segment));
        }
        let start = (what == 0).then(|| state.run());
        if let (Some(Running { measured: Some(measured), .. }), Ok(())) = (&start, outcome) {
            measured.started(None);
        }
        Inner::outside(graph, state, |release| segments.iter().for_each(|&segment| release.arrive(segment)));
        if let Some(Running { priority, .. }) = start {
            for &place in &graph.members {
                let run = Announced { graph: Arc::clone(graph), state: Arc::clone(state), place, priority };
                graph.processors[place as usize].announce(run);
            }
        }
        Inner::part_done(graph, state);
    }

    /// Ends the run of `state`, which has no work left, and begins those that waited for that.
    pub(super) fn finish(graph: Arc<Inner>, state: Arc<RunState>) {
        let (Running { finish, measured, .. }, outcome) = (state.run(), state.outcome());
        graph.give_lanes_back(&state);
        if let Some(measured) = measured {
            state.forget_measured();
            measured.completed(&outcome);
        }
        state.reset(&graph.n_post);
        let mut launches = lock(&graph.launches);
        launches.in_flight -= 1;
        match launches.clean.get_mut(state.place as usize) {
            Some(clean) => *clean = true,
            None => launches.free.push(state),
        }
        // Under the lock: a thread that finds the graph idle finds all of its runs ended.
        graph.mark(finish, &outcome);
        if launches.in_flight == 0 && launches.launched == launches.begun {
            launches.destroyed.iter().for_each(|&destroyed| graph.mark(destroyed, &Ok(())));
        }
        drop(launches);
        without_promise(|| graph.events.run_waiters());
        Inner::serve_line(&graph);
    }

    fn mark(&self, event: Event, outcome: &Outcome) {
        self.events.mark(event, outcome).expect("events of a run are triggered by it alone");
    }
}
