//! Random graphs of operations, and what can be reached in them.

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Direct, Flow, Mode, OpId, Task, TaskKind};
use phalanx_testkit::Rng;

/// What a random graph looks like.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub ops: usize,
    /// Of a hundred pairs of operations, how many are ordered by an edge.
    pub density: usize,
    pub processors: u32,
    pub mode: Mode,
}

/// A random graph whose operations all call function 0.
pub struct Dag {
    pub builder: Builder,
    pub ops: Vec<OpId>,
    /// By operation: those that an edge orders before it.
    pub before: Vec<Vec<usize>>,
}

impl Dag {
    /// Non-blocking tasks mostly, some tasks that may wait, some direct ones, on random processors.
    pub fn new(recipe: Recipe, random: &mut Rng) -> Dag {
        use TaskKind::{Blocking, NonBlocking};
        Dag::of(
            recipe,
            random,
            &[
                Blocking,
                NonBlocking,
                NonBlocking,
                NonBlocking,
                NonBlocking,
                NonBlocking,
                NonBlocking,
                NonBlocking,
            ],
        )
    }

    /// Direct operations and operations of the given kinds, on random processors unless they are remote. Some graphs
    /// have a spine instead: only non-blocking and direct operations, each non-blocking task after the one before it on
    /// its processor.
    pub fn of(recipe: Recipe, random: &mut Rng, kinds: &[TaskKind]) -> Dag {
        let Recipe { ops: n, density, processors, mode } = recipe;
        let mut builder = Builder::new("dag", processors);
        builder.mode(mode).fuse(random.chance(80)).reduce(random.chance(80));
        let spine = random.chance(30);
        let kinds = if spine { &[TaskKind::NonBlocking; 3] } else { kinds };
        let mut last = vec![None; processors as usize];
        let (mut ops, mut before) = (Vec::new(), Vec::new());
        for op in 0..n {
            let processor = random.below(processors as usize);
            let mut edges = random.subset(op, density);
            match kinds.get(random.below(kinds.len() + 1)) {
                None => ops.push(builder.direct(Direct { name: "direct", ..Direct::default() })),
                Some(TaskKind::Remote) => {
                    ops.push(builder.remote(Direct { name: "remote", ..Direct::default() }))
                }
                Some(&kind) => {
                    let task = Task { processor: processor as u32, kind, name: "task", ..Task::default() };
                    ops.push(builder.task(task));
                    edges.extend(last[processor].replace(op).filter(|_| spine));
                }
            }
            before.push(edges);
        }
        for (to, before) in before.iter().enumerate() {
            before.iter().for_each(|&from| builder.edge(ops[from], ops[to]));
        }
        Dag { builder, ops, before }
    }

    pub fn flow(&self) -> Flow {
        self.builder.clone().finish().expect("edges go forward")
    }

    /// By operation: whether it is in `from` or comes after one that is.
    pub fn reach(&self, from: &[usize]) -> Vec<bool> {
        let mut reached = vec![false; self.ops.len()];
        for op in 0..self.ops.len() {
            reached[op] = from.contains(&op) || self.before[op].iter().any(|&before| reached[before]);
        }
        reached
    }
}

/// By operation: the operations of the next run that the compiled flow orders after it.
pub fn carried(flow: &Flow) -> Vec<Vec<usize>> {
    let mut carried = vec![Vec::new(); flow.steps().len()];
    for (at, step) in flow.steps().iter().enumerate() {
        for &segment in flow.carried().of(at as u32) {
            let head = flow.segments()[segment as usize].first;
            carried[step.op.index()].push(flow.steps()[head as usize].op.index());
        }
    }
    carried
}
