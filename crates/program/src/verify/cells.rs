//! The bytes of one lane that others read: who wrote them last, and who has read them since.
//!
//! The starts and ends of all foreign reads cut the arena into *cells*. A foreign read is a row of whole cells, so a
//! write that touches a cell at all meets every foreign read of that cell: nothing finer has to be told apart. Writers
//! come in the order of their lane, so the last one of a cell is the greatest one, and a tree over the cells answers
//! for any row in logarithmic time. Reads are found by a second tree, which tells how far those that start in a cell
//! reach; each is given out once.

use std::collections::BinaryHeap;
use std::ops::Range;

use crate::{Slice, Wait};

#[derive(Default)]
pub(super) struct Cells {
    /// Where cells begin, ascending; the last one ends where the last entry is.
    bounds: Vec<u64>,
    /// The least power of two that counts all cells: leaf i of both trees is at `leaves + i`, the root at 1.
    leaves: usize,
    /// Of each node of a tree, one more than the last writer's position: over all cells below it.
    latest: Vec<u32>,
    /// The same, of writes that covered all cells below it.
    covering: Vec<u32>,
    /// Of each node, the furthest end of the open reads that start below it.
    reach: Vec<usize>,
    /// The open reads that start in a cell, furthest end first: end, lane and position.
    reads: Vec<BinaryHeap<(usize, u32, u32)>>,
}

impl Cells {
    /// The slice is read by another lane; all such slices are announced before [`Cells::freeze`].
    pub fn announce(&mut self, slice: Slice) {
        self.bounds.extend([slice.offset, slice.end()]);
    }

    /// Makes the cells.
    pub fn freeze(&mut self) {
        self.bounds.sort_unstable();
        self.bounds.dedup();
        let cells = self.bounds.len().saturating_sub(1);
        if cells > 0 {
            self.leaves = cells.next_power_of_two();
            self.latest = vec![0; 2 * self.leaves];
            self.covering = vec![0; 2 * self.leaves];
            self.reach = vec![0; 2 * self.leaves];
            self.reads = vec![BinaryHeap::new(); cells];
        }
    }

    /// The cells that share a byte with `slice`.
    pub fn touched(&self, slice: Slice) -> Range<usize> {
        let cells = self.bounds.len().saturating_sub(1);
        if slice.bytes == 0 || cells == 0 {
            return 0..0;
        }
        let start = self.bounds.partition_point(|&bound| bound <= slice.offset).saturating_sub(1);
        let end = self.bounds.partition_point(|&bound| bound < slice.end()).min(cells);
        start..end.max(start)
    }

    /// The position of the last writer of any of the cells.
    pub fn writer(&self, cells: &Range<usize>) -> Option<u32> {
        let mut latest = 0;
        pieces(self.leaves, cells, |node| latest = latest.max(self.latest[node]));
        above(self.leaves, cells, |node| latest = latest.max(self.covering[node]));
        latest.checked_sub(1)
    }

    /// The operation at `position`, no earlier than any writer so far, writes the cells.
    pub fn write(&mut self, cells: &Range<usize>, position: u32) {
        let latest = position + 1;
        pieces(self.leaves, cells, |node| (self.latest[node], self.covering[node]) = (latest, latest));
        above(self.leaves, cells, |node| self.latest[node] = latest);
    }

    /// An operation of another lane reads the cells.
    pub fn read(&mut self, cells: &Range<usize>, by: Wait) {
        self.reads[cells.start].push((cells.end, by.lane, by.position));
        let mut node = self.leaves + cells.start;
        while node > 0 {
            self.reach[node] = self.reach[node].max(cells.end);
            node /= 2;
        }
    }

    /// Removes an open read of any of the cells.
    pub fn take_read(&mut self, cells: &Range<usize>) -> Option<Wait> {
        let start = self.reaching(cells)?;
        let (_, lane, position) = self.reads[start].pop().expect("a cell with a reach has open reads");
        let mut node = self.leaves + start;
        self.reach[node] = self.reads[start].peek().map_or(0, |read| read.0);
        while node > 1 {
            node /= 2;
            self.reach[node] = self.reach[2 * node].max(self.reach[2 * node + 1]);
        }
        Some(Wait { lane, position })
    }

    /// The first cell in which an open read starts that shares a cell with `cells`.
    fn reaching(&self, cells: &Range<usize>) -> Option<usize> {
        let far = |node: usize| self.reach[node] > cells.start;
        if cells.is_empty() || !far(1) {
            return None;
        }
        // The leftmost leaf that reaches so far: if it is not before the end of the cells, none is.
        let mut node = 1;
        while node < self.leaves {
            node = if far(2 * node) { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.leaves).filter(|&start| start < cells.end)
    }
}

/// The fewest nodes of a tree that have exactly `cells` below them.
fn pieces(leaves: usize, cells: &Range<usize>, mut f: impl FnMut(usize)) {
    let (mut start, mut end) = (leaves + cells.start, leaves + cells.end);
    while start < end {
        if start % 2 == 1 {
            f(start);
            start += 1;
        }
        if end % 2 == 1 {
            end -= 1;
            f(end);
        }
        (start, end) = (start / 2, end / 2);
    }
}

/// The nodes above the first and the last of `cells`, these included. All nodes above [`pieces`] are among them: such a
/// node has neighbours below it of which one is in the row and one is not, and the former is the first or the last.
fn above(leaves: usize, cells: &Range<usize>, mut f: impl FnMut(usize)) {
    for cell in [cells.start, cells.end - 1] {
        let mut node = leaves + cell;
        while node > 0 {
            f(node);
            node /= 2;
        }
    }
}
