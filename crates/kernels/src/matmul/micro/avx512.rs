//! Micro kernels for AVX-512: up to 14 rows by 32 columns in 28 of the 32 registers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use super::{BURN_CHAINS, CHUNK, MicroKernel, MicroKernels, Tile, Transpose, prefetch};

/// Elements of a register.
const LANES: usize = 16;
/// Registers side by side in a tile.
const WIDE: usize = 2;

/// The kernels of this file.
pub(super) const KERNELS: MicroKernels =
    MicroKernels { rows: 14, columns: WIDE * LANES, tiles: &TILES, transpose, burn };

static TILES: [MicroKernel; 14] = [
    tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>, tile::<7>, tile::<8>, tile::<9>,
    tile::<10>, tile::<11>, tile::<12>, tile::<13>, tile::<14>,
];

/// Adds the products of the listed steps.
macro_rules! multiply_add_steps {
    ($sums:ident, $a:ident, $b:ident; $($step:literal)*) => {
        {$(
            let right = [
                _mm512_loadu_ps($b.add($step * WIDE * LANES)),
                _mm512_loadu_ps($b.add($step * WIDE * LANES + LANES)),
            ];
            multiply_add_rows!($sums, $a, right, $step; 0 1 2 3 4 5 6 7 8 9 10 11 12 13);
        )*}
    };
}

/// Adds one step's products to each listed row below `ROWS`.
///
/// Of four rows, one is broadcast into a register. That relieves the load ports, of which the broadcasting operands of
/// the other three take two loads a row, and costs few instructions, which matter when another thread shares the core.
macro_rules! multiply_add_rows {
    ($sums:ident, $a:ident, $right:ident, $step:literal; $($row:literal)*) => {
        $(if $row < ROWS {
            if $row % 4 == 0 {
                multiply_add_broadcast!($sums[$row], $a, $step * ROWS + $row, $right);
            } else {
                multiply_add!($sums[$row][0], $a, $step * ROWS + $row, $right[0]);
                multiply_add!($sums[$row][1], $a, $step * ROWS + $row, $right[1]);
            }
        })*
    };
}

/// Adds `$right` times element `$at` of `$a` to a register; the element is an operand of the multiply-add itself.
///
/// The intrinsics cannot express that, since the compiler merges the two loads of an element.
macro_rules! multiply_add {
    ($sum:expr, $a:ident, $at:expr, $right:expr) => {
        asm!(
            "vfmadd231ps {sum}, {right}, dword ptr [{a} + {offset}]{{1to16}}",
            sum = inout(zmm_reg) $sum,
            right = in(zmm_reg) $right,
            a = in(reg) $a,
            offset = const 4 * ($at),
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

/// Adds both of `$right` times element `$at` of `$a` to two registers.
macro_rules! multiply_add_broadcast {
    ($sums:expr, $a:ident, $at:expr, $right:ident) => {
        asm!(
            "vbroadcastss {left}, dword ptr [{a} + {offset}]",
            "vfmadd231ps {first}, {right}, {left}",
            "vfmadd231ps {second}, {next}, {left}",
            left = out(zmm_reg) _,
            first = inout(zmm_reg) $sums[0],
            second = inout(zmm_reg) $sums[1],
            right = in(zmm_reg) $right[0],
            next = in(zmm_reg) $right[1],
            a = in(reg) $a,
            offset = const 4 * ($at),
            options(pure, readonly, nostack, preserves_flags),
        )
    };
}

type Sums<const ROWS: usize> = [[__m512; WIDE]; ROWS];

/// The micro kernel of `ROWS` rows.
///
/// # Safety
/// As for [`MicroKernel`], on a machine with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize>(tile: &Tile) {
    let mut sums: Sums<ROWS> = [[_mm512_setzero_ps(); WIDE]; ROWS];
    if !tile.start.is_null() {
        // SAFETY: `start` is a whole packed tile.
        sums = unsafe { combined(sums, tile.start, WIDE * LANES, |_, start| start) };
    }
    let (mut a, mut b) = (tile.a, tile.b);
    for chunk in 0..tile.depth / CHUNK {
        prefetch(tile, chunk);
        // SAFETY: `a` and `b` hold the steps of this chunk.
        unsafe { multiply_add_steps!(sums, a, b; 0 1 2 3 4 5 6 7) };
        a = a.wrapping_add(CHUNK * ROWS);
        b = b.wrapping_add(CHUNK * WIDE * LANES);
    }
    for _ in 0..tile.depth % CHUNK {
        // SAFETY: `a` and `b` hold this step.
        unsafe { multiply_add_steps!(sums, a, b; 0) };
        a = a.wrapping_add(ROWS);
        b = b.wrapping_add(WIDE * LANES);
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
    let add = |sum, other| unsafe { _mm512_add_ps(other, sum) };
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
            unsafe { _mm512_storeu_ps(tile.out.add(row * tile.out_row + half * LANES), sum) };
        }
    }
}

/// The tile with every register combined with the matching elements at `other`, rows `stride` apart.
///
/// # Safety
/// `other` must be readable at every row and column of the tile, on a machine with AVX-512F.
#[inline(always)]
unsafe fn combined<const ROWS: usize>(
    mut sums: Sums<ROWS>,
    other: *const f32,
    stride: usize,
    combine: impl Fn(__m512, __m512) -> __m512,
) -> Sums<ROWS> {
    for (row, sums) in sums.iter_mut().enumerate() {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            *sum = combine(*sum, unsafe { _mm512_loadu_ps(other.add(row * stride + half * LANES)) });
        }
    }
    sums
}

/// Does `iterations` rounds of [`super::BURN_CHAINS`] independent fused multiply-adds on registers.
///
/// # Safety
/// The machine must have AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn burn(iterations: u64) -> f32 {
    let (scale, shift) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.5)));
    let mut sums = [_mm512_setzero_ps(); BURN_CHAINS];
    for (chain, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_set1_ps(black_box(chain as f32));
    }
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, scale, shift);
        }
    }
    sums.into_iter().map(|sum| _mm512_cvtss_f32(sum)).sum()
}

/// Stores a block column by column.
///
/// # Safety
/// The block's pointers must be valid for its sizes, on a machine with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(block: &Transpose) {
    let mask = u16::MAX >> (LANES - block.columns);
    let mut rows = [_mm512_setzero_ps(); LANES];
    for (row, lanes) in rows.iter_mut().enumerate().take(block.rows) {
        // SAFETY: the row is one of the block's, and the mask covers its columns.
        *lanes = unsafe { _mm512_maskz_loadu_ps(mask, block.source.add(row * block.source_row)) };
    }
    let columns = transposed(rows);
    for (column, lanes) in columns.into_iter().enumerate().take(block.columns) {
        // SAFETY: `packed` has room for `columns` rows of a line.
        unsafe { _mm512_storeu_ps(block.packed.add(column * block.packed_row), lanes) };
    }
}

/// The 16 columns of 16 rows: pairs, then quadruples, then whole columns of neighboring rows come together.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut pairs = rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // After this, `quads[4 * g + c]` holds columns c, c + 4, c + 8, c + 12 of rows 4g to 4g + 3.
    let mut quads = pairs;
    for i in (0..LANES).step_by(4) {
        for half in 0..2 {
            let (low, high) = (_mm512_castps_pd(pairs[i + half]), _mm512_castps_pd(pairs[i + half + 2]));
            quads[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            quads[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    let mut columns = quads;
    for c in 0..4 {
        let [a, b, d, e] = [quads[c], quads[4 + c], quads[8 + c], quads[12 + c]];
        let (upper_even, upper_odd) =
            (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (lower_even, lower_odd) =
            (_mm512_shuffle_f32x4::<0x88>(d, e), _mm512_shuffle_f32x4::<0xdd>(d, e));
        columns[c] = _mm512_shuffle_f32x4::<0x88>(upper_even, lower_even);
        columns[c + 8] = _mm512_shuffle_f32x4::<0xdd>(upper_even, lower_even);
        columns[c + 4] = _mm512_shuffle_f32x4::<0x88>(upper_odd, lower_odd);
        columns[c + 12] = _mm512_shuffle_f32x4::<0xdd>(upper_odd, lower_odd);
    }
    columns
}
