//! Dropout: zeroes random elements and scales up the others.
//!
//! Reads `x[n]` and `hyper[8]`, whose element 3 is the step number; writes `y[n]`, and adds to it if `accumulate`. The
//! elements are a tile of a larger tensor: the one at `(i, j, k, l)` has there the index `start + (i, j, k, l) · strides`,
//! and is kept iff the uniform number of (seed, salt, step, index) is at least `rate`. The gradient of the kernel is the
//! kernel itself, applied to dy.

mod walk;

use std::ops::Range;

use phalanx_ir::tasks::{Mask as TaskMask, TaskOp, TaskView};

use crate::grid::{Grid, padded};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, Sizes, Work, dispatch, params, random, signature};
use walk::{Masked, Walk};

params! {
    /// Which elements of a tile are zeroed, step by step.
    pub struct Mask {
        /// The probability of zeroing an element, below 1.
        pub rate: f32,
        /// The seed of the training run.
        pub seed: u64,
        /// Tells this dropout from the others of the model.
        pub salt: u64,
        /// The index of element 0 in the whole.
        pub start: u64,
        /// The extents of the tile; leading ones where it has fewer dimensions.
        pub extents: [usize; 4],
        /// How far the index of the whole moves with a step along each dimension; fastest if the last is 1.
        pub strides: [u64; 4],
    }
}

params! {
/// The parameters of `dropout`.
pub struct DropoutParams {
    /// Number of elements, which is that of the mask's tile.
    pub n: usize,
    /// Whether y is added to instead of overwritten.
    pub accumulate: bool,
    /// Which of them are zeroed.
    pub mask: Mask,
}}

impl Mask {
    /// The mask over the tile that a task writes first; all others of a chain are the same tile of their tensors.
    pub(crate) fn of(task: &TaskView<'_>, mask: TaskMask) -> Result<Self, String> {
        let buffer = task.target(0)?;
        let extents = buffer.ty.shape.dims();
        let zeros = vec![0; extents.len()];
        let (origin, global) = match &buffer.tile {
            Some(tile) => (&tile.origin, tile.global.dims()),
            None => (&zeros, extents),
        };
        Mask::at_tile(mask, extents, origin, global).ok_or_else(|| {
            format!(
                "the tile {} cuts the blocks of the batch, or more than 4 dimensions; cut fewer dimensions or use \
                 fewer microbatches",
                buffer.ty
            )
        })
    }

    /// The mask over a tile of these extents, which begins at `origin` of a tensor `global`; none if the tile cuts the blocks of
    /// the batch, or more than 4 dimensions.
    pub(crate) fn at_tile(
        mask: TaskMask,
        extents: &[usize],
        origin: &[usize],
        global: &[usize],
    ) -> Option<Mask> {
        let TaskMask { rate, seed, salt, part, parts, blocks, axis } = mask;
        let walk = Masked { extents, origin, global, part, parts, blocks, axis }.walk()?;
        let Walk { extents, strides, start } = walk;
        Some(Mask { rate, seed, salt, start, extents, strides })
    }

    /// The same mask at the beginning of its tensor and with no seed.
    pub(crate) fn anywhere(self) -> Mask {
        Mask { seed: 0, salt: 0, start: 0, ..self }
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
        let &Drawn { seed, rate, .. } = self;
        self.for_each_run(first, y.len(), |part, start, stride| {
            let run = Run { seed, rate, accumulate, start };
            let (y, x) = (&mut y[part.clone()], &x[part]);
            match stride {
                1 => apply(y, x, run),
                _ => apply_apart(y, x, run, stride),
            }
        });
    }

    /// The seed of this step.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Shows the `len` elements of the tile from `first` on as runs: which of them, the index of the first in the whole,
    /// and how far indices step.
    pub(crate) fn for_each_run(&self, first: usize, len: usize, mut run: impl FnMut(Range<usize>, u64, u64)) {
        let [stride] = self.grid.row_strides();
        self.grid.for_each_piece(first, len, |part, [offset]| {
            run(part, self.start + offset as u64, stride as u64);
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

impl Kernel for DropoutParams {
    signature!("dropout": x, hyper => y by dropout_reference, dropout);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let TaskOp::Dropout { mask, accumulate } = *task.op() else {
            return Err("it executes dropouts".into());
        };
        Ok(DropoutParams { n: task.write(0)?.elements(), accumulate, mask: Mask::of(task, mask)? })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }

    fn anywhere(self) -> Self {
        DropoutParams { mask: self.mask.anywhere(), ..self }
    }
}

#[cfg(test)]
mod tests;
