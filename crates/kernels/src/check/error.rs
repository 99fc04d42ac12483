//! What a kernel did that it must not do.

use super::{Part, Spot, Step};

/// An access that a kernel must not make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// It changed what it was not given to write.
    #[error("kernel `{kernel}`: {step} writes {spot} bytes{}", reason(spot))]
    Write {
        /// The kernel.
        kernel: &'static str,
        /// When.
        step: Step,
        /// What.
        spot: Spot,
    },
    /// Blocks that may run at the same time changed the same byte.
    #[error("kernel `{kernel}`: blocks {} and {} both write {spot} bytes, in phase {phase}", blocks[0], blocks[1])]
    Overlap {
        /// The kernel.
        kernel: &'static str,
        /// The blocks, ascending.
        blocks: [usize; 2],
        /// How many phases were over.
        phase: usize,
        /// What.
        spot: Spot,
    },
    /// Its results depend on bytes that were never written.
    #[error("kernel `{kernel}`: {step} reads {spot} bytes{}", if spot.is_inside() { "; it was never written" } else { "" })]
    Read {
        /// The kernel.
        kernel: &'static str,
        /// When.
        step: Step,
        /// What.
        spot: Spot,
    },
}

/// Why a byte must not be written.
fn reason(spot: &Spot) -> &'static str {
    match spot.part {
        Part::Read(..) if spot.is_inside() => "; it may only be read",
        Part::Slice(_) if spot.is_inside() => "; it is another block's",
        _ => "",
    }
}
