//! What can be wrong with the declared parts of a block.

use std::fmt;

use super::{Direction, MAX_PARTS, Part, PipeSpec};

/// Why a block cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A pipe whose tiles have no bytes.
    #[error("pipe {pipe} has slots of 0 bytes; declare the bytes of its largest tile")]
    EmptySlot {
        /// The pipe.
        pipe: u16,
    },
    /// A ring without slots.
    #[error("pipe {pipe} has depth 0; a ring needs at least one slot")]
    NoSlots {
        /// The pipe.
        pipe: u16,
    },
    /// Two declarations of one pipe that differ.
    #[error("pipe {pipe} is declared with {difference}; both halves must declare the same")]
    Conflict {
        /// The pipe.
        pipe: u16,
        /// In what they differ.
        difference: Difference,
    },
    /// An alignment that is no power of two.
    #[error("{what} {value} is not a power of two")]
    NotAPowerOfTwo {
        /// Whose alignment.
        what: &'static str,
        /// The alignment.
        value: u64,
    },
    /// More parts than a block can have.
    #[error("a block with {count} {what}; it can have at most {MAX_PARTS}")]
    TooMany {
        /// Which parts.
        what: &'static str,
        /// How many are declared.
        count: usize,
    },
    /// A slice that would end past the largest address.
    #[error("{0} ends past the largest 64-bit offset; make its tiles or its depth smaller")]
    PartTooLarge(Part),
}

/// The first field in which two declarations of a pipe differ, with both values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Which way tiles travel.
    Direction(Direction, Direction),
    /// Bytes of a slot.
    SlotBytes(u64, u64),
    /// Slots of a ring.
    Depth(u32, u32),
}

impl Difference {
    /// Two declarations of one pipe must be equal.
    pub(super) fn check(a: &PipeSpec, b: &PipeSpec) -> Result<(), LayoutError> {
        let difference = if a.direction != b.direction {
            Difference::Direction(a.direction, b.direction)
        } else if a.slot_bytes != b.slot_bytes {
            Difference::SlotBytes(a.slot_bytes, b.slot_bytes)
        } else if a.depth != b.depth {
            Difference::Depth(a.depth, b.depth)
        } else {
            return Ok(());
        };
        Err(LayoutError::Conflict { pipe: a.id, difference })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Direction(a, b) => write!(f, "direction {a:?} and direction {b:?}"),
            Difference::SlotBytes(a, b) => write!(f, "slot size {a} and slot size {b}"),
            Difference::Depth(a, b) => write!(f, "depth {a} and depth {b}"),
        }
    }
}
