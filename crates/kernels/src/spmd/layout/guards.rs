//! Guard zones: marked bytes after every part of a slice, which no block may write.

use std::ops::Range;

use super::{BlockLayout, Part};

/// What a guard zone is filled with: as four bytes of a float, a number no kernel computes by accident.
const MARK: u8 = 0xa7;

/// A block wrote past the end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} is overrun: the byte {past} past its end was written")]
pub struct Overrun {
    /// Whose end.
    pub part: Part,
    /// How far past it the first foreign byte lies.
    pub past: usize,
}

impl BlockLayout {
    /// The guard zones of a slice and the parts they follow; empty zones where the layout has none.
    pub fn guards(&self) -> impl Iterator<Item = (Part, Range<usize>)> {
        let rings = self.rings.iter().map(|ring| (Part::Ring(ring.pipe, ring.way), ring.range().end));
        let scratch = self.scratch.iter().enumerate().map(|(index, area)| (Part::Scratch(index), area.end));
        let control =
            self.rings.iter().map(|ring| (Part::Control(ring.pipe, ring.way), ring.control_range().end));
        let zone = |end: u64| end as usize..(end + self.guard) as usize;
        rings.chain(scratch).chain(control).map(move |(part, end)| (part, zone(end)))
    }

    /// Marks the guard zones of a slice.
    pub fn mark_guards(&self, slice: &mut [u8]) {
        self.guards().for_each(|(_, zone)| slice[zone].fill(MARK));
    }

    /// Checks that the guard zones of a slice are as they were marked.
    pub fn check_guards(&self, slice: &[u8]) -> Result<(), Overrun> {
        for (part, zone) in self.guards() {
            if let Some(past) = slice[zone].iter().position(|&byte| byte != MARK) {
                return Err(Overrun { part, past });
            }
        }
        Ok(())
    }
}
