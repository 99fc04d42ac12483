//! How a sum over the rows of `[outer, time, cols]` is ordered, so that devices may share it along both dimensions.
//!
//! The rows form `leaves` equal blocks along `outer`; each is cut into `inner` equal blocks along `time`. The rows of an
//! inner block are one chain in ascending (outer, time) order that starts from +0; the inner blocks of a leaf are
//! added as a tree, and so are the leaves. A device that holds some leaves, or some inner blocks of its leaves, computes
//! whole subtrees. Where `leaves` does not divide `outer`, all rows form `leaves` contiguous blocks and `inner` is 1.

use std::ops::Range;

use super::{store, tree_reference, tree_rows};

/// The order of a sum over rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// How many leaves there are.
    pub leaves: usize,
    /// How many inner blocks a leaf has.
    pub inner: usize,
    /// Rows of a leaf.
    rows: usize,
    /// Consecutive rows of an inner block.
    run: usize,
}

impl Blocks {
    /// The order for `outer * time` rows.
    pub fn new(outer: usize, time: usize, leaves: usize, inner: usize) -> Blocks {
        let total = outer * time;
        assert!(total.is_multiple_of(leaves), "{leaves} leaves do not divide {outer} * {time} rows");
        let rows = total / leaves;
        if inner == 1 {
            return Blocks { leaves, inner, rows, run: rows };
        }
        assert!(
            outer.is_multiple_of(leaves),
            "inner blocks want leaves that divide {outer} rows, not {leaves}"
        );
        assert!(time.is_multiple_of(inner), "{inner} inner blocks do not divide {time} rows");
        Blocks { leaves, inner, rows, run: time / inner }
    }

    /// The rows of a leaf, counted over all leaves.
    pub fn leaf(&self, leaf: usize) -> Range<usize> {
        leaf * self.rows..(leaf + 1) * self.rows
    }

    /// The rows of inner block `block`, counted from the first of its leaf, as ascending runs.
    #[inline(always)]
    pub fn runs(&self, block: usize) -> impl Iterator<Item = Range<usize>> {
        let Blocks { inner, rows, run, .. } = *self;
        (block * run..rows).step_by((inner * run).max(1)).map(move |first| first..first + run)
    }

    /// Sums `value` over all rows into `out[0]`, or with `keep` over each leaf into `out[leaf * cols]`: the meaning.
    pub fn sum_reference(&self, out: &mut [f32], cols: usize, rule: Rule, value: &dyn Fn(usize) -> f32) {
        let leaf = |leaf: usize| {
            let first = self.leaf(leaf).start;
            let rows = |block| self.runs(block).flatten().map(move |row| first + row);
            tree_reference(self.inner, &|block| rows(block).fold(0.0, |sum, row| sum + value(row)))
        };
        let mut put = |at: usize, value| out[at] = if rule.accumulate { out[at] + value } else { value };
        match rule.keep {
            true => (0..self.leaves).for_each(|i| put(i * cols, leaf(i))),
            false => put(0, tree_reference(self.leaves, &leaf)),
        }
    }

    /// Writes `outs` from `sums`, which has a row of `stride` for every leaf: in it the sums of each output's `cols`
    /// columns, side by side. Overwrites `sums`.
    pub fn join<const N: usize>(
        &self,
        outs: [&mut [f32]; N],
        sums: &mut [f32],
        [cols, stride]: [usize; 2],
        rule: Rule,
    ) {
        if !rule.keep {
            tree_rows(sums, self.leaves, stride);
        }
        let rows = if rule.keep { self.leaves } else { 1 };
        for (i, out) in outs.into_iter().enumerate() {
            for (out, sums) in out.chunks_exact_mut(cols).zip(sums.chunks_exact(stride)).take(rows) {
                store(out, &sums[i * cols..][..cols], rule.accumulate);
            }
        }
    }
}

/// What becomes of the sums of the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// They are kept apart instead of added as a tree.
    pub keep: bool,
    /// The result is added to what its slice holds.
    pub accumulate: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_block_and_in_order() {
        for (outer, time, leaves, inner) in
            [(4, 6, 2, 3), (4, 6, 4, 1), (2, 8, 8, 1), (3, 4, 1, 4), (8, 1, 8, 1)]
        {
            let blocks = Blocks::new(outer, time, leaves, inner);
            let mut seen = Vec::new();
            for leaf in 0..leaves {
                for block in 0..inner {
                    let rows: Vec<_> =
                        blocks.runs(block).flatten().map(|row| blocks.leaf(leaf).start + row).collect();
                    assert!(rows.is_sorted(), "{rows:?}");
                    if inner > 1 {
                        let own = block * time / inner..(block + 1) * time / inner;
                        assert!(rows.iter().all(|row| own.contains(&(row % time))), "{rows:?}");
                    }
                    seen.extend(rows);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..outer * time).collect::<Vec<_>>());
        }
    }
}
