//! Runs flows on one thread, one operation after the other, in an order that a seed chooses.
//!
//! What may come next is exactly what the flow allows: runs begin as its mode says, starts and inputs arrive at any
//! time, operations run once their gate is open, and effects that outlive a body happen any time later. So a
//! program that declares too few edges computes something else for some seed, and the seed repeats it. A stepper
//! counts with the same gates as the executor. Processors have no say in the order: an edge that only the number of
//! threads would keep is not kept here.

use std::collections::{BTreeMap, VecDeque};

use crate::fault::{Fault, Outcome};
use crate::flow::{Flow, Mode, OpId, Segment, TaskKind};

use super::gate::{Arrival, Gate};
use super::interpolate::interpolate;
use super::{GraphError, LaunchError};

/// An operation of a run whose effects happen now.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// The operation.
    pub op: OpId,
    /// The number of the run.
    pub run: u64,
    /// The operation's arguments in this run.
    pub args: &'a [u8],
}

/// The effects of an operation; an error poisons what follows it.
pub type Effect<'a> = Box<dyn FnMut(Visit<'_>) -> Outcome + 'a>;

/// Runs a flow in an order that a seed chooses.
///
/// ```
/// use phalanx_runtime::flow::{Builder, Task};
/// use phalanx_runtime::Stepper;
///
/// let mut builder = Builder::new("pair", 1);
/// let first = builder.task(Task::default());
/// let second = builder.task(Task::default());
/// builder.edge(first, second);
/// let flow = builder.finish().unwrap();
///
/// let mut order = Vec::new();
/// let mut stepper = Stepper::new(&flow, vec![Box::new(|visit| Ok(order.push(visit.op)))], 7).unwrap();
/// stepper.launch(&[]).unwrap();
/// while stepper.step() {}
/// assert_eq!(stepper.outcome(0), Some(&Ok(())));
/// drop(stepper);
/// assert_eq!(order, [first, second]);
/// ```
pub struct Stepper<'a> {
    flow: &'a Flow,
    functions: Vec<Effect<'a>>,
    seed: u64,
    launched: u64,
    begun: u64,
    line: VecDeque<Waiting>,
    /// Runs that have begun and not ended; in a pipelined flow also the next one, at whose gates they arrive.
    runs: BTreeMap<u64, SteppedRun>,
    /// What may come next, but for effects that wait for tokens.
    ready: Vec<Action>,
    ended: BTreeMap<u64, Ended>,
}

/// A run that has not begun.
struct Waiting {
    number: u64,
    args: Vec<u8>,
}

struct SteppedRun {
    gates: Vec<Gate>,
    poisoned: Vec<bool>,
    /// By step: what became of it, once it is complete.
    complete: Vec<Option<bool>>,
    posts: Vec<Outcome>,
    args: Vec<u8>,
    /// Steps that are not complete, inputs and the start if they have not arrived.
    work: usize,
    fault: Option<Fault>,
}

/// What became of a run.
struct Ended {
    outcome: Outcome,
    posts: Vec<Outcome>,
}

#[derive(Clone, Copy)]
enum Action {
    Start(u64),
    Input(u64, u32),
    /// The body of a step is called; its effects are complete when it returns, or happen later.
    Body {
        run: u64,
        step: u32,
        segment: u32,
        poisoned: bool,
    },
    /// The effects of a step whose body has returned.
    Late {
        run: u64,
        step: u32,
        poisoned: bool,
    },
}

impl<'a> Stepper<'a> {
    /// A stepper without runs. `functions` has what operations call, by number.
    pub fn new(flow: &'a Flow, functions: Vec<Effect<'a>>, seed: u64) -> Result<Stepper<'a>, GraphError> {
        if let Some(step) = flow.steps().iter().find(|step| step.function as usize >= functions.len()) {
            return Err(GraphError::Function {
                flow: flow.name().into(),
                operation: flow.label(step.op).into(),
                function: step.function,
                given: functions.len(),
            });
        }
        let (line, runs, ready, ended) = Default::default();
        Ok(Stepper { flow, functions, seed, launched: 0, begun: 0, line, runs, ready, ended })
    }

    /// Lets a run with these arguments happen; its number.
    pub fn launch(&mut self, args: &[u8]) -> Result<u64, LaunchError> {
        let (graph, need, given) = (|| self.flow.name().to_string(), self.flow.run_args(), args.len());
        if given != need as usize {
            return Err(LaunchError::Args { graph: graph(), need, given });
        }
        if self.flow.mode() == Mode::OneShot && self.launched > 0 {
            return Err(LaunchError::Again(graph()));
        }
        let number = self.launched;
        self.launched += 1;
        self.line.push_back(Waiting { number, args: args.into() });
        Ok(number)
    }

    /// Lets one thing happen that may; whether there was one. If not, all runs have ended.
    pub fn step(&mut self) -> bool {
        let begins = self.beginners();
        let legal: Vec<_> = (0..self.ready.len()).filter(|&at| self.is_legal(self.ready[at])).collect();
        let n = begins + legal.len();
        if n == 0 {
            return false;
        }
        let choice = (self.random() % n as u64) as usize;
        match choice.checked_sub(begins) {
            None => self.begin(choice),
            Some(choice) => {
                let action = self.ready.swap_remove(legal[choice]);
                self.act(action);
            }
        }
        true
    }

    /// What became of a run, once it has ended: the first fault if anything failed or was skipped.
    pub fn outcome(&self, run: u64) -> Option<&Outcome> {
        self.ended.get(&run).map(|ended| &ended.outcome)
    }

    /// What became of a run's posts, once it has ended.
    pub fn posts(&self, run: u64) -> Option<&[Outcome]> {
        self.ended.get(&run).map(|ended| &ended.posts[..])
    }

    /// How many runs at the front of the line may begin, any of them next.
    fn beginners(&self) -> usize {
        let idle = self.begun as usize == self.ended.len();
        let oldest = self.runs.keys().next().copied().unwrap_or(self.begun);
        let may = match self.flow.mode() {
            Mode::OneShot | Mode::Ordered => usize::from(idle),
            Mode::Serializable if !idle => 0,
            Mode::Serializable | Mode::Concurrent => usize::MAX,
            Mode::Pipelined { depth } => usize::from(self.begun < oldest + u64::from(depth)),
        };
        may.min(self.line.len())
    }

    /// Whether no effect on a device has to happen before.
    fn is_legal(&self, action: Action) -> bool {
        match action {
            Action::Late { run, step, poisoned: false } => {
                self.tokens(run, step).all(|token| token.is_some())
            }
            _ => true,
        }
    }

    /// What became of the steps whose tokens a step waits for.
    fn tokens(&self, run: u64, step: u32) -> impl Iterator<Item = Option<bool>> {
        let complete = &self.runs[&run].complete;
        self.flow.tokens().of(step).iter().map(|&token| complete[token as usize])
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(run) => self.arrive_from_outside(run, self.flow.roots()),
            Action::Input(run, input) => self.arrive_from_outside(run, self.flow.inputs().of(input)),
            Action::Body { run, step, segment, poisoned } => self.body(run, step, segment, poisoned),
            Action::Late { run, step, poisoned } => {
                let lost = self.tokens(run, step).any(|token| token == Some(false));
                let poisoned = self.visit(run, step, poisoned || lost);
                self.complete(run, step, poisoned);
            }
        }
    }

    fn begin(&mut self, place: usize) {
        let Some(Waiting { number, args }) = self.line.remove(place) else { return };
        let drained = self.begun as usize == self.ended.len();
        let flow = self.flow;
        let run = self.runs.entry(number).or_insert_with(|| SteppedRun::new(flow, number == 0));
        // What a remote operation was to send to others is missing for good.
        let forgets = flow.steps().iter().all(|step| step.kind != TaskKind::Remote);
        if drained && forgets {
            run.poisoned.fill(false);
            run.fault = None;
        }
        interpolate(&mut run.args, flow, &args);
        if let Mode::Pipelined { .. } = flow.mode() {
            self.runs.entry(number + 1).or_insert_with(|| SteppedRun::new(flow, false));
        }
        self.begun += 1;
        self.ready.push(Action::Start(number));
        self.ready.extend((0..flow.n_inputs()).map(|input| Action::Input(number, input)));
    }

    fn arrive_from_outside(&mut self, run: u64, segments: &[u32]) {
        segments.iter().for_each(|&segment| self.arrive(run, segment, None));
        self.finish_part(run);
    }

    /// One arrival at a segment, poisoned by `fault`.
    fn arrive(&mut self, number: u64, segment: u32, fault: Option<&Fault>) {
        let Some(run) = self.runs.get_mut(&number) else { return };
        if let Some(fault) = fault {
            run.poisoned[segment as usize] = true;
            run.fault.get_or_insert_with(|| fault.clone());
        }
        if run.gates[segment as usize].arrive() == Arrival::Last {
            let poisoned = run.poisoned[segment as usize];
            let step = self.flow.segments()[segment as usize].first;
            self.ready.push(Action::Body { run: number, step, segment, poisoned });
        }
    }

    fn body(&mut self, run: u64, step: u32, segment: u32, poisoned: bool) {
        let late = self.flow.steps()[step as usize].kind > TaskKind::NonBlocking;
        let poisoned = if late { poisoned } else { self.visit(run, step, poisoned) };
        self.arrive_all(run, run, self.flow.early().of(step), poisoned);
        if step + 1 < self.flow.segments()[segment as usize].end {
            self.ready.push(Action::Body { run, step: step + 1, segment, poisoned });
        }
        match late {
            true => self.ready.push(Action::Late { run, step, poisoned }),
            false => self.complete(run, step, poisoned),
        }
    }

    /// The effects of a step happen, unless it is poisoned; whether it is then.
    fn visit(&mut self, number: u64, step: u32, poisoned: bool) -> bool {
        let Some(run) = self.runs.get_mut(&number).filter(|_| !poisoned) else { return true };
        let step = &self.flow.steps()[step as usize];
        let args = &run.args[step.args.0 as usize..step.args.1 as usize];
        let outcome = self.functions[step.function as usize](Visit { op: step.op, run: number, args });
        outcome.is_err_and(|fault| {
            run.fault.get_or_insert(fault);
            true
        })
    }

    /// The effects of a step are there, or will never be.
    fn complete(&mut self, number: u64, step: u32, poisoned: bool) {
        self.arrive_all(number, number, self.flow.late().of(step), poisoned);
        self.arrive_all(number, number + 1, self.flow.carried().of(step), poisoned);
        let Some(run) = self.runs.get_mut(&number) else { return };
        run.complete[step as usize] = Some(!poisoned);
        for &post in self.flow.posts().of(step) {
            if let Some(fault) = run.fault.as_ref().filter(|_| poisoned) {
                run.posts[post as usize] = Err(fault.clone());
            }
        }
        self.finish_part(number);
    }

    /// Arrivals of a step of run `from`.
    fn arrive_all(&mut self, from: u64, to: u64, segments: &[u32], poisoned: bool) {
        let fault = self.runs[&from].fault.clone().filter(|_| poisoned);
        segments.iter().for_each(|&segment| self.arrive(to, segment, fault.as_ref()));
    }

    fn finish_part(&mut self, number: u64) {
        let Some(run) = self.runs.get_mut(&number) else { return };
        run.work -= 1;
        if run.work == 0 {
            let (outcome, posts) = (run.fault.take().map_or(Ok(()), Err), std::mem::take(&mut run.posts));
            self.ended.insert(number, Ended { outcome, posts });
            self.runs.remove(&number);
        }
    }

    /// The next number of the seed (splitmix).
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl SteppedRun {
    fn new(flow: &Flow, first: bool) -> SteppedRun {
        let segments = flow.segments();
        let gate = |segment: &Segment| Gate::new(segment.fan_in + if first { 0 } else { segment.carried_in });
        SteppedRun {
            gates: segments.iter().map(gate).collect(),
            poisoned: vec![false; segments.len()],
            complete: vec![None; flow.steps().len()],
            posts: vec![Ok(()); flow.n_posts() as usize],
            args: flow.args().into(),
            work: flow.steps().len() + flow.n_inputs() as usize + 1,
            fault: None,
        }
    }
}
