//! Packing on top of what is there: each span goes above everything placed so far at any moment of its life.
//!
//! Holes below are never filled, but with the longest lives first there are few: the lives of a training step are nested,
//! because backward tasks free activations in the reverse order of the forward tasks that made them.

use super::{Layout, Span};

/// Places spans in the given sequence.
pub(super) fn pack(spans: &[Span], sequence: &[usize]) -> Layout {
    let moments = spans.iter().map(|span| span.last as usize + 1).max().unwrap_or(0);
    let mut tops = Tops::new(moments);
    let mut offsets = vec![0; spans.len()];
    for &index in sequence {
        let span = &spans[index];
        let (first, last) = (span.first as usize, span.last as usize);
        offsets[index] = tops.highest(first, last);
        tops.raise(first, last, offsets[index] + span.bytes);
    }
    Layout::new(spans, offsets)
}

/// The height reached at every moment, as a binary tree over the moments; leaf i is node `leaves + i`.
struct Tops {
    leaves: usize,
    /// The highest top below a node.
    most: Vec<u64>,
    /// A top that all moments below a node have.
    all: Vec<u64>,
}

impl Tops {
    fn new(moments: usize) -> Self {
        let leaves = moments.next_power_of_two();
        Tops { leaves, most: vec![0; 2 * leaves], all: vec![0; 2 * leaves] }
    }

    fn highest(&self, first: usize, last: usize) -> u64 {
        let (mut from, mut to) = (first + self.leaves, last + self.leaves + 1);
        let mut highest = self.over(from).max(self.over(to - 1));
        while from < to {
            if from % 2 == 1 {
                highest = highest.max(self.most[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                highest = highest.max(self.most[to]);
            }
            (from, to) = (from / 2, to / 2);
        }
        highest
    }

    /// The highest top that a whole range around a leaf has.
    fn over(&self, leaf: usize) -> u64 {
        let mut node = leaf;
        let mut highest = 0;
        while node > 0 {
            highest = highest.max(self.all[node]);
            node /= 2;
        }
        highest
    }

    fn raise(&mut self, first: usize, last: usize, top: u64) {
        let (mut from, mut to) = (first + self.leaves, last + self.leaves + 1);
        while from < to {
            if from % 2 == 1 {
                self.set(from, top);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.set(to, top);
            }
            (from, to) = (from / 2, to / 2);
        }
        self.raise_above(first + self.leaves, top);
        self.raise_above(last + self.leaves, top);
    }

    fn set(&mut self, node: usize, top: u64) {
        self.all[node] = self.all[node].max(top);
        self.most[node] = self.most[node].max(top);
    }

    fn raise_above(&mut self, leaf: usize, top: u64) {
        let mut node = leaf;
        while node > 0 {
            self.most[node] = self.most[node].max(top);
            node /= 2;
        }
    }
}
