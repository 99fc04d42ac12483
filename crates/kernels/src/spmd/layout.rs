//! Where the parts of one block lie in its slice of a launch's workspace.
//!
//! [`BlockLayout::plan`] is the only place that computes offsets inside a slice: sizes, guard zones and tests all come
//! from its result. A slice holds the rings of the pipes (by pipe id, forward before backward), then the scratch areas in
//! the order they are declared, then the rings' control areas. Where slices lie is decided by [`Layout`](super::Layout),
//! from what [`BlockLayout::workspace`] declares.
//!
//! Nothing here touches memory.

mod error;
mod guards;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::Workspace;
pub use error::{Difference, LayoutError};
pub use guards::Overrun;

/// Bytes no two cursors and no two slices with pipes share: two cache lines, since lines are fetched in pairs.
pub const LINE: u64 = 128;

/// Bytes of a slot's header, which lies in the control area.
pub const HEADER: u64 = 64;

/// The most rings, and the most scratch areas, of one block.
pub const MAX_PARTS: usize = 16;

/// Slots per ring unless told otherwise: the fewest with which both halves can work at once.
pub const DEFAULT_DEPTH: u32 = 2;

/// Which halves of a block a pipe carries tiles between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the matrix half to the vector half.
    Forward,
    /// From the vector half to the matrix half.
    Backward,
    /// Both ways, over two rings.
    Both,
}

impl Direction {
    fn ways(self) -> &'static [Way] {
        match self {
            Direction::Forward => &[Way::Forward],
            Direction::Backward => &[Way::Backward],
            Direction::Both => &[Way::Forward, Way::Backward],
        }
    }
}

/// The one way tiles travel through a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// From the matrix half to the vector half.
    Forward,
    /// From the vector half to the matrix half.
    Backward,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Forward => "forward",
            Way::Backward => "backward",
        })
    }
}

/// A pipe as a half declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeSpec {
    /// The name both halves know it by.
    pub id: u16,
    /// Which way tiles travel.
    pub direction: Direction,
    /// Bytes of the largest tile.
    pub slot_bytes: u64,
    /// Tiles in flight in each direction.
    pub depth: u32,
}

impl PipeSpec {
    /// A pipe of [`DEFAULT_DEPTH`].
    pub fn new(id: u16, direction: Direction, slot_bytes: u64) -> Self {
        PipeSpec { id, direction, slot_bytes, depth: DEFAULT_DEPTH }
    }
}

/// Private working memory of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scratch {
    /// Its size.
    pub bytes: u64,
    /// The power of two its address is a multiple of.
    pub align: u64,
}

/// What the starts of slots, rings and blocks are multiples of; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// Of a slot within its ring.
    pub slot: u64,
    /// Of a ring within its slice.
    pub ring: u64,
    /// Of a slice.
    pub block: u64,
}

impl Alignment {
    /// Cache lines for slots and rings, a [`LINE`] for blocks.
    pub const CPU: Alignment = Alignment { slot: 64, ring: 64, block: LINE };

    /// No padding in the payload, blocks rounded up to `granularity` bytes: shows errors that padding hides.
    pub const fn packed(granularity: u64) -> Alignment {
        Alignment { slot: 1, ring: 1, block: granularity }
    }

    fn check(self) -> Result<(), LayoutError> {
        power_of_two("slot alignment", self.slot)?;
        power_of_two("ring alignment", self.ring)?;
        power_of_two("block alignment", self.block)
    }
}

/// A part of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The slots of one way of a pipe.
    Ring(u16, Way),
    /// A scratch area, by its position.
    Scratch(usize),
    /// Cursors and slot headers of one way of a pipe.
    Control(u16, Way),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Ring(pipe, way) => write!(f, "the {way} ring of pipe {pipe}"),
            Part::Scratch(index) => write!(f, "scratch area {index}"),
            Part::Control(pipe, way) => write!(f, "the control area of the {way} ring of pipe {pipe}"),
        }
    }
}

/// Where one ring lies in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingLayout {
    /// The pipe's id.
    pub pipe: u16,
    /// Which way it carries tiles.
    pub way: Way,
    /// The first slot's place in the slice.
    pub offset: u64,
    /// Bytes from one slot to the next.
    pub slot_stride: u64,
    /// Bytes of a slot that may be used.
    pub slot_bytes: u64,
    /// How many slots.
    pub depth: u32,
    /// The control area's place in the slice: the producer's line, the consumer's line, a [`HEADER`] per slot.
    pub control: u64,
}

impl RingLayout {
    /// The bytes of the slots.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.slot_stride * u64::from(self.depth)
    }

    /// The bytes of the control area.
    pub fn control_range(&self) -> Range<u64> {
        self.control..self.control + 2 * LINE + HEADER * u64::from(self.depth)
    }
}

/// Where everything of one block lies in its slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockLayout {
    /// The rings, by pipe id, forward before backward.
    pub rings: ArrayVec<RingLayout, MAX_PARTS>,
    /// The scratch areas as declared.
    pub scratch: ArrayVec<Range<u64>, MAX_PARTS>,
    /// Payload bytes: rings, scratch and their padding, without the control areas behind them.
    pub bytes: u64,
    /// Bytes of the whole slice, control areas included.
    pub size: u64,
    /// What the slice's address is a multiple of.
    pub align: u64,
    /// Bytes of the guard zone after each part; normally 0.
    pub guard: u64,
}

impl BlockLayout {
    /// Lays out a block with these pipes and scratch areas.
    ///
    /// A pipe may be declared twice, once by each half, with equal values.
    pub fn plan(
        pipes: &[PipeSpec],
        scratch: &[Scratch],
        alignment: Alignment,
        guard: u64,
    ) -> Result<BlockLayout, LayoutError> {
        alignment.check()?;
        let pipes = merged(pipes)?;
        let ways = |pipe: &PipeSpec| pipe.direction.ways().len();
        check_count("rings", pipes.iter().map(ways).sum())?;
        check_count("scratch areas", scratch.len())?;
        let mut slice = Growing { end: 0, align: alignment.block, guard };
        let mut rings = ArrayVec::new();
        for pipe in &pipes {
            for &way in pipe.direction.ways() {
                rings.push(slice.ring(pipe, way, alignment)?);
            }
        }
        let areas = scratch.iter().enumerate();
        let scratch = areas.map(|(index, area)| slice.scratch(index, area)).collect::<Result<_, _>>()?;
        let bytes = slice.end;
        for ring in &mut rings {
            slice.control(ring)?;
        }
        Ok(BlockLayout { rings, scratch, bytes, size: slice.end, align: slice.align, guard })
    }

    /// What a kernel of such blocks works in.
    pub fn workspace(&self) -> Workspace {
        Workspace { common: 0, block: self.size, align: self.align }
    }
}

/// A slice while its parts are laid down one after the other.
struct Growing {
    end: u64,
    align: u64,
    guard: u64,
}

impl Growing {
    fn ring(&mut self, pipe: &PipeSpec, way: Way, alignment: Alignment) -> Result<RingLayout, LayoutError> {
        let part = Part::Ring(pipe.id, way);
        let slot_stride = round_up(pipe.slot_bytes, alignment.slot).ok_or(LayoutError::PartTooLarge(part))?;
        let bytes = slot_stride.checked_mul(pipe.depth.into()).ok_or(LayoutError::PartTooLarge(part))?;
        let offset = self.add(part, bytes, alignment.ring.max(alignment.slot))?;
        let PipeSpec { id, slot_bytes, depth, .. } = *pipe;
        Ok(RingLayout { pipe: id, way, offset, slot_stride, slot_bytes, depth, control: 0 })
    }

    fn scratch(&mut self, index: usize, area: &Scratch) -> Result<Range<u64>, LayoutError> {
        power_of_two("scratch alignment", area.align)?;
        let offset = self.add(Part::Scratch(index), area.bytes, area.align)?;
        Ok(offset..offset + area.bytes)
    }

    fn control(&mut self, ring: &mut RingLayout) -> Result<(), LayoutError> {
        let range = ring.control_range();
        ring.control = self.add(Part::Control(ring.pipe, ring.way), range.end - range.start, LINE)?;
        Ok(())
    }

    /// Lays down `part` and its guard zone; where it starts.
    fn add(&mut self, part: Part, bytes: u64, align: u64) -> Result<u64, LayoutError> {
        let place = || {
            let start = round_up(self.end, align)?;
            Some((start, start.checked_add(bytes)?.checked_add(self.guard)?))
        };
        let (start, end) = place().ok_or(LayoutError::PartTooLarge(part))?;
        self.end = end;
        self.align = self.align.max(align);
        Ok(start)
    }
}

/// The distinct pipes by id; two declarations of one id must agree.
fn merged(pipes: &[PipeSpec]) -> Result<ArrayVec<PipeSpec, MAX_PARTS>, LayoutError> {
    let mut merged: ArrayVec<PipeSpec, MAX_PARTS> = ArrayVec::new();
    for pipe in pipes {
        match (pipe.slot_bytes, pipe.depth) {
            (0, _) => return Err(LayoutError::EmptySlot { pipe: pipe.id }),
            (_, 0) => return Err(LayoutError::NoSlots { pipe: pipe.id }),
            _ => {}
        }
        match merged.iter().find(|other| other.id == pipe.id) {
            Some(first) => Difference::check(first, pipe)?,
            None => {
                let too_many = |_| LayoutError::TooMany { what: "pipes", count: pipes.len() };
                merged.try_push(*pipe).map_err(too_many)?;
            }
        }
    }
    merged.sort_unstable_by_key(|pipe| pipe.id);
    Ok(merged)
}

fn power_of_two(what: &'static str, value: u64) -> Result<(), LayoutError> {
    if value.is_power_of_two() { Ok(()) } else { Err(LayoutError::NotAPowerOfTwo { what, value }) }
}

fn check_count(what: &'static str, count: usize) -> Result<(), LayoutError> {
    if count <= MAX_PARTS { Ok(()) } else { Err(LayoutError::TooMany { what, count }) }
}

/// The next multiple of `align`, a power of two.
fn round_up(bytes: u64, align: u64) -> Option<u64> {
    Some(bytes.checked_add(align - 1)? & !(align - 1))
}
