//! Packing as an allocator would: in the order of time, each span into the smallest hole that it fits.
//!
//! Unlike an allocator it knows how long spans live: of those that begin together the longest comes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Layout, Span};

/// Places all spans.
pub(super) fn pack(spans: &[Span]) -> Layout {
    let mut begin: Vec<usize> = (0..spans.len()).filter(|&index| spans[index].bytes > 0).collect();
    let mut end = begin.clone();
    begin.sort_by_key(|&index| (spans[index].first, Reverse(spans[index].last), index));
    end.sort_by_key(|&index| (spans[index].last, index));
    let mut ended = end.into_iter().peekable();
    let mut offsets = vec![0; spans.len()];
    let mut holes = Holes::default();
    for index in begin {
        while let Some(over) = ended.next_if(|&over| spans[over].last < spans[index].first) {
            holes.give(offsets[over], spans[over].bytes);
        }
        offsets[index] = holes.take(spans[index].bytes);
    }
    Layout::new(spans, offsets)
}

/// The free ranges below `top`; no two of them touch.
#[derive(Default)]
struct Holes {
    top: u64,
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Holes {
    /// Takes the smallest hole, else grows at the top, where the last hole may help.
    fn take(&mut self, bytes: u64) -> u64 {
        if let Some(&(size, offset)) = self.by_size.range((bytes, 0)..).next() {
            self.remove(offset, size);
            self.insert(offset + bytes, size - bytes);
            return offset;
        }
        let last = self.by_offset.last_key_value().map(|(&offset, &size)| (offset, size));
        let offset = match last.filter(|&(offset, size)| offset + size == self.top) {
            Some((offset, size)) => {
                self.remove(offset, size);
                offset
            }
            None => self.top,
        };
        self.top = offset + bytes;
        offset
    }

    /// Gives a range back and joins it with its neighbours.
    fn give(&mut self, offset: u64, bytes: u64) {
        let (mut from, mut to) = (offset, offset + bytes);
        let below = self.by_offset.range(..from).next_back().map(|(&offset, &size)| (offset, size));
        if let Some((offset, size)) = below.filter(|&(offset, size)| offset + size == from) {
            self.remove(offset, size);
            from = offset;
        }
        if let Some(&size) = self.by_offset.get(&to) {
            self.remove(to, size);
            to += size;
        }
        self.insert(from, to - from);
    }

    fn insert(&mut self, offset: u64, size: u64) {
        if size > 0 {
            self.by_offset.insert(offset, size);
            self.by_size.insert((size, offset));
        }
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}
