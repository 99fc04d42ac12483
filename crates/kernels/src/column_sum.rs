//! Sums of the columns of a matrix, as bias gradients need them.
//!
//! Reads x `[outer, time, cols]` and writes out (accumulates on request): with `keep` the sums of each leaf
//! `[leaves, cols]`, else of all rows `[cols]`. [`Blocks`] says in which order rows are added.

use std::ops::Range;

use phalanx_ir::tasks::TaskView;

use crate::bf16::rounded;
use crate::rows::{Blocks, Rule, outer_and_time, tree_rows};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// Settings of `column_sum`.
    pub struct ColumnSum {
        /// Extent of the outermost dimension.
        pub outer: usize,
        /// Rows for each of its places.
        pub time: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows along `outer` whose sums are added as a tree.
        pub leaves: usize,
        /// Blocks of each of those along `time`, also added as a tree.
        pub inner: usize,
        /// Whether the sums of the leaves are kept apart.
        pub keep: bool,
        /// Whether the sums are added to what `out` holds.
        pub accumulate: bool,
        /// Whether elements are rounded to `bf16` before they are added.
        pub rounded: bool,
    }
}

impl ColumnSum {
    fn row_blocks(self) -> Blocks {
        Blocks::new(self.outer, self.time, self.leaves, self.inner)
    }

    fn rule(self) -> Rule {
        Rule { keep: self.keep, accumulate: self.accumulate }
    }

    /// An element as it is added.
    fn value(self, x: f32) -> f32 {
        if self.rounded { rounded(x) } else { x }
    }
}

/// The most columns summed at once: their running sums stay in the first-level cache.
const WIDEST: usize = 1024;

/// Sums every column of `x`.
pub fn column_sum_reference(out: &mut [f32], x: &[f32], params: ColumnSum) {
    let (blocks, cols) = (params.row_blocks(), params.cols);
    for col in 0..cols {
        blocks.sum_reference(&mut out[col..], cols, params.rule(), &|row| params.value(x[row * cols + col]));
    }
}

/// How many chunks of how many columns a leaf is cut into; the bits do not depend on it.
fn chunks(params: ColumnSum, blocks: usize) -> (usize, usize) {
    let count = params.cols.div_ceil(WIDEST).max(blocks.div_ceil(params.leaves));
    let width = params.cols.div_ceil(count).next_multiple_of(16);
    (params.cols.div_ceil(width), width)
}

/// What [`column_sum`] works in: one padded row per leaf, and for every block one chunk per inner block.
fn workspace(params: ColumnSum, blocks: usize) -> Workspace {
    let (count, width) = chunks(params, blocks);
    let own = if params.inner > 1 { params.inner * width } else { 0 };
    Workspace::of::<f32>(params.leaves * count * width, own)
}

/// Sums every column of `x`, fast.
pub fn column_sum(out: &mut [f32], x: &[f32], params: ColumnSum, launch: &mut Launch<'_>) {
    let ColumnSum { cols, leaves, inner, .. } = params;
    let (blocks, (count, width)) = (params.row_blocks(), chunks(params, launch.blocks()));
    let sums: &mut [f32] = launch.common();
    launch.split_rows(leaves * count, [(&mut *sums, width)], |units, [sums], own| {
        for (unit, sums) in units.zip(sums.chunks_exact_mut(width)) {
            let (leaf, first) = (unit / count, unit % count * width);
            let (sums, padding) = sums.split_at_mut(width.min(cols - first));
            padding.fill(0.0);
            let x = &x[blocks.leaf(leaf).start * cols + first..];
            if inner == 1 {
                sum_block(sums, x, params, 0);
            } else {
                let own = &mut own[..inner * sums.len()];
                let parts = own.chunks_exact_mut(sums.len()).enumerate();
                parts.for_each(|(block, part)| sum_block(part, x, params, block));
                tree_rows(own, inner, sums.len());
                sums.copy_from_slice(&own[..sums.len()]);
            }
        }
    });
    blocks.join([out], sums, [cols, count * width], params.rule());
}

dispatch! {
    /// Sums the rows of one inner block into `sums`, in ascending order; `x` starts at the leaf's first row.
    fn sum_block(sums: &mut [f32], x: &[f32], params: ColumnSum, block: usize) {
        let n = sums.len();
        let row = |row: usize| &x[row * params.cols..][..n];
        match params.rounded {
            true => add_rows(sums, row, params.row_blocks().runs(block), rounded),
            false => add_rows(sums, row, params.row_blocks().runs(block), |x| x),
        }
    }
}

/// Sums runs of rows into `sums`, each element by its `value`.
#[inline(always)]
fn add_rows<'a>(
    sums: &mut [f32],
    row: impl Fn(usize) -> &'a [f32],
    runs: impl Iterator<Item = Range<usize>>,
    value: impl Fn(f32) -> f32,
) {
    sums.fill(0.0);
    for rows in runs {
        let full = rows.len() - rows.len() % 4;
        for first in (rows.start..rows.start + full).step_by(4) {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| row(first + i));
            for ((((sum, &a), &b), &c), &d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *sum = *sum + value(a) + value(b) + value(c) + value(d);
            }
        }
        for last in rows.start + full..rows.end {
            sums.iter_mut().zip(row(last)).for_each(|(sum, &x)| *sum += value(x));
        }
    }
}

impl Kernel for ColumnSum {
    signature!("column_sum": x => sums by column_sum_reference, column_sum);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (leaves, inner, keep) = (task.attr("leaves")?, task.attr("inner")?, task.is("keep"));
        let (x, cols) = (task.read(0)?, task.write(0)?.elements() / if keep { leaves } else { 1 });
        let (outer, time) = outer_and_time(x, x.elements() / cols);
        let (accumulate, rounded) = (task.is("accumulate"), task.is("rounded"));
        Ok(ColumnSum { outer, time, cols, leaves, inner, keep, accumulate, rounded })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.outer * self.time * self.cols, cores)
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        workspace(*self, blocks)
    }
}

#[cfg(test)]
mod tests;
