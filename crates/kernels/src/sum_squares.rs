//! Sums of squares of the blocks of a matrix, for gradient norms, and the scale that clips them.
//!
//! `sum_squares` reads x `[rows, cols]` and writes `[row_leaves, col_leaves]`: the sum of squares of each block of
//! `rows / row_leaves` by `cols / col_leaves` elements. Inside a block the squares go to 16 `f64` lanes by column and
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
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows.
        pub row_leaves: usize,
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

/// Sums the squares of every block of `x`.
pub fn sum_squares_reference(out: &mut [f32], x: &[f32], params: SumSquares) {
    let SumSquares { rows, cols, row_leaves, col_leaves } = params;
    let (height, width) = (rows / row_leaves, cols / col_leaves);
    let block = |i: usize, j: usize| -> f32 {
        let rows = i * height..(i + 1) * height;
        let squares =
            rows.flat_map(|row| &x[row * cols + j * width..][..width]).map(|&x| f64::from(x).powi(2));
        squares.sum::<f64>() as f32
    };
    for (at, out) in out.iter_mut().enumerate().take(row_leaves * col_leaves) {
        *out = block(at / col_leaves, at % col_leaves);
    }
}

/// Sums the squares of every block of `x`, fast.
pub fn sum_squares(out: &mut [f32], x: &[f32], params: SumSquares, launch: &mut Launch<'_>) {
    let SumSquares { rows, cols, row_leaves, col_leaves } = params;
    let (height, width) = (rows / row_leaves, cols / col_leaves);
    let blocks = row_leaves * col_leaves;
    launch.split_rows(blocks, [(&mut out[..blocks], 1)], |range, [out], _| {
        for (block, out) in range.zip(out) {
            let start = block / col_leaves * height * cols + block % col_leaves * width;
            *out = block_squares(&x[start..], height, width, cols);
        }
    });
}

dispatch! {
    /// The squares of a block of `height` rows of `width`, a row every `stride`.
    fn block_squares(x: &[f32], height: usize, width: usize, stride: usize) -> f32 {
        let mut lanes = [0.0f64; LANES];
        for row in 0..height {
            let (chunks, tail) = x[row * stride..][..width].as_chunks::<LANES>();
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
        let (rows, cols) = (task.read(0)?.rows(), task.read(0)?.last());
        let (row_leaves, col_leaves) = (task.attr("row_leaves")?, task.attr("col_leaves")?);
        Ok(SumSquares { rows, cols, row_leaves, col_leaves })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(2.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.cols, cores)
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
            .read(values(params.rows * params.cols, 1))
            .write(vec![0.0; params.row_leaves * params.col_leaves])
    }

    #[test]
    fn fast_equals_reference() {
        for (rows, row_leaves) in [(1, 1), (3, 1), (8, 8), (100, 4)] {
            for (cols, col_leaves) in [(1, 1), (7, 1), (16, 2), (17, 1), (132, 4)] {
                case(SumSquares { rows, cols, row_leaves, col_leaves }).check(TOLERANCE);
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        case(SumSquares { rows: 136, cols: 132, row_leaves: 8, col_leaves: 4 }).check_bits();
    }

    #[test]
    fn a_tile_gives_its_tile_of_the_sums() {
        const WHOLE: SumSquares = SumSquares { rows: 16, cols: 120, row_leaves: 8, col_leaves: 4 };
        let (x, want) = (values(16 * 120, 1), case(WHOLE).fast(&Team::new(1)).remove(0));
        let tile = |x: &[f32], stride: usize, [top, left, height, width]: [usize; 4]| -> Vec<f32> {
            (top..top + height).flat_map(|row| &x[row * stride + left..][..width]).copied().collect()
        };
        for (down, across) in [(1, 2), (1, 4), (2, 1), (8, 1), (4, 2), (8, 4)] {
            let (rows, cols, row_leaves, col_leaves) = (16 / down, 120 / across, 8 / down, 4 / across);
            for (i, j) in (0..down).flat_map(|i| (0..across).map(move |j| (i, j))) {
                let mut part = case(SumSquares { rows, cols, row_leaves, col_leaves });
                part.reads[0] = tile(&x, 120, [i * rows, j * cols, rows, cols]).into();
                let sums = tile(&want, 4, [i * row_leaves, j * col_leaves, row_leaves, col_leaves]);
                assert_eq!(part.fast(&Team::new(2))[0], sums, "tile {i}, {j} of {down} by {across}");
            }
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
