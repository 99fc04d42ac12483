//! Sums of squares of the blocks of a tensor, for gradient norms, and the scale that clips them.
//!
//! `sum_squares` reads x `[rows, middle, cols]` and writes `[row_leaves, middle_leaves, col_leaves]`: the sum of squares of
//! each block, where every dimension is cut into as many equal parts as it has leaves. A matrix has no middle; if `merged`,
//! all dimensions but the first are the columns. Inside a block the squares go to 16 `f64` lanes by column and
//! the block's sum is rounded to `f32`. A block knows nothing of its neighbors, so a tile gives its part of the result.
//! `clip_scale` reads the sum of all `[1]` and writes `[2]`: the norm and the factor that brings it to at most
//! `max_norm`.

use phalanx_ir::tasks::TaskView;

use crate::rows::LANES;
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// Settings of `sum_squares`.
    pub struct SumSquares {
        /// How many rows.
        pub rows: usize,
        /// How many parts each row has.
        pub middle: usize,
        /// Elements of a part.
        pub cols: usize,
        /// Blocks of rows.
        pub row_leaves: usize,
        /// Blocks of parts.
        pub middle_leaves: usize,
        /// Blocks of columns.
        pub col_leaves: usize,
    }
}

params! {
    /// Settings of `clip_scale`.
    pub struct ClipScale {
        /// The largest norm that is left alone.
        pub max_norm: f32,
    }
}

/// Where blocks lie.
struct Blocks {
    /// Rows of a block, parts of each of them, elements of each of these.
    extents: [usize; 3],
    /// Elements from one row to the next.
    row: usize,
    /// Elements from one part to the next.
    part: usize,
}

impl SumSquares {
    fn count(&self) -> usize {
        self.row_leaves * self.middle_leaves * self.col_leaves
    }

    fn layout(&self) -> Blocks {
        let extents =
            [self.rows / self.row_leaves, self.middle / self.middle_leaves, self.cols / self.col_leaves];
        Blocks { extents, row: self.middle * self.cols, part: self.cols }
    }

    /// The first element of a block.
    fn start(&self, block: usize) -> usize {
        let Blocks { extents: [height, parts, width], row, part } = self.layout();
        let (rest, column) = (block / self.col_leaves, block % self.col_leaves);
        let (down, middle) = (rest / self.middle_leaves, rest % self.middle_leaves);
        down * height * row + middle * parts * part + column * width
    }
}

/// Sums the squares of every block of `x`.
pub fn sum_squares_reference(out: &mut [f32], x: &[f32], params: SumSquares) {
    let Blocks { extents: [height, parts, width], row, part } = params.layout();
    for (block, out) in out.iter_mut().enumerate().take(params.count()) {
        let runs = (0..height).flat_map(|down| (0..parts).map(move |middle| down * row + middle * part));
        let squares = runs.flat_map(|run| &x[params.start(block) + run..][..width]);
        *out = squares.map(|&x| f64::from(x).powi(2)).sum::<f64>() as f32;
    }
}

/// Sums the squares of every block of `x`, fast.
pub fn sum_squares(out: &mut [f32], x: &[f32], params: SumSquares, launch: &mut Launch<'_>) {
    let blocks = params.count();
    launch.split_rows(blocks, [(&mut out[..blocks], 1)], |range, [out], _| {
        for (block, out) in range.zip(out) {
            *out = block_squares(&x[params.start(block)..], params.layout());
        }
    });
}

dispatch! {
    /// The squares of a block.
    fn block_squares(x: &[f32], blocks: Blocks) -> f32 {
        let Blocks { extents: [height, parts, width], row, part } = blocks;
        let mut lanes = [0.0f64; LANES];
        for (down, middle) in (0..height).flat_map(|down| (0..parts).map(move |middle| (down, middle))) {
            let (chunks, tail) = x[down * row + middle * part..][..width].as_chunks::<LANES>();
            for chunk in chunks {
                for (lane, &x) in lanes.iter_mut().zip(chunk) {
                    *lane = f64::from(x).mul_add(f64::from(x), *lane);
                }
            }
            for (lane, &x) in lanes.iter_mut().zip(tail) {
                *lane = f64::from(x).mul_add(f64::from(x), *lane);
            }
        }
        lanes.iter().sum::<f64>() as f32
    }
}

/// Writes the norm and the clipping scale to `out`.
pub fn clip_scale(out: &mut [f32], sum_squares: &[f32], params: ClipScale) {
    let norm = sum_squares[0].sqrt();
    out[0] = norm;
    out[1] = (params.max_norm / (norm + 1e-6)).min(1.0);
}

impl Kernel for SumSquares {
    signature!("sum_squares": x => sums by sum_squares_reference, sum_squares);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (row_leaves, col_leaves) = (task.attr("row_leaves")?, task.attr("col_leaves")?);
        let (middle_leaves, merged) = (task.attr_or("middle_leaves", 1)?, task.attr_or("merged", false)?);
        let x = task.read(0)?;
        let (first, inner) = (x.dims().first().copied().unwrap_or(1), x.rows());
        let (rows, middle, cols) = match (merged, middle_leaves) {
            (true, _) => (first, 1, x.elements() / first),
            (false, 1) => (inner, 1, x.last()),
            (false, _) => (first, inner / first, x.last()),
        };
        Ok(SumSquares { rows, middle, cols, row_leaves, middle_leaves, col_leaves })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(2.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.middle * self.cols, cores)
    }
}

impl Kernel for ClipScale {
    signature!("clip_scale": sum => clip);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(ClipScale { max_norm: task.attr("max_norm")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        clip_scale(call.write(0), call.read(0), *self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, assert_close, values};
    use crate::{Team, Words};

    /// Blocks are exact up to one rounding to 2^-24.
    const TOLERANCE: f32 = 1e-6;

    fn case(params: SumSquares) -> Case {
        Case::new("sum_squares", params.to_words())
            .read(values(params.rows * params.middle * params.cols, 1))
            .write(vec![0.0; params.count()])
    }

    /// A matrix.
    fn matrix([rows, cols]: [usize; 2], [row_leaves, col_leaves]: [usize; 2]) -> SumSquares {
        SumSquares { rows, middle: 1, cols, row_leaves, middle_leaves: 1, col_leaves }
    }

    #[test]
    fn fast_equals_reference() {
        for (rows, row_leaves) in [(1, 1), (3, 1), (8, 8), (100, 4)] {
            for (cols, col_leaves) in [(1, 1), (7, 1), (16, 2), (17, 1), (132, 4)] {
                case(matrix([rows, cols], [row_leaves, col_leaves])).check(TOLERANCE);
                let thick = matrix([rows, cols], [row_leaves, col_leaves]);
                case(SumSquares { middle: 6, middle_leaves: 2, ..thick }).check(TOLERANCE);
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        let flat = matrix([136, 132], [8, 4]);
        case(flat).check_bits();
        case(SumSquares { rows: 24, middle: 6, middle_leaves: 2, ..flat }).check_bits();
    }

    #[test]
    fn a_tile_gives_its_tile_of_the_sums() {
        let (x, want) = (values(16 * 120, 1), case(matrix([16, 120], [8, 4])).fast(&Team::new(1)).remove(0));
        let tile = |x: &[f32], stride: usize, [top, left, height, width]: [usize; 4]| -> Vec<f32> {
            (top..top + height).flat_map(|row| &x[row * stride + left..][..width]).copied().collect()
        };
        for (down, across) in [(1, 2), (1, 4), (2, 1), (8, 1), (4, 2), (8, 4)] {
            let (rows, cols, row_leaves, col_leaves) = (16 / down, 120 / across, 8 / down, 4 / across);
            for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
                let mut part = case(matrix([rows, cols], [row_leaves, col_leaves]));
                part.reads[0] = tile(&x, 120, [i * rows, j * cols, rows, cols]).into();
                let sums = tile(&want, 4, [i * row_leaves, j * col_leaves, row_leaves, col_leaves]);
                assert_eq!(part.fast(&Team::new(2))[0], sums, "tile {i}, {j} of {down} by {across}");
            }
        }
    }

    #[test]
    fn a_tile_of_the_middle_gives_its_tile_of_the_sums() {
        let whole = SumSquares { middle: 8, middle_leaves: 4, ..matrix([4, 20], [2, 2]) };
        let (x, want) = (values(4 * 8 * 20, 1), case(whole).fast(&Team::new(1)).remove(0));
        for half in 0..2 {
            let mut part = case(SumSquares { middle: 4, middle_leaves: 2, ..whole });
            let rows = (0..4).flat_map(|row| &x[(row * 8 + half * 4) * 20..][..80]).copied();
            part.reads[0] = rows.collect::<Vec<f32>>().into();
            let sums: Vec<f32> =
                (0..2).flat_map(|row| &want[(row * 4 + half * 2) * 2..][..4]).copied().collect();
            assert_eq!(part.fast(&Team::new(2))[0], sums, "half {half}");
        }
    }

    #[test]
    fn only_large_norms_are_scaled() {
        let scale = |sum: f32| {
            let params = ClipScale { max_norm: 1.0 };
            let case = Case::new("clip_scale", params.to_words()).read(vec![sum]).write(vec![0.0; 2]);
            case.fast(&Team::new(1)).remove(0)
        };
        assert_close(&scale(0.25), &[0.5, 1.0], TOLERANCE, "small");
        assert_close(&scale(16.0), &[4.0, 0.25], TOLERANCE, "large");
        assert_eq!(scale(0.0), [0.0, 1.0]);
    }
}
