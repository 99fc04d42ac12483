//! What kernels do: floating-point operations and bytes. A kernel's own file says it; movements count their pieces.

#[cfg(test)]
mod tests;

pub use phalanx_kernels::Work;
use phalanx_kernels::{Sizes, table};
use phalanx_program::{Piece, traffic};

use super::Signature;

/// What a movement does.
pub fn movement_work(pieces: &[Piece]) -> Work {
    let (read, written) = traffic(pieces);
    // Each further part of a sum is one addition of 32-bit floats.
    let added = read.saturating_sub(written) / 4;
    Work { flops: added as f64, bytes: read as f64 + written as f64 }
}

impl Signature {
    /// What the kernel does.
    pub fn work(&self) -> Work {
        let sizes = Sizes { reads: &self.reads, writes: &self.writes };
        let kernel = table::find(&self.kernel);
        kernel.map_or_else(|| sizes.work(0.0, false), |kernel| (kernel.work)(&self.words, &sizes))
    }

    /// Whether its time is that of matrix products.
    pub fn is_product(&self) -> bool {
        table::find(&self.kernel).is_some_and(|kernel| kernel.is_product)
    }
}
