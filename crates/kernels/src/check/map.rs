//! Where everything lies in the memory in which a call is checked.
//!
//! Written arguments come first, then the workspace, then what is only read; before and after each part lies a guard. So
//! all that several blocks may change is in one prefix of the memory.

use std::fmt;
use std::ops::Range;

use crate::spmd::Layout;
use crate::{Call, KernelEntry};

/// Bytes of a guard: more than a block of registers and than most rows.
pub(super) const GUARD: usize = 4096;

/// Where parts start: a multiple of what kernels are promised.
const ALIGN: usize = 128;

/// What a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// An argument it only reads, by its slot and its name.
    Read(usize, &'static str),
    /// An argument it writes, likewise.
    Write(usize, &'static str),
    /// What its blocks have in common of the workspace.
    Common,
    /// A slice of the workspace.
    Slice(usize),
}

impl Part {
    pub(super) fn is_argument(self) -> bool {
        matches!(self, Part::Read(..) | Part::Write(..))
    }

    /// Whether every block may write it.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Part::Write(..) | Part::Common)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Read(_, name) => write!(f, "read argument `{name}`"),
            Part::Write(_, name) => write!(f, "written argument `{name}`"),
            Part::Common => f.write_str("the common workspace"),
            Part::Slice(index) => write!(f, "workspace slice {index}"),
        }
    }
}

/// A byte in a part, or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The part.
    pub part: Part,
    /// Bytes from its start; negative before it.
    pub offset: i64,
    /// Bytes of the part.
    pub len: usize,
}

impl Spot {
    /// Whether the part has the byte.
    pub fn is_inside(&self) -> bool {
        (0..self.len as i64).contains(&self.offset)
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spot { part, offset, len } = self;
        write!(f, "byte {offset} of {part}, which has {len}")
    }
}

/// A moment of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many phases were over.
    pub phase: usize,
    /// The block that ran; none if it was the code around blocks.
    pub block: Option<usize>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(block) => write!(f, "block {block} in phase {}", self.phase),
            None => write!(f, "the code outside blocks after {} phases", self.phase),
        }
    }
}

/// Places of all parts.
pub(super) struct Map {
    /// In ascending order.
    parts: Vec<(Part, Range<usize>)>,
    /// Of the workspace, with guards between its slices.
    pub(super) layout: Layout,
    /// What the memory starts at a multiple of.
    pub(super) align: usize,
    /// Where the workspace starts.
    start: usize,
    /// Bytes of the whole memory.
    pub(super) bytes: usize,
}

impl Map {
    /// Places for what `kernel` is given in `call`.
    pub(super) fn of(kernel: &KernelEntry, call: &Call<'_>) -> Map {
        let names = (kernel.arguments)(call.params);
        let layout = call.launch.layout().spaced(GUARD as u64);
        let align = layout.align().max(ALIGN);
        let mut map = Map { parts: Vec::new(), layout, align, start: 0, bytes: GUARD };
        for (slot, (write, name)) in call.writes.iter().zip(names.writes).enumerate() {
            let range = map.append(write.len());
            map.parts.push((Part::Write(slot, name), range));
        }
        map.start = map.append(layout.total() as usize).start;
        map.layout = layout.at(map.start);
        map.add_workspace();
        for (slot, (read, name)) in call.reads.iter().zip(names.reads).enumerate() {
            let range = map.append(read.len());
            map.parts.push((Part::Read(slot, name), range));
        }
        map
    }

    /// Room for so many bytes and a guard behind them.
    fn append(&mut self, len: usize) -> Range<usize> {
        let start = self.bytes.next_multiple_of(ALIGN);
        self.bytes = start + len + GUARD;
        start..start + len
    }

    fn add_workspace(&mut self) {
        let slices = (0..self.layout.slices()).map(|index| (Part::Slice(index), self.layout.slice(index)));
        let parts = [(Part::Common, self.layout.common())].into_iter().chain(slices);
        let placed = parts.map(|(part, range)| (part, range.start + self.start..range.end + self.start));
        self.parts.extend(placed.filter(|(_, range)| !range.is_empty()));
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = (Part, Range<usize>)> {
        self.parts.iter().cloned()
    }

    /// The workspace with the guards in it.
    pub(super) fn workspace(&self) -> Range<usize> {
        self.start..self.start + self.layout.total() as usize
    }

    /// Written arguments, by their slots.
    pub(super) fn written(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.parts().filter_map(|(part, range)| match part {
            Part::Write(slot, _) => Some((slot, range)),
            _ => None,
        })
    }

    /// What every block may write.
    pub(super) fn shared(&self) -> impl Iterator<Item = Range<usize>> {
        self.parts().filter(|(part, _)| part.is_shared()).map(|(_, range)| range)
    }

    /// Where the prefix ends that has all of that.
    pub(super) fn shared_end(&self) -> usize {
        self.shared().last().map_or(0, |range| range.end)
    }

    /// All bytes but those of the parts that `is_inside` wants, as ranges.
    pub(super) fn outside(&self, is_inside: impl Fn(Part) -> bool) -> impl Iterator<Item = Range<usize>> {
        let inside = self.parts().filter(move |&(part, _)| is_inside(part)).map(|(_, range)| range);
        let mut start = 0;
        inside.chain(std::iter::once(self.bytes..self.bytes)).map(move |Range { start: end, end: next }| {
            let range = start..end;
            start = next;
            range
        })
    }

    /// The byte at this position, told from the nearest part.
    pub(super) fn spot(&self, at: usize) -> Spot {
        let distance = |range: &Range<usize>| match at < range.start {
            true => range.start - at,
            false => (at + 1).saturating_sub(range.end),
        };
        let nearest = self.parts.iter().min_by_key(|(_, range)| distance(range));
        let (part, range) = nearest.cloned().unwrap_or((Part::Common, 0..0));
        Spot { part, offset: at as i64 - range.start as i64, len: range.len() }
    }
}
