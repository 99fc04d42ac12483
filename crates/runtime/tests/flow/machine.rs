//! Runs a flow as an executor would, in a random order, and watches that every declared order is kept.
//!
//! It counts arrivals and nothing else; whatever could happen next is equally likely to. Device work of ordered steps
//! waits for the tokens in the flow's lists, that of opaque and remote steps for nothing, and general tasks may
//! complete late.

use phalanx_ir::Id;
use phalanx_runtime::flow::{Flow, Mode, TaskKind};

use phalanx_testkit::Rng;

use crate::declared::Declared;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum State {
    Waiting,
    Returned,
    Complete,
}

/// What can happen next.
#[derive(Clone, Copy)]
enum Next {
    /// A segment runs up to the end of this step.
    Step { run: usize, segment: u32, step: u32 },
    /// The effects of a step become complete.
    Effects { run: usize, step: u32 },
    /// An input happens.
    Input { run: usize, input: u32 },
}

struct Run {
    /// By segment: arrivals still owed.
    owed: Vec<u32>,
    /// By operation.
    state: Vec<State>,
    inputs: Vec<bool>,
    /// By post: steps that are not complete.
    posts: Vec<usize>,
    incomplete: usize,
}

struct Machine<'a> {
    declared: &'a Declared,
    flow: &'a Flow,
    /// By operation: its declared predecessors, and those in the run before.
    before: Vec<Vec<usize>>,
    carried_before: Vec<Vec<usize>>,
    gates: Vec<Vec<usize>>,
    runs: Vec<Run>,
    launched: usize,
    next: Vec<Next>,
}

/// Executes `n_runs` runs and panics if one of them breaks an order or does not end.
pub fn execute(declared: &Declared, flow: &Flow, rng: &mut Rng, n_runs: usize) {
    let mut machine = Machine::new(declared, flow, n_runs);
    let depth = match declared.mode {
        Mode::Pipelined { depth } => depth as usize,
        _ => 1,
    };
    loop {
        let open = machine.runs[..machine.launched].iter().filter(|run| run.incomplete > 0).count();
        if machine.launched < n_runs && open < depth && (machine.next.is_empty() || rng.chance(20)) {
            machine.launch();
        } else if machine.next.is_empty() {
            break;
        } else {
            let at = rng.below(machine.next.len());
            machine.happen(at, rng);
        }
    }
    for run in &machine.runs {
        assert!(run.state.iter().all(|&state| state == State::Complete), "a run hangs in {declared:?}");
        assert!(run.posts.iter().all(|&left| left == 0));
    }
}

fn by_target(n: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut sources = vec![Vec::new(); n];
    edges.iter().for_each(|&(from, to)| sources[to].push(from));
    sources
}

impl<'a> Machine<'a> {
    fn new(declared: &'a Declared, flow: &'a Flow, n_runs: usize) -> Self {
        let n = declared.ops.len();
        let posts = (0..flow.n_posts()).map(|post| {
            let steps = 0..flow.steps().len() as u32;
            steps.filter(|&step| flow.posts().of(step).contains(&post)).count()
        });
        let posts: Vec<usize> = posts.collect();
        let run = |at: usize| Run {
            // The first run has no run before that could arrive.
            owed: flow.segments().iter().map(|s| s.fan_in + if at > 0 { s.carried_in } else { 0 }).collect(),
            state: vec![State::Waiting; n],
            inputs: vec![false; declared.n_inputs],
            posts: posts.clone(),
            incomplete: n,
        };
        Machine {
            declared,
            flow,
            before: by_target(n, &declared.edges),
            carried_before: by_target(n, &declared.carried),
            gates: by_target(n, &declared.gates),
            runs: (0..n_runs).map(run).collect(),
            launched: 0,
            next: Vec::new(),
        }
    }

    fn launch(&mut self) {
        let run = self.launched;
        self.launched += 1;
        self.next.extend((0..self.declared.n_inputs as u32).map(|input| Next::Input { run, input }));
        self.flow.roots().iter().for_each(|&segment| self.arrive(run, segment));
    }

    fn arrive(&mut self, run: usize, segment: u32) {
        let owed = &mut self.runs[run].owed[segment as usize];
        assert!(*owed > 0, "too many arrivals in {:?}", self.declared);
        *owed -= 1;
        if *owed == 0 {
            let step = self.flow.segments()[segment as usize].first;
            self.next.push(Next::Step { run, segment, step });
        }
    }

    fn happen(&mut self, at: usize, rng: &mut Rng) {
        match self.next[at] {
            Next::Step { run, segment, step } => {
                self.next.swap_remove(at);
                self.step(run, step, rng);
                if step + 1 < self.flow.segments()[segment as usize].end {
                    self.next.push(Next::Step { run, segment, step: step + 1 });
                }
            }
            Next::Effects { run, step } => {
                let done = |&before: &u32| self.state(run, before) == State::Complete;
                if self.flow.tokens().of(step).iter().all(done) {
                    self.next.swap_remove(at);
                    self.complete(run, step);
                }
            }
            Next::Input { run, input } => {
                self.next.swap_remove(at);
                self.runs[run].inputs[input as usize] = true;
                self.flow.inputs().of(input).iter().for_each(|&segment| self.arrive(run, segment));
            }
        }
    }

    fn state(&self, run: usize, step: u32) -> State {
        self.runs[run].state[self.op(step)]
    }

    fn op(&self, step: u32) -> usize {
        self.flow.steps()[step as usize].op.index()
    }

    /// The body of a step runs and returns.
    fn step(&mut self, run: usize, step: u32, rng: &mut Rng) {
        let op = self.op(step);
        self.check_start(run, op);
        self.runs[run].state[op] = State::Returned;
        let kind = self.flow.steps()[step as usize].kind;
        match kind {
            TaskKind::Blocking if rng.chance(50) => self.next.push(Next::Effects { run, step }),
            TaskKind::Blocking => self.complete(run, step),
            TaskKind::NonBlocking => {
                self.release_early(run, step);
                self.complete(run, step);
            }
            TaskKind::Async | TaskKind::StreamOrdered | TaskKind::Remote => {
                self.release_early(run, step);
                self.next.push(Next::Effects { run, step });
            }
        }
    }

    fn release_early(&mut self, run: usize, step: u32) {
        self.flow.early().of(step).iter().for_each(|&segment| self.arrive(run, segment));
    }

    fn check_start(&self, run: usize, op: usize) {
        let state = &self.runs[run].state;
        assert_eq!(state[op], State::Waiting, "t{op} runs twice");
        for &from in &self.before[op] {
            let needed =
                if self.declared.waits_on_host(from, op) { State::Complete } else { State::Returned };
            assert!(state[from] >= needed, "t{op} starts before t{from} in {:?}", self.declared);
        }
        assert!(self.gates[op].iter().all(|&input| self.runs[run].inputs[input]));
        if run > 0 && matches!(self.declared.mode, Mode::Pipelined { .. }) {
            let before = &self.runs[run - 1].state;
            let all = self.carried_before[op].iter().chain([&op]);
            all.for_each(|&from| {
                assert_eq!(before[from], State::Complete, "t{from} of the run before t{op}")
            });
        }
    }

    fn complete(&mut self, run: usize, step: u32) {
        let op = self.op(step);
        for &from in &self.before[op] {
            assert_eq!(self.runs[run].state[from], State::Complete, "t{op} works before t{from} is done");
        }
        self.runs[run].state[op] = State::Complete;
        // What a general task has attached holds back its early list too.
        if self.flow.steps()[step as usize].kind == TaskKind::Blocking {
            self.release_early(run, step);
        }
        self.runs[run].incomplete -= 1;
        self.flow.posts().of(step).iter().for_each(|&post| self.runs[run].posts[post as usize] -= 1);
        self.flow.late().of(step).iter().for_each(|&segment| self.arrive(run, segment));
        if run + 1 < self.runs.len() {
            self.flow.carried().of(step).iter().for_each(|&segment| self.arrive(run + 1, segment));
        }
    }
}
