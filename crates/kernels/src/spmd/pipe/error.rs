//! What can go wrong with a pipe, for the half that uses it.

use super::Half;
use crate::spmd::layout::{Part, Way};

/// Why a half cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipeError {
    /// An end that this half does not have.
    #[error("the {half} has no {end} of pipe {pipe}: it is not declared that way, or taken already")]
    NoEnd {
        /// The half that asked.
        half: Half,
        /// For which pipe.
        pipe: u16,
        /// Producer or consumer.
        end: &'static str,
    },
    /// The other half panicked or returned an error.
    #[error("the other end of the {way} ring of pipe {pipe} failed")]
    PeerFailed {
        /// The pipe.
        pipe: u16,
        /// Which of its rings.
        way: Way,
    },
    /// The consumer is gone and the ring is full.
    #[error("the {way} ring of pipe {pipe} is full with {depth} tiles and its consumer has ended")]
    PeerEnded {
        /// The pipe.
        pipe: u16,
        /// Which of its rings.
        way: Way,
        /// Its slots, all full.
        depth: u64,
    },
    /// A tile that its slot cannot hold.
    #[error(
        "a tile of {rows} rows of {columns} numbers does not fit a slot of {slot_bytes} bytes of pipe {pipe}"
    )]
    TileTooLarge {
        /// The pipe.
        pipe: u16,
        /// Its valid rows.
        rows: usize,
        /// Its valid columns.
        columns: usize,
        /// What a slot holds.
        slot_bytes: usize,
    },
}

impl PipeError {
    /// Whether the cause lies with the other half.
    pub fn is_consequence(self) -> bool {
        matches!(self, PipeError::PeerFailed { .. } | PipeError::PeerEnded { .. })
    }
}

/// Why a slice cannot hold a block's pipes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A slice that is shorter than its layout.
    #[error("a slice of {have} bytes for a layout of {need}")]
    TooShort {
        /// Bytes of the slice.
        have: usize,
        /// Bytes of the layout.
        need: u64,
    },
    /// A slice at an address its layout does not allow.
    #[error("a slice at an address that is no multiple of {align}; align the workspace")]
    Misaligned {
        /// The layout's alignment.
        align: u64,
    },
    /// Slots that cannot hold 32-bit floats.
    #[error("the slots of {0} do not start at multiples of 4 bytes; align slots and rings to 4")]
    SlotsMisaligned(Part),
    /// Slots that reach into the next one: a layout not made by `plan`.
    #[error("the slots of {part} have {bytes} bytes each, but the next one begins after {stride}")]
    SlotTooLong {
        /// The ring.
        part: Part,
        /// Bytes of a slot that may be used.
        bytes: u64,
        /// Bytes from one slot to the next.
        stride: u64,
    },
    /// A layout not made by `plan`.
    #[error("{0} overlaps another part of its slice")]
    Overlap(Part),
}
