//! Chains: several element-wise functions in a row, whose intermediate values never reach memory.
//!
//! Reads x_0 .. x_k, writes the results of some of the steps, all of `n` elements; reads `hyper[8]`, too, if it drops
//! elements. Nothing accumulates. Every step is computed by the very function that its own kernel uses (`unary`,
//! `unary_grad`, `binary`, `binary_grad`, `dropout`), piece by piece: those of all values fit the first-level cache
//! together. So the bits are those of the steps as kernels of their own.

use std::ops::Range;

use arrayvec::ArrayVec;
use phalanx_ir::tasks::{self, Source, TaskOp, TaskView};
use phalanx_ir::{Binary, Names, Unary, names};

use crate::binary::{self, BinaryGradParams, BinaryParams, Broadcast};
use crate::call::MAX_ARGS;
use crate::dropout::{self, DropoutParams, Mask};
use crate::random;
use crate::spmd::{Launch, Parts, Workspace, by_work};
use crate::unary::{self, UnaryGradParams, UnaryParams};
use crate::{Call, Kernel, Sizes, Words, Work};

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `f(x)`.
    Unary(Unary),
    /// `dy · f'(x)` of (x, dy).
    UnaryGrad(Unary),
    /// The same with the slope at x rounded to `bf16`.
    RoundedGrad(Unary),
    /// `f(a, b)`.
    Binary(Binary),
    /// `dy · ∂f/∂side` of (a, b, dy).
    BinaryGrad(Binary, usize),
    /// `x` where the mask keeps it, scaled up, else 0.
    Dropout(Mask),
}

/// A function and the values it takes: the operands of the kernel are numbered first, then the steps. Unused numbers are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// What is computed.
    pub function: Function,
    /// From which values.
    pub values: [usize; 3],
}

/// The parameters of `chain`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainParams {
    /// Number of elements.
    pub n: usize,
    /// How many operands there are, without hyper.
    pub reads: usize,
    /// The steps; each takes values of smaller number than its own.
    pub steps: ArrayVec<Step, MAX_ARGS>,
    /// Which steps are written, by slot; no step twice.
    pub results: ArrayVec<usize, MAX_ARGS>,
}

/// What it takes, which function it is, and then the settings of that.
impl Words for Step {
    fn put(&self, words: &mut Vec<u64>) {
        self.values.put(words);
        match self.function {
            Function::Unary(kind) => (0u64.put(words), kind.put(words)),
            Function::UnaryGrad(kind) => (1u64.put(words), kind.put(words)),
            Function::Binary(kind) => (2u64.put(words), kind.put(words)),
            Function::BinaryGrad(kind, side) => ([3, kind as usize].put(words), side.put(words)),
            Function::Dropout(mask) => (4u64.put(words), mask.put(words)),
            Function::RoundedGrad(kind) => (5u64.put(words), kind.put(words)),
        };
    }

    fn take(words: &mut &[u64]) -> Self {
        let (values, tag) = (Words::take(words), u64::take(words));
        let function = match tag {
            0 => Function::Unary(Words::take(words)),
            1 => Function::UnaryGrad(Words::take(words)),
            2 => Function::Binary(Words::take(words)),
            3 => Function::BinaryGrad(Words::take(words), Words::take(words)),
            4 => Function::Dropout(Words::take(words)),
            _ => Function::RoundedGrad(Words::take(words)),
        };
        Step { function, values }
    }
}

impl Step {
    /// The step of a task that has so many operands beside hyper.
    fn of(task: &TaskView<'_>, step: &tasks::Step, reads: usize) -> Result<Self, String> {
        let mut values = [0; 3];
        for (value, source) in values.iter_mut().zip(&step.sources) {
            *value = match *source {
                Source::Read(slot) => slot,
                Source::Step(step) => reads + step,
            };
        }
        let function = match step.function {
            tasks::Function::Unary(kind) => Function::Unary(kind),
            tasks::Function::UnaryGrad(kind) => Function::UnaryGrad(kind),
            tasks::Function::RoundedGrad(kind) => Function::RoundedGrad(kind),
            tasks::Function::Binary(kind) => Function::Binary(kind),
            tasks::Function::BinaryGrad(kind, side) => Function::BinaryGrad(kind, side),
            tasks::Function::Dropout(mask) => Function::Dropout(Mask::of(task, mask)?),
        };
        Ok(Step { function, values })
    }

    /// Computes a piece of the step from element `first` on; `value` gives the same piece of any earlier value.
    fn apply<'a>(&self, y: &mut [f32], first: usize, hyper: &[f32], value: impl Fn(usize) -> &'a [f32]) {
        let [a, b, c] = self.values;
        match self.function {
            Function::Unary(kind) => unary::apply(kind, y, value(a)),
            Function::UnaryGrad(kind) | Function::RoundedGrad(kind) => {
                let params = self.gradient(kind, y.len());
                unary::apply_grad(params, y, value(a), value(b));
            }
            Function::Binary(kind) => binary::combine(kind, y, value(a), value(b)),
            Function::BinaryGrad(kind, side) => {
                binary::combine_grad((kind, side), y, (value(a), value(b)), value(c));
            }
            Function::Dropout(mask) => mask.at(hyper).apply(y, value(a), first, false),
        }
    }

    /// Its parameters as a kernel of its own, if it is the gradient of a function of one element.
    fn gradient(&self, kind: Unary, n: usize) -> UnaryGradParams {
        let rounded = matches!(self.function, Function::RoundedGrad(_));
        UnaryGradParams { n, kind, accumulate: false, rounded }
    }

    /// Computes element `i` of the step by the reference kernels.
    fn element(&self, i: usize, hyper: &[f32], value: impl Fn(usize) -> f32) -> f32 {
        let [a, b, c] = self.values.map(|number| [value(number)]);
        let (mut y, broadcast) = ([0.0], Broadcast::new(&[1], &[1]));
        match self.function {
            Function::Unary(kind) => unary::unary_reference(&mut y, &a, UnaryParams { n: 1, kind }),
            Function::UnaryGrad(kind) | Function::RoundedGrad(kind) => {
                unary::unary_grad_reference(&mut y, &a, &b, self.gradient(kind, 1));
            }
            Function::Binary(kind) => {
                binary::binary_reference(&mut y, &a, &b, BinaryParams { kind, broadcast });
            }
            Function::BinaryGrad(kind, side) => {
                let params = BinaryGradParams { kind, side, broadcast };
                binary::binary_grad_reference(&mut y, &a, &b, &c, params);
            }
            Function::Dropout(mask) => {
                let params = DropoutParams { n: 1, accumulate: false, mask: mask.element(i) };
                dropout::dropout_reference(&mut y, &a, hyper, params);
            }
        }
        y[0]
    }
}

/// The results are the words that are left.
impl Words for ChainParams {
    fn put(&self, words: &mut Vec<u64>) {
        [self.n, self.reads].put(words);
        self.steps.put(words);
        self.results.iter().for_each(|step| step.put(words));
    }

    fn take(words: &mut &[u64]) -> Self {
        let [n, reads] = Words::take(words);
        let steps = Words::take(words);
        let results = std::mem::take(words).iter().take(MAX_ARGS).map(|&step| step as usize).collect();
        ChainParams { n, reads, steps, results }
    }
}

impl ChainParams {
    /// Whether a step draws random numbers, so that hyper comes after the operands.
    fn is_random(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.function, Function::Dropout(_)))
    }

    /// The operands, and hyper, of what the kernel reads.
    fn operands<'a, 'b>(&self, reads: &'a [&'b [f32]]) -> (&'a [&'b [f32]], &'b [f32]) {
        (&reads[..self.reads], reads.get(self.reads).copied().unwrap_or_default())
    }

    /// How many steps are not written.
    fn hidden(&self) -> usize {
        self.steps.len().saturating_sub(self.results.len())
    }
}

/// Elements of a piece: with a few operands and steps, all of it fits 32 KiB.
const PIECE: usize = 1024;
/// Elements per share boundary: whole cache lines, and what is drawn together.
const LINE: usize = random::GROUP;

/// Every step for every element, one element after the other.
pub fn chain_reference(outs: &mut [&mut [f32]], xs: &[&[f32]], params: &ChainParams) {
    let (xs, hyper) = params.operands(xs);
    for i in 0..params.n {
        let mut values: ArrayVec<f32, { 2 * MAX_ARGS }> = xs.iter().map(|x| x[i]).collect();
        for step in &params.steps {
            values.push(step.element(i, hyper, |number| values[number]));
        }
        for (out, step) in outs.iter_mut().zip(&params.results) {
            out[i] = values[params.reads + step];
        }
    }
}

/// The fast version of [`chain_reference`].
pub fn chain(
    outs: ArrayVec<&mut [f32], MAX_ARGS>,
    xs: &[&[f32]],
    params: &ChainParams,
    launch: &mut Launch<'_>,
) {
    let outs: ArrayVec<Parts<'_, f32>, MAX_ARGS> = outs.into_iter().map(Parts::new).collect();
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        let share = block.share(params.n.div_ceil(LINE));
        let end = params.n.min(share.end * LINE);
        for first in (share.start * LINE..end).step_by(PIECE) {
            let range = first..end.min(first + PIECE);
            let mut hidden = own.chunks_exact_mut(PIECE);
            let mut place = |step: usize| match params.results.iter().position(|&result| result == step) {
                // SAFETY: shares are disjoint, pieces of a share too, and no step is written twice.
                Some(slot) => unsafe { outs[slot].part(range.clone()) },
                None => {
                    &mut hidden.next().expect("the workspace has a piece for each hidden step")[..range.len()]
                }
            };
            let places = (0..params.steps.len()).map(&mut place).collect();
            piece(places, xs, params, range.clone());
        }
    });
}

/// Computes one piece of every step into its place.
fn piece(
    mut places: ArrayVec<&mut [f32], MAX_ARGS>,
    xs: &[&[f32]],
    params: &ChainParams,
    range: Range<usize>,
) {
    let (xs, hyper) = params.operands(xs);
    for (at, step) in params.steps.iter().enumerate() {
        let (before, rest) = places.split_at_mut(at);
        step.apply(rest[0], range.start, hyper, |number| match number.checked_sub(params.reads) {
            Some(step) => &*before[step],
            None => &xs[number][range.clone()],
        });
    }
}

fn operands<'a>(call: &Call<'a>) -> ArrayVec<&'a [f32], MAX_ARGS> {
    (0..call.reads.len()).map(|slot| call.read(slot)).collect()
}

fn outputs<'a>(call: &mut Call<'a>) -> ArrayVec<&'a mut [f32], MAX_ARGS> {
    (0..call.writes.len()).map(|slot| call.write(slot)).collect()
}

impl Kernel for ChainParams {
    const NAME: &'static str = "chain";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let TaskOp::Chain { steps, results } = task.op() else {
            return Err("it executes chains".into());
        };
        let reads = task.sources().count() - usize::from(steps.is_random());
        let steps = steps.0.iter().map(|step| Step::of(task, step, reads)).collect::<Result<_, _>>()?;
        Ok(ChainParams {
            n: task.write(0)?.elements(),
            reads,
            steps,
            results: results.iter().copied().collect(),
        })
    }

    fn arguments(&self) -> Names {
        names!(x[self.reads], hyper if self.is_random() => y[self.results.len()])
    }

    fn reference(&self, call: &mut Call<'_>) {
        chain_reference(&mut outputs(call), &operands(call), self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        chain(outputs(call), &operands(call), self, &mut call.launch);
    }

    /// One function a step.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.n as f64 * self.steps.len() as f64, false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::of::<f32>(0, self.hidden() * PIECE)
    }

    fn anywhere(mut self) -> Self {
        for step in &mut self.steps {
            if let Function::Dropout(mask) = &mut step.function {
                *mask = mask.anywhere();
            }
        }
        self
    }
}

#[cfg(test)]
mod tests;
