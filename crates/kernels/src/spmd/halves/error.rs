//! Why a block of two halves failed, and which of several failures is the cause.

use super::super::pipe::{Half, Ledger, OpenError, PipeError, RingState};
use super::step::{Outcome, Stop};

/// Why a launch of blocks of two halves failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// A slice that cannot hold the block's pipes.
    #[error("block {block}: {error}")]
    Open {
        /// The block.
        block: u64,
        /// What is wrong with its slice.
        error: OpenError,
    },
    /// A half that returned an error of its own.
    #[error("block {block}, {half}: {error}")]
    Half {
        /// The block.
        block: u64,
        /// Which half.
        half: Half,
        /// Its error.
        error: PipeError,
    },
    /// A half that panicked.
    #[error("block {block}, {half}: panicked: {message}")]
    Panicked {
        /// The block.
        block: u64,
        /// Which half.
        half: Half,
        /// What the panic says.
        message: String,
    },
    /// Halves that wait for each other.
    #[error("block {block}: both halves wait for each other; {}", listed(rings))]
    Deadlock {
        /// The block.
        block: u64,
        /// Where its rings stood.
        rings: Vec<RingState>,
    },
    /// A ring through which not every tile has gone.
    #[error("block {block}: the halves do not push and pop as many tiles; {ring}")]
    PipeImbalance {
        /// The block.
        block: u64,
        /// Where the ring stood at the block's end.
        ring: RingState,
    },
}

impl BlockError {
    /// The block that failed; 0 if none has started.
    pub fn block(&self) -> u64 {
        match *self {
            BlockError::Open { block, .. }
            | BlockError::Half { block, .. }
            | BlockError::Panicked { block, .. }
            | BlockError::Deadlock { block, .. }
            | BlockError::PipeImbalance { block, .. } => block,
        }
    }
}

fn listed(rings: &[RingState]) -> String {
    rings.iter().map(RingState::to_string).collect::<Vec<_>>().join("; ")
}

/// What became of a block whose halves ended so.
///
/// A half's own failure comes first. Errors that only tell of the peer come last: they follow from its failure, from a
/// deadlock or from counts that differ, which tells more.
pub(super) fn verdict(block: u64, outcomes: [Outcome; 2], ledger: &Ledger<'_>) -> Result<(), BlockError> {
    let mut consequence = Ok(());
    for (half, outcome) in [Half::Matrix, Half::Vector].into_iter().zip(outcomes) {
        match outcome {
            Ok(()) => {}
            Err(Stop::Panicked(message)) => return Err(BlockError::Panicked { block, half, message }),
            Err(Stop::Stuck) => consequence = Err(deadlock(block, ledger)),
            Err(Stop::Error(error)) if error.is_consequence() => {
                consequence = consequence.and(Err(BlockError::Half { block, half, error }));
            }
            Err(Stop::Error(error)) => return Err(BlockError::Half { block, half, error }),
        }
    }
    if let Err(deadlock @ BlockError::Deadlock { .. }) = consequence {
        return Err(deadlock);
    }
    match ledger.states().find(|ring| !ring.is_balanced()) {
        Some(ring) => Err(BlockError::PipeImbalance { block, ring }),
        None => consequence,
    }
}

fn deadlock(block: u64, ledger: &Ledger<'_>) -> BlockError {
    BlockError::Deadlock { block, rings: ledger.states().collect() }
}
