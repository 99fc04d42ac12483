//! Micro kernels in plain Rust, for every machine: up to 6 rows by 16 columns.

use std::hint::black_box;

use super::{BURN_CHAINS, CHUNK, LINE, MicroKernel, MicroKernels, Tile, Transpose, prefetch};

/// Columns of a tile.
const COLUMNS: usize = 16;

/// The kernels of this file.
pub(super) const KERNELS: MicroKernels =
    MicroKernels { rows: 6, columns: COLUMNS, tiles: &TILES, transpose, burn };

static TILES: [MicroKernel; 6] = [tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>];

type Sums<const ROWS: usize> = [[f32; COLUMNS]; ROWS];

/// The micro kernel of `ROWS` rows.
///
/// # Safety
/// As for [`MicroKernel`].
unsafe fn tile<const ROWS: usize>(tile: &Tile) {
    let mut sums: Sums<ROWS> = [[0.0; COLUMNS]; ROWS];
    if !tile.start.is_null() {
        // SAFETY: `start` is a whole packed tile.
        unsafe { for_each(&mut sums, tile.start, COLUMNS, |_, start| start) };
    }
    for step in 0..tile.depth {
        if step % CHUNK == 0 {
            prefetch(tile, step / CHUNK);
        }
        // SAFETY: `b` holds `depth` packed rows.
        let right = unsafe { *tile.b.add(step * COLUMNS).cast::<[f32; COLUMNS]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `a` holds `ROWS` rows of `depth` steps.
            let left = unsafe { *tile.a.add(step * ROWS + row) };
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = left.mul_add(right, *sum);
            }
        }
    }
    // SAFETY: the rest of the tile's pointers are valid by this function's contract.
    unsafe { finish(&mut sums, tile) };
}

/// Merges the older tiles, adds the bias and writes the tile.
///
/// # Safety
/// As for [`tile`].
#[inline]
unsafe fn finish<const ROWS: usize>(sums: &mut Sums<ROWS>, tile: &Tile) {
    let add = |sum: f32, other: f32| other + sum;
    for merge in 0..tile.merges {
        // SAFETY: there are `merges` older tiles, each of them whole.
        unsafe { for_each(sums, tile.older.add(merge * tile.older_step), COLUMNS, add) };
    }
    if !tile.bias.is_null() {
        // SAFETY: `bias` has one value per column; all rows read the same.
        unsafe { for_each(sums, tile.bias, 0, add) };
    }
    if !tile.addend.is_null() {
        // SAFETY: the addend is a whole tile of rows `out_row` apart, as `out` is.
        unsafe { for_each(sums, tile.addend, tile.out_row, add) };
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as above.
        unsafe { *tile.out.add(row * tile.out_row).cast::<[f32; COLUMNS]>() = *sums };
    }
}

/// Combines every element of the tile with the matching one at `other`, rows `stride` apart.
///
/// # Safety
/// `other` must be readable at every row and column of the tile.
#[inline(always)]
unsafe fn for_each<const ROWS: usize>(
    sums: &mut Sums<ROWS>,
    other: *const f32,
    stride: usize,
    combine: impl Fn(f32, f32) -> f32,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: by this function's contract.
        let other = unsafe { *other.add(row * stride).cast::<[f32; COLUMNS]>() };
        for (sum, other) in sums.iter_mut().zip(other) {
            *sum = combine(*sum, other);
        }
    }
}

/// Does `iterations` rounds of [`BURN_CHAINS`] independent fused multiply-adds.
///
/// # Safety
/// None; the type is that of the other instruction sets.
unsafe fn burn(iterations: u64) -> f32 {
    let (scale, shift) = (black_box(0.999f32), black_box(0.5f32));
    let mut sums: [f32; BURN_CHAINS] = std::array::from_fn(|chain| black_box(chain as f32));
    for _ in 0..iterations {
        for sum in &mut sums {
            *sum = sum.mul_add(scale, shift);
        }
    }
    sums.into_iter().sum()
}

/// Stores a block column by column.
///
/// # Safety
/// The block's pointers must be valid for its sizes.
pub(super) unsafe fn transpose(block: &Transpose) {
    for column in 0..block.columns {
        for lane in 0..LINE {
            // SAFETY: `packed` has room for `columns` rows of a line.
            let packed = unsafe { &mut *block.packed.add(column * block.packed_row + lane) };
            *packed = match lane < block.rows {
                // SAFETY: row and column lie inside the block.
                true => unsafe { *block.source.add(lane * block.source_row + column) },
                false => 0.0,
            };
        }
    }
}
