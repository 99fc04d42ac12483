//! Chains: several element-wise functions in a row, whose intermediate values never reach memory.
//!
//! Reads x_0 .. x_k, writes the results of some of the steps, all of `n` elements; reads `hyper[8]`, too, if it drops
//! elements. Nothing accumulates. Every step is computed by the very function that its own kernel uses (`unary`,
//! `unary_grad`, `binary`, `binary_grad`, `dropout`), piece by piece: those of all values fit the first-level cache
//! together. So the bits are those of the steps as kernels of their own.

use std::ops::Range;

use arrayvec::ArrayVec;
use phalanx_ir::names;

use crate::binary::{self, BinaryGradParams, BinaryKind, BinaryParams, Broadcast};
use crate::call::{Call, Kernel, MAX_ARGS, Word};
use crate::dropout::{self, DropoutParams, Mask};
use crate::random;
use crate::spmd::{Launch, Parts, Workspace, by_work};
use crate::unary::{self, UnaryGradParams, UnaryKind, UnaryParams};

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `f(x)`, with the scalar of the scalar kinds.
    Unary(UnaryKind, f32),
    /// `dy · f'(x)` of (x, dy).
    UnaryGrad(UnaryKind, f32),
    /// `f(a, b)`.
    Binary(BinaryKind),
    /// `dy · ∂f/∂side` of (a, b, dy).
    BinaryGrad(BinaryKind, usize),
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

impl Step {
    /// What it takes, which function it is, and then the settings of that.
    fn to_words(self) -> Vec<u64> {
        let (tag, settings) = match self.function {
            Function::Unary(kind, scalar) => (0, vec![kind.to_word(), scalar.to_word()]),
            Function::UnaryGrad(kind, scalar) => (1, vec![kind.to_word(), scalar.to_word()]),
            Function::Binary(kind) => (2, vec![kind.to_word()]),
            Function::BinaryGrad(kind, side) => (3, vec![kind.to_word(), side.to_word()]),
            Function::Dropout(mask) => (4, mask.to_words().to_vec()),
        };
        [&self.values.map(Word::to_word)[..], &[tag], &settings].concat()
    }

    /// The step that these words begin with, which are left without it.
    fn take(words: &mut &[u64]) -> Self {
        let (head, settings) = words.split_at(4);
        let (function, used) = match head[3] {
            0 => (Function::Unary(Word::from_word(settings[0]), Word::from_word(settings[1])), 2),
            1 => (Function::UnaryGrad(Word::from_word(settings[0]), Word::from_word(settings[1])), 2),
            2 => (Function::Binary(Word::from_word(settings[0])), 1),
            3 => (Function::BinaryGrad(Word::from_word(settings[0]), Word::from_word(settings[1])), 2),
            _ => (Function::Dropout(Mask::from_words(settings)), Mask::WORDS),
        };
        *words = &settings[used..];
        Step { function, values: std::array::from_fn(|i| Word::from_word(head[i])) }
    }

    /// Computes a piece of the step from element `first` on; `value` gives the same piece of any earlier value.
    fn apply<'a>(&self, y: &mut [f32], first: usize, hyper: &[f32], value: impl Fn(usize) -> &'a [f32]) {
        let [a, b, c] = self.values;
        match self.function {
            Function::Unary(kind, scalar) => unary::apply(kind, scalar, y, value(a)),
            Function::UnaryGrad(kind, scalar) => {
                let params = UnaryGradParams { n: y.len(), kind, scalar, accumulate: false };
                unary::apply_grad(params, y, value(a), value(b));
            }
            Function::Binary(kind) => binary::combine(kind, y, value(a), value(b)),
            Function::BinaryGrad(kind, side) => {
                binary::combine_grad((kind, side), y, (value(a), value(b)), value(c));
            }
            Function::Dropout(mask) => mask.at(hyper).apply(y, value(a), first, false),
        }
    }

    /// Computes element `i` of the step by the reference kernels.
    fn element(&self, i: usize, hyper: &[f32], value: impl Fn(usize) -> f32) -> f32 {
        let [a, b, c] = self.values.map(|number| [value(number)]);
        let (mut y, broadcast) = ([0.0], Broadcast::new(&[1], &[1]));
        match self.function {
            Function::Unary(kind, scalar) => {
                unary::unary_reference(&mut y, &a, UnaryParams { n: 1, kind, scalar });
            }
            Function::UnaryGrad(kind, scalar) => {
                let params = UnaryGradParams { n: 1, kind, scalar, accumulate: false };
                unary::unary_grad_reference(&mut y, &a, &b, params);
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

impl ChainParams {
    /// The parameter words of these settings.
    pub fn to_words(&self) -> Vec<u64> {
        let head = [self.n, self.reads, self.steps.len()].map(Word::to_word);
        let steps = self.steps.iter().flat_map(|step| step.to_words());
        let results = self.results.iter().map(|&step| step.to_word());
        head.into_iter().chain(steps).chain(results).collect()
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        let [n, reads, count] = std::array::from_fn(|i| Word::from_word(words[i]));
        let mut rest = &words[3..];
        let steps = (0..count).map(|_| Step::take(&mut rest)).collect();
        ChainParams { n, reads, steps, results: rest.iter().map(|&step| Word::from_word(step)).collect() }
    }

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
        self.steps.len() - self.results.len()
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

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[Kernel {
    task: None,
    work: None,
    name: "chain",
    arguments: |words| {
        let params = ChainParams::from_words(words);
        names!(x[params.reads], hyper if params.is_random() => y[params.results.len()])
    },
    fast: |call| {
        let (params, xs, outs) = (ChainParams::from_words(call.params), operands(call), outputs(call));
        chain(outs, &xs, &params, &mut call.launch);
    },
    reference: |call| {
        let (params, xs, mut outs) = (ChainParams::from_words(call.params), operands(call), outputs(call));
        chain_reference(&mut outs, &xs, &params);
    },
    blocks: |words, cores| by_work(ChainParams::from_words(words).n, cores),
    workspace: |words, _| Workspace::of::<f32>(0, ChainParams::from_words(words).hidden() * PIECE),
}];

#[cfg(test)]
mod tests;
