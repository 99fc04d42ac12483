//! Sums of the columns of a matrix, as bias gradients need them.
//!
//! Reads x `[rows, cols]` and writes out `[cols]` (accumulates on request): per column a chain in ascending row inside
//! each of `leaves` blocks of rows, a tree over the blocks.

use crate::rows::{store, tree_reference, tree_rows};
use crate::{Kernel, Team, dispatch, params};

params! {
    /// Settings of `column_sum`.
    pub struct ColumnSum {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows whose sums are added as a tree.
        pub leaves: usize,
        /// Whether the sums are added to what `out` holds.
        pub accumulate: bool,
    }
}

/// The most columns summed at once: their running sums stay in the first-level cache.
const WIDEST: usize = 1024;

/// Sums every column of `x`.
pub fn column_sum_reference(out: &mut [f32], x: &[f32], params: ColumnSum) {
    let ColumnSum { rows, cols, leaves, accumulate } = params;
    let per_leaf = rows / leaves;
    for col in 0..cols {
        let chain = |leaf: usize| {
            (leaf * per_leaf..(leaf + 1) * per_leaf).fold(0.0, |sum, row| sum + x[row * cols + col])
        };
        let value = tree_reference(leaves, &chain);
        out[col] = if accumulate { out[col] + value } else { value };
    }
}

/// How many chunks of how many columns a leaf is cut into; the bits do not depend on it.
fn chunks(params: ColumnSum, cores: usize) -> (usize, usize) {
    let count = params.cols.div_ceil(WIDEST).max(cores.div_ceil(params.leaves));
    let width = params.cols.div_ceil(count).next_multiple_of(16);
    (params.cols.div_ceil(width), width)
}

/// Elements of scratch that [`column_sum`] wants: one padded row per leaf.
pub fn column_sum_scratch(params: ColumnSum, cores: usize) -> usize {
    let (count, width) = chunks(params, cores);
    params.leaves * count * width
}

/// Sums every column of `x`, fast.
pub fn column_sum(out: &mut [f32], x: &[f32], params: ColumnSum, scratch: &mut [f32], team: &Team) {
    let ColumnSum { rows, cols, leaves, accumulate } = params;
    let (count, width) = chunks(params, team.cores());
    let sums = &mut scratch[..leaves * count * width];
    let per_leaf = rows / leaves;
    team.split_rows(rows * cols, leaves * count, [(&mut *sums, width)], &mut [], |units, [sums], _| {
        for (unit, sums) in units.zip(sums.chunks_exact_mut(width)) {
            let (leaf, first) = (unit / count, unit % count * width);
            let present = width.min(cols - first);
            let (sums, padding) = sums.split_at_mut(present);
            padding.fill(0.0);
            sum_block(sums, &x[leaf * per_leaf * cols + first..], per_leaf, cols);
        }
    });
    tree_rows(sums, leaves, count * width);
    store(out, &sums[..cols], accumulate);
}

dispatch! {
    /// Sums `rows` rows of `x`, one every `stride`, into `sums`, in ascending order.
    fn sum_block(sums: &mut [f32], x: &[f32], rows: usize, stride: usize) {
        let n = sums.len();
        sums.fill(0.0);
        let row = |row: usize| &x[row * stride..][..n];
        let full = rows - rows % 4;
        for first in (0..full).step_by(4) {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| row(first + i));
            for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *sum = *sum + a + b + c + d;
            }
        }
        for last in full..rows {
            sums.iter_mut().zip(row(last)).for_each(|(sum, x)| *sum += x);
        }
    }
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[Kernel {
    name: "column_sum",
    fast: |call| {
        let params = ColumnSum::from_words(call.params);
        column_sum(call.write(0), call.read(0), params, call.scratch(), call.team);
    },
    reference: |call| {
        column_sum_reference(call.write(0), call.read(0), ColumnSum::from_words(call.params));
    },
    scratch: |params, cores| 4 * column_sum_scratch(ColumnSum::from_words(params), cores),
}];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, values};

    fn case(params: ColumnSum) -> Case {
        Case::new(KERNELS, "column_sum", params.to_words())
            .read(values(params.rows * params.cols, 1))
            .write(values(params.cols, 2))
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for (rows, leaves) in [(1, 1), (2, 1), (7, 1), (8, 8), (100, 4)] {
            for cols in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 1025, 2049] {
                for accumulate in [false, true] {
                    case(ColumnSum { rows, cols, leaves, accumulate }).check(0.0);
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        for leaves in [1, 8] {
            case(ColumnSum { rows: 136, cols: 133, leaves, accumulate: true }).check_bits();
        }
    }
}
