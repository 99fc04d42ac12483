//! Micro kernels for AVX2 with FMA: up to 6 rows by 16 columns in 12 of the 16 registers.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::flush::{self, Unit};
use super::{BURN_CHAINS, CHUNK, Leaf, MicroKernels, Packing, Sums, Tile, compute};

/// Elements of a register.
const LANES: usize = 8;
/// Registers side by side in a tile.
const WIDE: usize = 2;
/// Columns of a tile.
const COLUMNS: usize = WIDE * LANES;

/// For operands as they are.
pub(super) static SINGLE: MicroKernels = MicroKernels {
    packing: Packing::Single,
    rows: 6,
    columns: COLUMNS,
    tiles: &[tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>],
    transpose: super::portable::transpose,
    burn,
};

/// For pairs, one step after the other.
pub(super) static SWAPPED: MicroKernels = MicroKernels {
    packing: Packing::Swapped,
    tiles: &[swapped::<1>, swapped::<2>, swapped::<3>, swapped::<4>, swapped::<5>, swapped::<6>],
    ..SINGLE
};

/// For tiles of steps: even and odd ones have sums of their own, so there are fewer rows.
pub(super) static ROUNDED: MicroKernels = MicroKernels {
    packing: Packing::Rounded,
    rows: 3,
    tiles: &[rounded::<1>, rounded::<2>, rounded::<3>],
    ..SINGLE
};

/// The sums of `ROWS` rows.
#[derive(Clone, Copy)]
struct Registers<const ROWS: usize>([[__m256; WIDE]; ROWS]);

impl<const ROWS: usize> Registers<ROWS> {
    /// The registers, each made from itself and the address of the elements that it stands for, rows `stride` apart.
    #[inline(always)]
    fn map(mut self, base: *const f32, stride: usize, make: impl Fn(__m256, *const f32) -> __m256) -> Self {
        for (row, sums) in self.0.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = make(*sum, base.wrapping_add(row * stride + half * LANES));
            }
        }
        self
    }

    /// Zeros.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn zero() -> Self {
        Registers([[_mm256_setzero_ps(); WIDE]; ROWS])
    }
}

impl<const ROWS: usize> Sums for Registers<ROWS> {
    #[inline(always)]
    unsafe fn load(from: *const f32, stride: usize) -> Self {
        // SAFETY: the machine has AVX2 and `from` the elements, by the contract of the trait.
        unsafe { Self::zero().map(from, stride, |_, from| _mm256_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn behind(self, other: *const f32, stride: usize) -> Self {
        // SAFETY: as above.
        self.map(other, stride, |sum, other| unsafe { _mm256_add_ps(_mm256_loadu_ps(other), sum) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, stride: usize) {
        let put = |sum, to: *const f32| {
            // SAFETY: as above, for writing.
            unsafe { _mm256_storeu_ps(to.cast_mut(), sum) };
            sum
        };
        self.map(to, stride, put);
    }
}

/// The micro kernel of `ROWS` rows.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel), on a machine with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize>(tile: &Tile) {
    let products = |sums: Registers<ROWS>, leaf: Leaf<'_>| {
        let Registers(mut sums) = sums;
        for word in 0..tile.depth {
            if word % CHUNK == 0 {
                leaf.prefetch(word);
            }
            let (a, b) = (leaf.a.wrapping_add(word * ROWS), leaf.b.wrapping_add(word * COLUMNS));
            // SAFETY: `b` holds `depth` rows of the full width.
            let right = unsafe { [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(LANES))] };
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `a` holds `depth` words of `ROWS` rows.
                let left = unsafe { _mm256_broadcast_ss(&*a.add(row)) };
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm256_fmadd_ps(left, right, *sum);
                }
            }
        }
        Registers(sums)
    };
    // SAFETY: by this function's contract.
    unsafe { compute::<ROWS, COLUMNS, _>(tile, Registers::zero(), products) };
}

/// The micro kernel of `ROWS` rows for pairs, one step after the other.
///
/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn swapped<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe { flushing::<ROWS>(tile, flush::avx2::STEPS) };
}

/// The micro kernel of `ROWS` rows for tiles of steps.
///
/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn rounded<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe { flushing::<ROWS>(tile, flush::avx2::TILES) };
}

/// The micro kernel of `ROWS` rows whose products are added by chains of `unit`.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn flushing<const ROWS: usize>(tile: &Tile, unit: Unit) {
    let products = |mut sums: Registers<ROWS>, leaf: Leaf<'_>| {
        // SAFETY: the registers are rows of the full width, the leaf has words for them.
        unsafe { flush::run::<ROWS, COLUMNS>(unit, (&raw mut sums).cast(), leaf) };
        sums
    };
    // SAFETY: by this function's contract.
    unsafe { compute::<ROWS, COLUMNS, _>(tile, Registers::zero(), products) };
}

/// Does `iterations` rounds of [`super::BURN_CHAINS`] independent fused multiply-adds on registers.
///
/// # Safety
/// The machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn burn(iterations: u64) -> f32 {
    let (scale, shift) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.5)));
    let mut sums = [_mm256_setzero_ps(); BURN_CHAINS];
    for (chain, sum) in sums.iter_mut().enumerate() {
        *sum = _mm256_set1_ps(black_box(chain as f32));
    }
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, scale, shift);
        }
    }
    sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
}
