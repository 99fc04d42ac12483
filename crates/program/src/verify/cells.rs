//! The bytes of one arena that lanes other than its own touch: which operations wrote and read them last.
//!
//! The starts and ends of all that *guests* touch cut the arena into *cells*. What a guest touches is a row of whole
//! cells, so a use by the home lane that meets a cell at all meets every guest of that cell: nothing finer has to be
//! told apart. Writers come in the order of their lane, so of each lane that writes the last writer of a cell is the
//! greatest one, and so is the last home reader: a tree over the cells for each such lane answers for any row in
//! logarithmic time. Reads of guests, which may be of any lane, are found by another tree, which tells how far those
//! that start in a cell reach; each is given out once to each lane that writes.

use std::collections::BinaryHeap;
use std::ops::Range;

use crate::{Slice, Wait};

#[derive(Default)]
pub(super) struct Cells {
    /// Where cells begin, ascending; the last one ends where the last entry is.
    bounds: Vec<u64>,
    /// The least power of two that counts all cells: leaf i of every tree is at `leaves + i`, the root at 1.
    leaves: usize,
    /// Writes of the home lane.
    pub home_writes: Latest,
    /// Reads of the home lane; only kept where a guest writes.
    pub home_reads: Latest,
    /// Reads of guests that no write of the home lane has met since.
    pub open_to_home: Reads,
    /// The guests that write, by their lanes, ascending.
    pub writers: Vec<Writer>,
}

/// A guest lane that writes.
pub(super) struct Writer {
    pub lane: u32,
    pub writes: Latest,
    /// Reads of guests that none of its writes has met since.
    pub open: Reads,
}

impl Cells {
    /// The slice is touched by a guest; all such slices are announced before [`Cells::freeze`].
    pub fn announce(&mut self, slice: Slice) {
        self.bounds.extend([slice.offset, slice.end()]);
    }

    /// Makes the cells; `writers` are the lanes of guests that write some of them, ascending.
    pub fn freeze(&mut self, writers: &[u32]) {
        self.bounds.sort_unstable();
        self.bounds.dedup();
        let cells = self.bounds.len().saturating_sub(1);
        if cells > 0 {
            self.leaves = cells.next_power_of_two();
            self.home_writes = Latest::new(self.leaves);
            self.open_to_home = Reads::new(self.leaves, cells);
            if !writers.is_empty() {
                self.home_reads = Latest::new(self.leaves);
            }
            let writer = |&lane: &u32| Writer {
                lane,
                writes: Latest::new(self.leaves),
                open: Reads::new(self.leaves, cells),
            };
            self.writers = writers.iter().map(writer).collect();
        }
    }

    /// Whether a guest writes any of the cells.
    pub fn has_guest_writes(&self) -> bool {
        !self.writers.is_empty()
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

    /// A guest reads the cells.
    pub fn guest_reads(&mut self, cells: &Range<usize>, by: Wait) {
        self.open_to_home.push(cells, by);
        self.writers.iter_mut().for_each(|writer| writer.open.push(cells, by));
    }

    /// A guest writes the cells.
    pub fn guest_writes(&mut self, cells: &Range<usize>, by: Wait) {
        if let Some(writer) = self.writer(by.lane) {
            writer.writes.set(cells, by.position);
        }
    }

    /// Reads of guests that no write of `lane` has met since; none if it never writes.
    pub fn open_to(&mut self, lane: u32, is_home: bool) -> Option<&mut Reads> {
        match is_home {
            true => Some(&mut self.open_to_home),
            false => self.writer(lane).map(|writer| &mut writer.open),
        }
    }

    fn writer(&mut self, lane: u32) -> Option<&mut Writer> {
        let at = self.writers.binary_search_by_key(&lane, |writer| writer.lane).ok()?;
        Some(&mut self.writers[at])
    }
}

/// Reads that were not given out yet.
#[derive(Default)]
pub(super) struct Reads {
    leaves: usize,
    /// Of each node, the furthest end of the reads that start below it.
    reach: Vec<usize>,
    /// The reads that start in a cell, furthest end first: end, lane and position.
    reads: Vec<BinaryHeap<(usize, u32, u32)>>,
}

impl Reads {
    fn new(leaves: usize, cells: usize) -> Reads {
        Reads { leaves, reach: vec![0; 2 * leaves], reads: vec![BinaryHeap::new(); cells] }
    }

    fn push(&mut self, cells: &Range<usize>, by: Wait) {
        self.reads[cells.start].push((cells.end, by.lane, by.position));
        let mut node = self.leaves + cells.start;
        while node > 0 {
            self.reach[node] = self.reach[node].max(cells.end);
            node /= 2;
        }
    }

    /// Gives out a read of any of the cells.
    pub fn take(&mut self, cells: &Range<usize>) -> Option<Wait> {
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

    /// The first cell in which a read starts that shares a cell with `cells`.
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

/// For every cell the last of some operations of one lane, which come in the order of the lane.
#[derive(Default)]
pub(super) struct Latest {
    leaves: usize,
    /// Of each node of a tree, one more than the last position: over all cells below it.
    latest: Vec<u32>,
    /// The same, of uses that covered all cells below it.
    covering: Vec<u32>,
}

impl Latest {
    fn new(leaves: usize) -> Latest {
        Latest { leaves, latest: vec![0; 2 * leaves], covering: vec![0; 2 * leaves] }
    }

    /// The position of the last one at any of the cells.
    pub fn at(&self, cells: &Range<usize>) -> Option<u32> {
        if self.leaves == 0 || cells.is_empty() {
            return None;
        }
        let mut latest = 0;
        pieces(self.leaves, cells, |node| latest = latest.max(self.latest[node]));
        above(self.leaves, cells, |node| latest = latest.max(self.covering[node]));
        latest.checked_sub(1)
    }

    /// The operation at `position`, no earlier than any so far, is at the cells.
    pub fn set(&mut self, cells: &Range<usize>, position: u32) {
        if self.leaves == 0 || cells.is_empty() {
            return;
        }
        let latest = position + 1;
        pieces(self.leaves, cells, |node| (self.latest[node], self.covering[node]) = (latest, latest));
        above(self.leaves, cells, |node| self.latest[node] = latest);
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
