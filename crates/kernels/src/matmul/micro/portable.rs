//! Micro kernels in plain Rust, for every machine: up to 6 rows by 16 columns.

use std::hint::black_box;

use super::{BURN_CHAINS, CHUNK, LINE, Leaf, MicroKernels, Packing, Sums, Tile, Transpose, compute};
use crate::bf16::{self, TILE_STEPS};

/// Columns of a tile.
const COLUMNS: usize = 16;

/// For operands as they are.
pub(super) static SINGLE: MicroKernels = MicroKernels {
    packing: Packing::Single,
    rows: 6,
    columns: COLUMNS,
    tiles: &[tile::<1>, tile::<2>, tile::<3>, tile::<4>, tile::<5>, tile::<6>],
    transpose,
    burn,
};

/// For pairs, one step after the other.
pub(super) static SWAPPED: MicroKernels = MicroKernels {
    packing: Packing::Swapped,
    tiles: &[swapped::<1>, swapped::<2>, swapped::<3>, swapped::<4>, swapped::<5>, swapped::<6>],
    ..SINGLE
};

/// For tiles of steps.
pub(super) static ROUNDED: MicroKernels = MicroKernels {
    packing: Packing::Rounded,
    tiles: &[rounded::<1>, rounded::<2>, rounded::<3>, rounded::<4>, rounded::<5>, rounded::<6>],
    ..SINGLE
};

/// The sums of `ROWS` rows.
type Rows<const ROWS: usize> = [[f32; COLUMNS]; ROWS];

impl<const ROWS: usize> Sums for Rows<ROWS> {
    #[inline(always)]
    unsafe fn load(from: *const f32, stride: usize) -> Self {
        // SAFETY: `from` has the elements, by the contract of the trait.
        std::array::from_fn(|row| unsafe { *from.add(row * stride).cast() })
    }

    #[inline(always)]
    unsafe fn behind(mut self, other: *const f32, stride: usize) -> Self {
        // SAFETY: as above.
        let other: Self = unsafe { Self::load(other, stride) };
        let pairs = self.as_flattened_mut().iter_mut().zip(other.as_flattened());
        pairs.for_each(|(sum, other)| *sum += other);
        self
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, stride: usize) {
        for (row, sums) in self.into_iter().enumerate() {
            // SAFETY: as above, for writing.
            unsafe { *to.add(row * stride).cast() = sums };
        }
    }
}

/// The micro kernel of `ROWS` rows.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel).
unsafe fn tile<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe {
        compute::<ROWS, COLUMNS, _>(tile, [[0.0; COLUMNS]; ROWS], |sums, leaf| {
            chain(sums, leaf, f32::mul_add)
        })
    };
}

/// The micro kernel of `ROWS` rows for pairs, one step after the other.
///
/// # Safety
/// As for [`tile`].
unsafe fn swapped<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe {
        compute::<ROWS, COLUMNS, _>(tile, [[0.0; COLUMNS]; ROWS], |sums, leaf| chain(sums, leaf, bf16::fma))
    };
}

/// The sums, each continued by `multiply_add(left, right, sum)` over the words of a leaf.
#[inline(always)]
fn chain<const ROWS: usize>(
    mut sums: Rows<ROWS>,
    leaf: Leaf<'_>,
    multiply_add: impl Fn(f32, f32, f32) -> f32,
) -> Rows<ROWS> {
    for word in 0..leaf.tile.depth {
        if word % CHUNK == 0 {
            leaf.prefetch(word);
        }
        step(&mut sums, &leaf, word, &multiply_add);
    }
    sums
}

/// Adds the products of one word.
#[inline(always)]
fn step<const ROWS: usize>(
    sums: &mut Rows<ROWS>,
    leaf: &Leaf<'_>,
    word: usize,
    multiply_add: &impl Fn(f32, f32, f32) -> f32,
) {
    // SAFETY: `b` holds `depth` packed rows.
    let right = unsafe { *leaf.b.add(word * COLUMNS).cast::<[f32; COLUMNS]>() };
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: `a` holds `ROWS` rows of `depth` words.
        let left = unsafe { *leaf.a.add(word * ROWS + row) };
        for (sum, right) in sums.iter_mut().zip(right) {
            *sum = multiply_add(left, right, *sum);
        }
    }
}

/// The micro kernel of `ROWS` rows for tiles of steps.
///
/// # Safety
/// As for [`tile`].
unsafe fn rounded<const ROWS: usize>(tile: &Tile) {
    let zero: Rows<ROWS> = [[0.0; COLUMNS]; ROWS];
    let products = |mut sums: Rows<ROWS>, leaf: Leaf<'_>| {
        for first in (0..tile.depth).step_by(TILE_STEPS) {
            let [even, odd] = [0, 1].map(|odd| {
                let mut sums = zero;
                let words = (first + odd..first + TILE_STEPS).step_by(2);
                words.for_each(|word| step(&mut sums, &leaf, word, &bf16::fma));
                sums
            });
            let parts = even.as_flattened().iter().zip(odd.as_flattened());
            for (sum, (&even, &odd)) in sums.as_flattened_mut().iter_mut().zip(parts) {
                *sum = bf16::add(*sum, bf16::add(even, odd));
            }
        }
        sums
    };
    // SAFETY: by this function's contract.
    unsafe { compute::<ROWS, COLUMNS, _>(tile, zero, products) };
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
