//! Dropout: zeroes random elements and scales up the others.
//!
//! Reads `x[n]` and `hyper[8]`, whose element 3 is the step number; writes `y[n]`, and adds to it if `accumulate`. The
//! elements are a tile of a larger tensor: the one at `(i, j, k, l)` has there the index `start + (i, j, k, l) · strides`,
//! and is kept iff the uniform number of (seed, salt, step, index) is at least `rate`. The gradient of the kernel is the
//! kernel itself, applied to dy.

use phalanx_ir::names;

use crate::call::{Call, Kernel, Word, no_workspace};
use crate::grid::{Grid, padded};
use crate::spmd::{Launch, by_work};
use crate::{dispatch, random};

/// Which elements of a tile are zeroed, step by step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// The probability of zeroing an element, below 1.
    pub rate: f32,
    /// The seed of the training run.
    pub seed: u64,
    /// Tells this dropout from the others of the model.
    pub salt: u64,
    /// The extents of the tile; leading ones where it has fewer dimensions.
    pub extents: [usize; 4],
    /// How far the index of the whole moves with a step along each dimension; fastest if the last is 1.
    pub strides: [u64; 4],
    /// The index of element 0 in the whole.
    pub start: u64,
}

/// The parameters of `dropout`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutParams {
    /// Number of elements, which is that of the mask's tile.
    pub n: usize,
    /// Whether y is added to instead of overwritten.
    pub accumulate: bool,
    /// Which of them are zeroed.
    pub mask: Mask,
}

impl Mask {
    /// Parameter words of a mask.
    pub(crate) const WORDS: usize = 12;

    /// The parameter words of this mask.
    pub(crate) fn to_words(self) -> [u64; Mask::WORDS] {
        let Mask { rate, seed, salt, extents: [a, b, c, d], strides: [i, j, k, l], start } = self;
        let [a, b, c, d] = [a, b, c, d].map(Word::to_word);
        [rate.to_word(), seed, salt, start, a, b, c, d, i, j, k, l]
    }

    /// The mask these parameter words stand for.
    pub(crate) fn from_words(words: &[u64]) -> Self {
        let [rate, seed, salt, start] = std::array::from_fn(|i| words[i]);
        Mask {
            rate: Word::from_word(rate),
            seed,
            salt,
            extents: std::array::from_fn(|i| Word::from_word(words[4 + i])),
            strides: std::array::from_fn(|i| words[8 + i]),
            start,
        }
    }

    /// The mask of element `i` alone.
    pub(crate) fn element(self, i: usize) -> Mask {
        let (mut start, mut rest) = (self.start, i);
        for (&extent, stride) in self.extents.iter().zip(self.strides).rev() {
            start += (rest % extent) as u64 * stride;
            rest /= extent;
        }
        Mask { extents: [1; 4], start, ..self }
    }

    /// The mask in the step that hyper tells.
    pub(crate) fn at(self, hyper: &[f32]) -> Drawn {
        let strides = self.strides.map(|stride| stride as usize);
        Drawn {
            seed: random::derive(self.seed, self.salt, step(hyper)),
            rate: self.rate,
            start: self.start,
            grid: Grid::new(padded(&self.extents), [padded(&strides)]),
        }
    }
}

impl DropoutParams {
    /// The parameter words of these settings.
    pub fn to_words(self) -> Vec<u64> {
        [&[self.n.to_word(), self.accumulate.to_word()][..], &self.mask.to_words()].concat()
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        let [n, accumulate] = [words[0], words[1]];
        let mask = Mask::from_words(&words[2..]);
        DropoutParams { n: Word::from_word(n), accumulate: Word::from_word(accumulate), mask }
    }
}

/// The element of hyper that holds the step number.
const STEP: usize = 3;

/// The step's number: its lower 24 bits, which a float holds exactly, then the upper ones.
fn step(hyper: &[f32]) -> u64 {
    hyper[STEP] as u64 + ((hyper[STEP + 1] as u64) << 24)
}

/// `y[i] = x[i] / (1 - rate)` where element i is kept, else 0.
pub fn dropout_reference(y: &mut [f32], x: &[f32], hyper: &[f32], params: DropoutParams) {
    let DropoutParams { n, accumulate, mask } = params;
    let seed = random::derive(mask.seed, mask.salt, step(hyper));
    let scale = 1.0 / (1.0 - mask.rate);
    for i in 0..n {
        let keep = random::uniform(seed, 0, mask.element(i).start) >= mask.rate;
        let value = if keep { x[i] * scale } else { 0.0 };
        y[i] = if accumulate { y[i] + value } else { value };
    }
}

/// The fast version of [`dropout_reference`].
pub fn dropout(y: &mut [f32], x: &[f32], hyper: &[f32], params: DropoutParams, launch: &mut Launch<'_>) {
    let DropoutParams { n, accumulate, mask } = params;
    assert_eq!(n, mask.extents.iter().product(), "the extents of a tile are those of its elements");
    let (y, x, mask) = (&mut y[..n], &x[..n], mask.at(hyper));
    launch.for_each_part(y, random::GROUP, |first, y| {
        let x = &x[first..first + y.len()];
        mask.apply(y, x, first, accumulate);
    });
}

/// A mask in one step.
pub(crate) struct Drawn {
    /// The seed of this dropout and step.
    seed: u64,
    rate: f32,
    /// The index of element 0 in the whole.
    start: u64,
    /// The walk over the tile, its contiguous dimensions merged.
    grid: Grid<1>,
}

impl Drawn {
    /// Drops the elements of the tile from `first` on.
    pub(crate) fn apply(&self, y: &mut [f32], x: &[f32], first: usize, accumulate: bool) {
        let &Drawn { seed, rate, start, grid } = self;
        let [stride] = grid.row_strides();
        grid.for_each_piece(first, y.len(), |part, [offset]| {
            let run = Run { seed, rate, accumulate, start: start + offset as u64 };
            let (y, x) = (&mut y[part.clone()], &x[part]);
            match stride {
                1 => apply(y, x, run),
                _ => apply_apart(y, x, run, stride as u64),
            }
        });
    }
}

/// Elements whose indices step evenly.
#[derive(Clone, Copy)]
struct Run {
    /// The seed of this dropout and step.
    seed: u64,
    rate: f32,
    accumulate: bool,
    /// The index of the first element.
    start: u64,
}

dispatch! {
    /// Drops elements of consecutive indices.
    fn apply(y: &mut [f32], x: &[f32], run: Run) {
        let scale = 1.0 / (1.0 - run.rate);
        for piece in random::pieces(run.start, y.len()) {
            let words = random::group(run.seed, 0, piece.group);
            let (y, x) = (&mut y[piece.part.clone()], &x[piece.part]);
            for ((y, &x), &word) in y.iter_mut().zip(x).zip(&words[piece.within..]) {
                let value = if random::unit(word) >= run.rate { x * scale } else { 0.0 };
                *y = if run.accumulate { *y + value } else { value };
            }
        }
    }
}

/// Drops elements whose indices lie `stride` apart, as a tile has them that is one element wide.
fn apply_apart(y: &mut [f32], x: &[f32], run: Run, stride: u64) {
    let scale = 1.0 / (1.0 - run.rate);
    for ((y, &x), i) in y.iter_mut().zip(x).zip(0u64..) {
        let keep = random::uniform(run.seed, 0, run.start + i * stride) >= run.rate;
        let value = if keep { x * scale } else { 0.0 };
        *y = if run.accumulate { *y + value } else { value };
    }
}

fn call_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    dropout_reference(y, call.read(0), call.read(1), DropoutParams::from_words(call.params));
}

fn call_fast(call: &mut Call<'_>) {
    let y = call.write(0);
    dropout(y, call.read(0), call.read(1), DropoutParams::from_words(call.params), &mut call.launch);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[Kernel {
    task: None,
    work: None,
    name: "dropout",
    arguments: |_| names!(x, hyper => y),
    fast: call_fast,
    reference: call_reference,
    blocks: |params, cores| by_work(DropoutParams::from_words(params).n, cores),
    workspace: no_workspace,
}];

#[cfg(test)]
mod tests;
