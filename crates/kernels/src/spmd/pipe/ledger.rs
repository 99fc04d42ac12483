//! The books of a block: what went through each of its rings.

use std::fmt;

use arrayvec::ArrayVec;

use super::Half;
use super::ring::Gauge;
use crate::spmd::layout::{MAX_PARTS, Way};

/// What went through one ring so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// The pipe.
    pub pipe: u16,
    /// Which of its rings.
    pub way: Way,
    /// How many tiles it can hold.
    pub depth: u64,
    /// Tiles the producer has handed over.
    pub pushed: u64,
    /// Tiles the consumer has taken.
    pub popped: u64,
    /// Tiles the consumer has given back.
    pub freed: u64,
}

impl RingState {
    /// Whether every tile pushed was popped and freed.
    pub fn is_balanced(&self) -> bool {
        self.pushed == self.popped && self.popped == self.freed
    }
}

impl fmt::Display for RingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RingState { pipe, way, depth, pushed, popped, freed } = self;
        write!(
            f,
            "pipe {pipe} {way}: {pushed} pushed, {popped} popped, {freed} freed of {depth} slots at a time"
        )
    }
}

/// Reads the cursors of all rings of a block, also while the halves run.
#[derive(Clone, Default)]
pub struct Ledger<'a> {
    pub(super) gauges: ArrayVec<Gauge<'a>, MAX_PARTS>,
}

impl Ledger<'_> {
    /// The state of every ring, exact once both halves have ended.
    pub fn states(&self) -> impl Iterator<Item = RingState> {
        self.gauges.iter().map(|gauge| RingState {
            pipe: gauge.pipe,
            way: gauge.way,
            depth: gauge.depth,
            pushed: gauge.head().read().count(),
            popped: gauge.popped().get(),
            freed: gauge.tail().read().count(),
        })
    }

    /// A number that grows with every step of either half on any ring, and with every end that closes.
    pub(in crate::spmd) fn progress(&self) -> u64 {
        let steps = |gauge: &Gauge<'_>| gauge.head().read().progress() + gauge.tail().read().progress();
        self.gauges.iter().map(steps).sum()
    }

    /// Marks all ends of `half`, which the caller runs, as failed: its peer stops instead of waiting for it.
    pub(in crate::spmd) fn fail(&self, half: Half) {
        for gauge in &self.gauges {
            if half.produces(gauge.way) { gauge.head() } else { gauge.tail() }.fail();
        }
    }
}
