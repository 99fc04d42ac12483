//! Walks over rows that are sorted by expert, and trees of sums of many numbers at once.

use std::ops::Range;

use super::{Grouped, PIECE};
use crate::rows::add_to;

/// How many pieces the rows of all experts make.
pub(super) fn pieces(starts: &[u32]) -> usize {
    starts.windows(2).map(|pair| (pair[1] - pair[0]).div_ceil(PIECE as u32) as usize).sum()
}

/// The expert of piece `index`, and its rows in the sorted list.
pub(super) fn piece(starts: &[u32], index: usize) -> (usize, Range<usize>) {
    let mut before = 0;
    for (expert, pair) in starts.windows(2).enumerate() {
        let [start, end] = [pair[0], pair[1]].map(|at| at as usize);
        let own = (end - start).div_ceil(PIECE);
        if index < before + own {
            let first = start + (index - before) * PIECE;
            return (expert, first..end.min(first + PIECE));
        }
        before += own;
    }
    unreachable!("piece {index} is one of {before}")
}

/// Those of an expert's rows, which ascend, that are in leaf `leaf`.
pub(super) fn leaf(rows: &[u32], sizes: Grouped, leaf: usize) -> &[u32] {
    let per_leaf = sizes.rows / sizes.leaves;
    let end = |leaf: usize| rows.partition_point(|&row| (row as usize) < leaf * per_leaf);
    &rows[end(leaf)..end(leaf + 1)]
}

/// How many sums a tree over so many leaves holds at once.
pub(super) fn levels(leaves: usize) -> usize {
    leaves.ilog2() as usize + 1
}

/// A balanced tree over sums of `size` numbers each, which come one after the other.
pub(super) struct Levels<'a> {
    sums: &'a mut [f32],
    size: usize,
    held: usize,
    pushed: usize,
}

impl<'a> Levels<'a> {
    /// An empty tree that holds sums of `size` numbers in `sums`.
    pub(super) fn new(sums: &'a mut [f32], size: usize) -> Self {
        Levels { sums, size, held: 0, pushed: 0 }
    }

    /// The place of the next sum.
    pub(super) fn next(&mut self) -> &mut [f32] {
        &mut self.sums[self.held * self.size..][..self.size]
    }

    /// Takes the sum in its place into the tree: it is added to earlier ones of the same weight.
    pub(super) fn push(&mut self) {
        self.held += 1;
        self.pushed += 1;
        for _ in 0..self.pushed.trailing_zeros() {
            let (left, right) = self.sums.split_at_mut((self.held - 1) * self.size);
            add_to(&mut left[(self.held - 2) * self.size..], &right[..self.size]);
            self.held -= 1;
        }
    }

    /// The sum of all, if their number is a power of two.
    pub(super) fn sum(&self) -> &[f32] {
        debug_assert_eq!(self.held, 1, "{} leaves are a power of two", self.pushed);
        &self.sums[..self.size]
    }
}
