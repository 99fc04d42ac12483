//! Micro kernels: one tile of the output, accumulated in registers over one block of the summed axis.
//!
//! Every element of a leaf is one chain of multiply-adds whose order the precision fixes, so all instruction sets, tile
//! heights and tile widths give the same bits. A block may have several leaves, a subtree of the sum: finished ones wait in
//! the first-level cache, which costs next to nothing. A micro kernel knows nothing of packing, threads or the tree beyond
//! its block, except "add these older tiles in front".

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod flush;
mod portable;

use std::mem::MaybeUninit;

use phalanx_ir::Precision;

use super::pack::Packing;
use crate::bf16::{Comparison, NumberClass, round};
use crate::isa::Isa;

/// The largest number of elements in a tile of any instruction set.
pub(super) const MAX_TILE: usize = 14 * 32;

/// The most leaves of a block.
pub(super) const MAX_LEAVES: usize = 1 << LEVELS;

/// Levels of the tree over the leaves of a block.
const LEVELS: usize = 8;

/// Words between two prefetches.
pub(super) const CHUNK: usize = 8;

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

/// Chains of a burn: enough to hide the latency of two fused multiply-add ports.
pub(super) const BURN_CHAINS: usize = 12;

/// Memory to be fetched into the second-level cache: one pair of cache lines every [`CHUNK`] words.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
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

/// The work of one micro kernel call: `rows x columns` sums over `leaves` leaves of `depth` words.
///
/// A leaf is first `start` (or zero), then gets its products; leaves are added as a balanced tree. Then each of `merges`
/// older tiles is added in front (`older + tile`), then the bias, then the addend; at last it is written to `out`.
pub(crate) struct Tile {
    /// How many leaves: a power of two; one if there is a `start`.
    pub leaves: usize,
    /// Words of each leaf.
    pub depth: usize,
    /// The packed left operand: one word per row, one after the other.
    pub a: *const f32,
    /// The packed right operand: one row of the full tile width per word.
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
pub(crate) type MicroKernel = unsafe fn(&Tile);

/// A block of at most 16 x 16 elements to be stored column by column.
pub(crate) struct Transpose {
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

/// The micro kernels of one instruction set and precision.
#[derive(Clone, Copy)]
pub(crate) struct MicroKernels {
    /// How they want their operands.
    pub packing: Packing,
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
    /// The micro kernels for `isa` and `precision`.
    pub fn of(isa: Isa, precision: Precision) -> &'static MicroKernels {
        match (isa, precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Precision::Bf16Pair) if avx512::has_fast_pairs() => &avx512::PAIRS,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Precision::Bf16Pair) => &avx512::SWAPPED,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Precision::Bf16) => &avx512::ROUNDED,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, Precision::F32) => &avx512::SINGLE,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::Bf16Pair) => &avx2::SWAPPED,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::Bf16) => &avx2::ROUNDED,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, Precision::F32) => &avx2::SINGLE,
            (_, Precision::Bf16Pair) => &portable::SWAPPED,
            (_, Precision::Bf16) => &portable::ROUNDED,
            (_, Precision::F32) => &portable::SINGLE,
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::has_fast_pairs;

/// Compares the instruction for pairs with its definition, on 16 results a round; none if this machine lacks it.
pub fn compare_dot(class: NumberClass, rounds: u64) -> Option<Comparison> {
    #[cfg(target_arch = "x86_64")]
    return avx512::compare_dot(class, rounds);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Pairs whose lower halves come from `low` and whose upper ones from `high`, rounded.
#[inline(always)]
pub(super) fn pairs_of_lines(low: [f32; LINE], high: [f32; LINE]) -> [f32; LINE] {
    #[cfg(target_arch = "x86_64")]
    if avx512::has_fast_pairs() {
        // SAFETY: the machine has the instructions.
        return unsafe { avx512::pairs_of_lines(low, high) };
    }
    std::array::from_fn(|i| pair(low[i], high[i]))
}

/// Pairs of elements that lie beside each other, first those of `first`, rounded.
#[inline(always)]
pub(super) fn adjacent_pairs(first: [f32; LINE], second: [f32; LINE]) -> [f32; LINE] {
    #[cfg(target_arch = "x86_64")]
    if avx512::has_fast_pairs() {
        // SAFETY: the machine has the instructions.
        return unsafe { avx512::adjacent_pairs(first, second) };
    }
    let element = |i: usize| if i < LINE { first[i] } else { second[i - LINE] };
    std::array::from_fn(|i| pair(element(2 * i), element(2 * i + 1)))
}

/// Two elements, rounded, as one word.
fn pair(low: f32, high: f32) -> f32 {
    f32::from_bits(u32::from(round(low)) | u32::from(round(high)) << 16)
}

/// The sums of a tile, in registers as far as there are enough.
trait Sums: Copy {
    /// The sums that lie at `from`, rows `stride` apart.
    ///
    /// # Safety
    /// `from` must be readable at every row and column of the tile, on a machine with the instruction set of these sums.
    unsafe fn load(from: *const f32, stride: usize) -> Self;

    /// `other + self`.
    ///
    /// # Safety
    /// As for [`Sums::load`].
    unsafe fn behind(self, other: *const f32, stride: usize) -> Self;

    /// Writes the sums.
    ///
    /// # Safety
    /// As for [`Sums::load`], for writing.
    unsafe fn store(self, to: *mut f32, stride: usize);
}

/// The words of one leaf, for a tile of so many rows.
struct Leaf<'a> {
    tile: &'a Tile,
    a: *const f32,
    b: *const f32,
    /// How many words of the block come before.
    before: usize,
}

impl Leaf<'_> {
    /// Fetches what the words from `word` on are to fetch.
    #[inline(always)]
    fn prefetch(&self, word: usize) {
        prefetch(self.tile, (self.before + word) / CHUNK);
    }
}

/// Computes a tile of `ROWS x COLUMNS`, the products of a leaf by `products`.
///
/// # Safety
/// As for [`MicroKernel`].
#[inline(always)]
unsafe fn compute<const ROWS: usize, const COLUMNS: usize, S: Sums>(
    tile: &Tile,
    zero: S,
    products: impl Fn(S, Leaf<'_>) -> S,
) {
    let mut subtrees = MaybeUninit::<[[f32; MAX_TILE]; LEVELS]>::uninit();
    let subtrees = subtrees.as_mut_ptr().cast::<f32>();
    for leaf in 0..tile.leaves {
        // SAFETY: `start` is a whole packed tile.
        let start = if tile.start.is_null() { zero } else { unsafe { S::load(tile.start, COLUMNS) } };
        let before = leaf * tile.depth;
        let (a, b) = (tile.a.wrapping_add(before * ROWS), tile.b.wrapping_add(before * COLUMNS));
        let mut sums = products(start, Leaf { tile, a, b, before });
        let level = leaf.trailing_ones() as usize;
        for finished in 0..level {
            // SAFETY: an earlier leaf has written this level, which has room for every tile.
            sums = unsafe { sums.behind(subtrees.add(finished * MAX_TILE), COLUMNS) };
        }
        match leaf + 1 < tile.leaves {
            // SAFETY: there is a level for every power of two below the most leaves.
            true => unsafe { sums.store(subtrees.add(level * MAX_TILE), COLUMNS) },
            // SAFETY: by this function's contract.
            false => unsafe { finish::<COLUMNS, S>(sums, tile) },
        }
    }
}

/// Merges the older tiles, adds bias and addend, and writes the tile.
///
/// # Safety
/// As for [`MicroKernel`].
#[inline(always)]
unsafe fn finish<const COLUMNS: usize, S: Sums>(mut sums: S, tile: &Tile) {
    for merge in 0..tile.merges {
        // SAFETY: there are `merges` older tiles, each of them whole.
        sums = unsafe { sums.behind(tile.older.add(merge * tile.older_step), COLUMNS) };
    }
    if !tile.bias.is_null() {
        // SAFETY: `bias` has one value per column; all rows read the same.
        sums = unsafe { sums.behind(tile.bias, 0) };
    }
    if !tile.addend.is_null() {
        // SAFETY: the addend is a whole tile of rows `out_row` apart, as `out` is.
        sums = unsafe { sums.behind(tile.addend, tile.out_row) };
    }
    // SAFETY: as above.
    unsafe { sums.store(tile.out, tile.out_row) };
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
