//! A loop of fused multiply-adds on registers only, by which a caller with a clock measures the machine's peak.

use phalanx_ir::Precision;

use super::micro::{BURN_CHAINS, MicroKernels};
use crate::isa::Isa;

/// Does `iterations` rounds of independent fused multiply-adds; the result only keeps them alive.
pub fn fma_burn(iterations: u64) -> f32 {
    // SAFETY: `Isa::current` is only ever an instruction set this machine has.
    unsafe { (MicroKernels::of(Isa::current(), Precision::F32).burn)(iterations) }
}

/// Floating-point operations of `iterations` rounds of [`fma_burn`].
pub fn fma_burn_flops(iterations: u64) -> u64 {
    let lanes = match Isa::current() {
        Isa::Portable => 1,
        Isa::Avx2 => 8,
        Isa::Avx512 => 16,
    };
    2 * iterations * BURN_CHAINS as u64 * lanes
}
