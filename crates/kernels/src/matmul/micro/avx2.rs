//! Micro kernels for AVX2 with FMA: up to 6 rows by 16 columns in 12 of the 16 registers.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::{BURN_CHAINS, CHUNK, MicroKernel, MicroKernels, Tile, prefetch};

/// Elements of a register.
const LANES: usize = 8;
/// Registers side by side in a tile.
const WIDE: usize = 2;

/// The kernels of this file.
pub(super) const KERNELS: MicroKernels = MicroKernels {
    rows: 6,
    columns: WIDE * LANES,
    tiles: &TILES,
    transpose: super::portable::transpose,
    burn,
};

static TILES: [MicroKernel; 6] = [tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>];

type Sums<const ROWS: usize> = [[__m256; WIDE]; ROWS];

/// The micro kernel of `ROWS` rows.
///
/// # Safety
/// As for [`MicroKernel`], on a machine with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize>(tile: &Tile) {
    let mut sums: Sums<ROWS> = [[_mm256_setzero_ps(); WIDE]; ROWS];
    if !tile.start.is_null() {
        // SAFETY: `start` is a whole packed tile.
        sums = unsafe { combined(sums, tile.start, WIDE * LANES, |_, start| start) };
    }
    let (mut a, mut b) = (tile.a, tile.b);
    for chunk in 0..tile.depth.div_ceil(CHUNK) {
        prefetch(tile, chunk);
        for _ in 0..CHUNK.min(tile.depth - chunk * CHUNK) {
            // SAFETY: `b` holds `depth` rows of the full width.
            let right = unsafe { [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(LANES))] };
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `a` holds `depth` steps of `ROWS` rows.
                let left = unsafe { *a.add(row) };
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm256_fmadd_ps(_mm256_set1_ps(left), right, *sum);
                }
            }
            a = a.wrapping_add(ROWS);
            b = b.wrapping_add(WIDE * LANES);
        }
    }
    // SAFETY: the rest of the tile's pointers are valid by this function's contract.
    unsafe { finish(sums, tile) };
}

/// Merges the older tiles, adds the bias and writes the tile.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn finish<const ROWS: usize>(mut sums: Sums<ROWS>, tile: &Tile) {
    // SAFETY: the machine has the instruction by the contract of this function.
    let add = |sum, other| unsafe { _mm256_add_ps(other, sum) };
    for merge in 0..tile.merges {
        // SAFETY: there are `merges` older tiles, each of them whole.
        sums = unsafe { combined(sums, tile.older.add(merge * tile.older_step), WIDE * LANES, add) };
    }
    if !tile.bias.is_null() {
        // SAFETY: `bias` has one value per column; all rows read the same.
        sums = unsafe { combined(sums, tile.bias, 0, add) };
    }
    if !tile.addend.is_null() {
        // SAFETY: the addend is a whole tile of rows `out_row` apart, as `out` is.
        sums = unsafe { combined(sums, tile.addend, tile.out_row, add) };
    }
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(tile.out.add(row * tile.out_row + half * LANES), sum) };
        }
    }
}

/// The tile with every register combined with the matching elements at `other`, rows `stride` apart.
///
/// # Safety
/// `other` must be readable at every row and column of the tile, on a machine with AVX2 and FMA.
#[inline(always)]
unsafe fn combined<const ROWS: usize>(
    mut sums: Sums<ROWS>,
    other: *const f32,
    stride: usize,
    combine: impl Fn(__m256, __m256) -> __m256,
) -> Sums<ROWS> {
    for (row, sums) in sums.iter_mut().enumerate() {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            *sum = combine(*sum, unsafe { _mm256_loadu_ps(other.add(row * stride + half * LANES)) });
        }
    }
    sums
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
