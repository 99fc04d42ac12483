//! A flow as plain data, so that the same one can be built, checked and run.

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Direct, Flow, InputId, Mode, OpId, Task, TaskKind};
use phalanx_testkit::Rng;

/// What a builder is told.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    pub processors: u32,
    pub mode: Mode,
    pub fuse: bool,
    pub reduce: bool,
    /// Processor, none for direct ones, and kind.
    pub ops: Vec<(Option<u32>, TaskKind)>,
    pub edges: Vec<(usize, usize)>,
    pub carried: Vec<(usize, usize)>,
    pub n_inputs: usize,
    /// Input and operation.
    pub gates: Vec<(usize, usize)>,
    pub posts: Vec<Vec<usize>>,
}

impl Declared {
    /// Non-blocking tasks on one processor with default switches.
    pub fn nonblocking(n: usize, edges: &[(usize, usize)]) -> Declared {
        Declared {
            processors: 1,
            fuse: true,
            reduce: true,
            ops: vec![(Some(0), TaskKind::NonBlocking); n],
            edges: edges.to_vec(),
            ..Declared::default()
        }
    }

    pub fn builder(&self) -> Builder {
        let mut builder = Builder::new("declared", self.processors);
        builder.mode(self.mode).fuse(self.fuse).reduce(self.reduce);
        for (at, &(processor, kind)) in self.ops.iter().enumerate() {
            let (name, args) = (format!("t{at}"), vec![at as u8; at % 5]);
            let (name, args, function) = (name.as_str(), args.as_slice(), at as u32 % 7);
            match processor {
                Some(processor) => builder.task(Task { processor, function, kind, name, args }),
                None if kind == TaskKind::Remote => builder.remote(Direct { function, name, args }),
                None => builder.direct(Direct { function, name, args }),
            };
        }
        self.edges.iter().for_each(|&(from, to)| builder.edge(op(from), op(to)));
        self.carried.iter().for_each(|&(from, to)| builder.carried(op(from), op(to)));
        let inputs: Vec<InputId> = (0..self.n_inputs).map(|at| builder.input(&format!("in{at}"))).collect();
        self.gates.iter().for_each(|&(input, to)| builder.gate(inputs[input], op(to)));
        for (at, ops) in self.posts.iter().enumerate() {
            builder.post(&format!("post{at}"), &ops.iter().map(|&at| op(at)).collect::<Vec<_>>());
        }
        builder
    }

    pub fn flow(&self) -> Flow {
        self.builder().finish().unwrap_or_else(|errors| panic!("{self:?} is refused: {errors:?}"))
    }

    /// Whether the start of `to` waits for the effects of `from`, or else only its device work does.
    pub fn waits_on_host(&self, from: usize, to: usize) -> bool {
        let both_ordered =
            self.ops[from].1 == TaskKind::StreamOrdered && self.ops[to].1 == TaskKind::StreamOrdered;
        !(both_ordered && self.ops[from].0 == self.ops[to].0)
    }
}

pub fn op(at: usize) -> OpId {
    OpId::from_index(at)
}

/// How a random flow is made.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub n: usize,
    pub processors: u32,
    /// Of all pairs that may have an edge, in percent.
    pub density: usize,
    pub pipelined: bool,
}

/// A random flow. Its order of definition is not a topological one, unless every processor follows it.
pub fn random(rng: &mut Rng, recipe: Recipe) -> Declared {
    let Recipe { n, processors, density, pipelined } = recipe;
    let in_order = rng.chance(40);
    let order = if in_order { (0..n).collect() } else { shuffled(rng, n) };
    let only_nonblocking = rng.chance(30);
    let mut declared = Declared {
        processors,
        mode: if pipelined { Mode::Pipelined { depth: 1 + rng.below(3) as u32 } } else { Mode::Concurrent },
        fuse: rng.chance(75),
        reduce: rng.chance(75),
        ops: (0..n).map(|_| random_op(rng, processors, only_nonblocking)).collect(),
        n_inputs: rng.below(3),
        ..Declared::default()
    };
    if in_order {
        let mut last = vec![None; processors as usize];
        for (at, &(processor, _)) in declared.ops.iter().enumerate() {
            let before = processor.and_then(|processor| last[processor as usize].replace(at));
            declared.edges.extend(before.map(|before| (before, at)));
        }
    }
    let chained = rng.below(100);
    for at in 1..n {
        if rng.chance(chained) {
            declared.edges.push((order[at - 1], order[at]));
        }
        for before in 0..at {
            if rng.chance(density) {
                declared.edges.push((order[before], order[at]));
            }
        }
    }
    let some = |rng: &mut Rng| rng.below(n / 4 + 2);
    if pipelined {
        declared.carried = (0..some(rng)).map(|_| (rng.below(n), rng.below(n))).collect();
    }
    if declared.n_inputs > 0 {
        declared.gates = (0..some(rng)).map(|_| (rng.below(declared.n_inputs), rng.below(n))).collect();
    }
    declared.posts = (0..rng.below(3)).map(|_| (0..=some(rng)).map(|_| rng.below(n)).collect()).collect();
    declared
}

fn shuffled(rng: &mut Rng, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    (1..n).for_each(|at| order.swap(at, rng.below(at + 1)));
    order
}

fn random_op(rng: &mut Rng, processors: u32, only_nonblocking: bool) -> (Option<u32>, TaskKind) {
    let kinds = [
        TaskKind::Blocking,
        TaskKind::NonBlocking,
        TaskKind::NonBlocking,
        TaskKind::Async,
        TaskKind::StreamOrdered,
        TaskKind::StreamOrdered,
    ];
    let processor = rng.below(processors as usize) as u32;
    match (only_nonblocking, rng.chance(15)) {
        (_, true) => (None, if rng.chance(50) { TaskKind::NonBlocking } else { TaskKind::Remote }),
        (true, false) => (Some(processor), TaskKind::NonBlocking),
        (false, false) => (Some(processor), kinds[rng.below(kinds.len())]),
    }
}
