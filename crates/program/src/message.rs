//! What the operations that talk to other ranks move.
//!
//! A [`SEND`](crate::SEND) and an [`ARRIVE`](crate::ARRIVE) have a list of *message ends*. A message has one end on each
//! of two ranks: the same tag, the same number of bytes, but each end its own place in memory, whose bytes go one after
//! the other.

use phalanx_strided::ByteRuns;

/// One end of a message between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageEnd {
    /// The other rank.
    pub peer: u32,
    /// Distinguishes the message from all others that go the same way between the same ranks.
    pub tag: u32,
    /// The device of the other end.
    pub device: u32,
    /// Which slice: of those that a send reads, or that an arrival writes.
    pub slice: u32,
    /// Where its bytes lie in the slice.
    pub runs: ByteRuns,
}

impl MessageEnd {
    /// All its bytes.
    pub fn bytes(&self) -> u64 {
        self.runs.bytes() as u64
    }
}
