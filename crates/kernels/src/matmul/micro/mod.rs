//! Micro kernels: one tile of the output, accumulated in registers over one block of the summed axis.
//!
//! Every element of a tile is one chain of fused multiply-adds in ascending order, so all instruction sets, tile
//! heights and tile widths give the same bits. A micro kernel knows nothing of packing, threads or the tree over
//! leaves beyond "add these older tiles in front".

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::isa::Isa;

/// The largest number of elements in a tile of any instruction set.
pub(super) const MAX_TILE: usize = 14 * 32;

/// Steps between two prefetches.
pub(super) const CHUNK: usize = 8;

/// Elements of a cache line.
pub(super) const LINE: usize = 16;

/// Chains of a burn: enough to hide the latency of two fused multiply-add ports.
pub(super) const BURN_CHAINS: usize = 12;

/// Memory to be fetched into the second-level cache: one pair of cache lines every [`CHUNK`] steps.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    /// The first pair.
    pub at: *const f32,
    /// Distance between pairs.
    pub step: usize,
    /// How many pairs.
    pub pairs: usize,
}

impl Fetch {
    /// Fetches nothing.
    pub const NOTHING: Fetch = Fetch { at: std::ptr::null(), step: 0, pairs: 0 };
}

/// The most fetches of one call: both operands, three slots, three arrays of the epilogue.
pub(super) const MAX_FETCHES: usize = 8;

/// The work of one micro kernel call: `rows x columns` sums over `depth` steps.
///
/// The tile is first `start` (or zero), then gets its products, then each of `merges` older tiles is added in front
/// (`older + tile`), then the bias, then the addend; at last it is written to `out`.
pub(super) struct Tile {
    /// How many products each element gets.
    pub depth: usize,
    /// The packed left operand: one element per row, step after step.
    pub a: *const f32,
    /// The packed right operand: one row of the full tile width per step.
    pub b: *const f32,
    /// Memory that is read or written after this call.
    pub fetches: [Fetch; MAX_FETCHES],
    /// The chain so far as packed rows of the full tile width, or null to start from zero.
    pub start: *const f32,
    /// The older tiles to add, `older_step` elements apart.
    pub older: *const f32,
    /// Distance between two older tiles.
    pub older_step: usize,
    /// How many older tiles there are.
    pub merges: usize,
    /// One value per column, or null.
    pub bias: *const f32,
    /// Where the tile goes.
    pub out: *mut f32,
    /// Distance between rows of `out` and of the addend.
    pub out_row: usize,
    /// What is added at last, which may be `out` itself, or null.
    pub addend: *const f32,
}

/// A micro kernel for a fixed number of rows and columns.
///
/// # Safety
/// The machine must have the kernel's instruction set. Every pointer of the tile must be valid for the elements its
/// comment names at the kernel's size, and `out` must not overlap the operands.
pub(super) type MicroKernel = unsafe fn(&Tile);

/// A block of at most 16 x 16 elements to be stored column by column.
pub(super) struct Transpose {
    /// Rows of the block; packed lanes beyond them become zero.
    pub rows: usize,
    /// Columns of the block, which become packed rows.
    pub columns: usize,
    /// The block's first element.
    pub source: *const f32,
    /// Distance between its rows.
    pub source_row: usize,
    /// Where `columns` rows of 16 elements go.
    pub packed: *mut f32,
    /// Distance between them.
    pub packed_row: usize,
}

/// The micro kernels of one instruction set.
#[derive(Clone, Copy)]
pub(super) struct MicroKernels {
    /// The most rows of a tile.
    pub rows: usize,
    /// The columns of a tile.
    pub columns: usize,
    /// The kernel for `r + 1` rows at position `r`.
    pub tiles: &'static [MicroKernel],
    /// Stores a block column by column; the block's pointers must be valid for its sizes.
    pub transpose: unsafe fn(&Transpose),
    /// Does rounds of [`BURN_CHAINS`] fused multiply-adds on registers.
    pub burn: unsafe fn(u64) -> f32,
}

impl MicroKernels {
    /// The micro kernels for `isa`.
    pub fn of(isa: Isa) -> &'static MicroKernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            _ => &portable::KERNELS,
        }
    }
}

/// Fetches the pair of lines at position `chunk` of each fetch.
///
/// Few lines at a time: a burst would keep the loads of the operands waiting.
#[inline(always)]
fn prefetch(tile: &Tile, chunk: usize) {
    for fetch in tile.fetches.iter().filter(|fetch| chunk < fetch.pairs) {
        let pair = fetch.at.wrapping_add(chunk * fetch.step);
        prefetch_line(pair);
        prefetch_line(pair.wrapping_add(LINE));
    }
}

/// Fetches a cache line into the second-level cache, where Rust can say so.
#[inline(always)]
pub(super) fn prefetch_line(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, and every x86-64 machine has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
