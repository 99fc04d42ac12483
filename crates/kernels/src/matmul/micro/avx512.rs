//! Micro kernels for AVX-512: up to 14 rows by 32 columns in 28 of the 32 registers.
//!
//! Pairs are multiplied by VDPBF16PS where that is fast and gives the bits of the definition; other products of rounded
//! operands are those of `flush`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;
use std::mem::transmute;
use std::sync::OnceLock;

use super::flush::{self, Unit};
use super::{BURN_CHAINS, CHUNK, Leaf, MicroKernels, Packing, Sums, Tile, Transpose, compute};
use crate::bf16::{Comparison, NumberClass, compare_pairs};

/// Elements of a register.
const LANES: usize = 16;
/// Registers side by side in a tile.
const WIDE: usize = 2;
/// Columns of a tile.
const COLUMNS: usize = WIDE * LANES;

/// The table of a kernel by its number of rows.
macro_rules! by_rows {
    ($kernel:ident: $($rows:literal)*) => { &[$($kernel::<$rows>),*] };
    ($kernel:ident, $word:ident: $($rows:literal)*) => { &[$($kernel::<$rows, $word>),*] };
}

/// For operands as they are.
pub(super) static SINGLE: MicroKernels = MicroKernels {
    packing: Packing::Single,
    rows: 14,
    columns: COLUMNS,
    tiles: by_rows!(tile, FMA: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    transpose,
    burn,
};

/// For pairs, by the instruction that is made for them.
pub(super) static PAIRS: MicroKernels = MicroKernels {
    packing: Packing::Pairs,
    tiles: by_rows!(tile, DOT: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    ..SINGLE
};

/// For pairs, one step after the other.
pub(super) static SWAPPED: MicroKernels = MicroKernels {
    packing: Packing::Swapped,
    tiles: by_rows!(swapped: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    ..SINGLE
};

/// For tiles of steps: even and odd ones have sums of their own, so there are fewer rows.
pub(super) static ROUNDED: MicroKernels =
    MicroKernels { packing: Packing::Rounded, rows: 6, tiles: by_rows!(rounded: 1 2 3 4 5 6), ..SINGLE };

/// Multiplies steps.
const FMA: bool = false;
/// Multiplies pairs of steps.
const DOT: bool = true;

/// Whether VDPBF16PS is to be used: other processors than AMD's take longer for it than for two multiply-adds.
pub(crate) fn has_fast_pairs() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| is_x86_feature_detected!("avx512bf16") && is_by_amd() && pairs_are_as_defined())
}

/// Whether the processor says that it is AMD's.
fn is_by_amd() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

/// Whether VDPBF16PS gives the bits of the definition, for some numbers of every class.
fn pairs_are_as_defined() -> bool {
    NumberClass::ALL.into_iter().all(|class| compared(class, 64).differences == 0)
}

/// Compares VDPBF16PS with the definition, on 16 numbers in each round; none if the machine lacks it.
pub(super) fn compare_dot(class: NumberClass, rounds: u64) -> Option<Comparison> {
    is_x86_feature_detected!("avx512bf16").then(|| compared(class, rounds))
}

fn compared(class: NumberClass, rounds: u64) -> Comparison {
    // SAFETY: callers have seen that the machine has the instruction.
    compare_pairs(class, rounds, |addends, a, b| unsafe { dot(addends, a, b) })
}

/// One VDPBF16PS.
///
/// # Safety
/// The machine must have it.
unsafe fn dot(mut sums: [f32; LANES], a: [u32; LANES], b: [u32; LANES]) -> [f32; LANES] {
    // SAFETY: all three are whole registers; the machine has the instruction by this function's contract.
    unsafe {
        asm!(
            "vmovups zmm0, zmmword ptr [{sums}]",
            "vmovups zmm1, zmmword ptr [{a}]",
            "vdpbf16ps zmm0, zmm1, zmmword ptr [{b}]",
            "vmovups zmmword ptr [{sums}], zmm0",
            sums = in(reg) sums.as_mut_ptr(),
            a = in(reg) a.as_ptr(),
            b = in(reg) b.as_ptr(),
            out("zmm0") _,
            out("zmm1") _,
            options(nostack, preserves_flags),
        );
    }
    sums
}

/// Pairs whose lower halves come from `low` and whose upper ones from `high`, rounded.
///
/// # Safety
/// The machine must have AVX-512 F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pairs_of_lines(low: [f32; LANES], high: [f32; LANES]) -> [f32; LANES] {
    // Numbers 0, 16, 1, 17 and so on.
    const INTERLEAVED: [u16; 32] = {
        let (mut order, mut i) = ([0; 32], 0);
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: a line and the order are registers.
    unsafe {
        let halves = bf16_line(low, high);
        let order = _mm512_loadu_si512(INTERLEAVED.as_ptr().cast());
        transmute(_mm512_permutexvar_epi16(order, halves))
    }
}

/// Pairs of elements that lie beside each other, first those of `first`, rounded.
///
/// # Safety
/// The machine must have AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn adjacent_pairs(first: [f32; LANES], second: [f32; LANES]) -> [f32; LANES] {
    // SAFETY: a line is a register.
    unsafe { transmute(bf16_line(first, second)) }
}

/// The elements of `first`, then those of `second`, rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_line(first: [f32; LANES], second: [f32; LANES]) -> __m512i {
    // SAFETY: a line is a register, and so are 32 numbers of 16 bits.
    unsafe {
        let [first, second] = [first, second].map(|line| _mm512_loadu_ps(line.as_ptr()));
        transmute(_mm512_cvtne2ps_pbh(second, first))
    }
}

/// Adds the products of the listed words, steps or pairs.
macro_rules! multiply_add {
    ($sums:ident, $a:ident, $b:ident; $($word:literal)*) => {
        match DOT {
            false => multiply_add_words!("vfmadd231ps", $sums, $a, $b; $($word)*),
            true => multiply_add_words!("vdpbf16ps", $sums, $a, $b; $($word)*),
        }
    };
}

/// Adds the products of the listed words; `$op` is the instruction.
macro_rules! multiply_add_words {
    ($op:literal, $sums:ident, $a:ident, $b:ident; $($word:literal)*) => {
        {$(
            let right = [
                _mm512_loadu_ps($b.add($word * WIDE * LANES)),
                _mm512_loadu_ps($b.add($word * WIDE * LANES + LANES)),
            ];
            multiply_add_rows!($op, $sums, $a, right, $word; 0 1 2 3 4 5 6 7 8 9 10 11 12 13);
        )*}
    };
}

/// Adds one word's products to each listed row below `ROWS`.
///
/// Of four rows, one is broadcast into a register. That relieves the load ports, of which the broadcasting operands of
/// the other three take two loads a row, and costs few instructions, which matter when another thread shares the core.
macro_rules! multiply_add_rows {
    ($op:literal, $sums:ident, $a:ident, $right:ident, $word:literal; $($row:literal)*) => {
        $(if $row < ROWS {
            if $row % 4 == 0 {
                multiply_add_broadcast!($op, $sums[$row], $a, $word * ROWS + $row, $right);
            } else {
                multiply_add_element!($op, $sums[$row][0], $a, $word * ROWS + $row, $right[0]);
                multiply_add_element!($op, $sums[$row][1], $a, $word * ROWS + $row, $right[1]);
            }
        })*
    };
}

/// Adds `$right` times element `$at` of `$a` to a register; the element is an operand of the multiply-add itself.
///
/// The intrinsics cannot express that, since the compiler merges the two loads of an element.
macro_rules! multiply_add_element {
    ($op:literal, $sum:expr, $a:ident, $at:expr, $right:expr) => {
        asm!(
            concat!($op, " {sum}, {right}, dword ptr [{a} + {offset}]{{1to16}}"),
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
    ($op:literal, $sums:expr, $a:ident, $at:expr, $right:ident) => {
        asm!(
            "vbroadcastss {left}, dword ptr [{a} + {offset}]",
            concat!($op, " {first}, {right}, {left}"),
            concat!($op, " {second}, {next}, {left}"),
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

/// The sums of `ROWS` rows.
#[derive(Clone, Copy)]
struct Registers<const ROWS: usize>([[__m512; WIDE]; ROWS]);

impl<const ROWS: usize> Registers<ROWS> {
    /// The registers, each made from itself and the address of the elements that it stands for, rows `stride` apart.
    #[inline(always)]
    fn map(mut self, base: *const f32, stride: usize, make: impl Fn(__m512, *const f32) -> __m512) -> Self {
        for (row, sums) in self.0.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                *sum = make(*sum, base.wrapping_add(row * stride + half * LANES));
            }
        }
        self
    }

    /// Zeros.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Self {
        Registers([[_mm512_setzero_ps(); WIDE]; ROWS])
    }
}

impl<const ROWS: usize> Sums for Registers<ROWS> {
    #[inline(always)]
    unsafe fn load(from: *const f32, stride: usize) -> Self {
        // SAFETY: the machine has AVX-512F and `from` the elements, by the contract of the trait.
        unsafe { Self::zero().map(from, stride, |_, from| _mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn behind(self, other: *const f32, stride: usize) -> Self {
        // SAFETY: as above.
        self.map(other, stride, |sum, other| unsafe { _mm512_add_ps(_mm512_loadu_ps(other), sum) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, stride: usize) {
        let put = |sum, to: *const f32| {
            // SAFETY: as above, for writing.
            unsafe { _mm512_storeu_ps(to.cast_mut(), sum) };
            sum
        };
        self.map(to, stride, put);
    }
}

/// The micro kernel of `ROWS` rows, for words that are steps or, with `DOT`, pairs.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel), on a machine with AVX-512F, and with AVX-512 BF16 for pairs.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize, const DOT: bool>(tile: &Tile) {
    let products = |sums: Registers<ROWS>, leaf: Leaf<'_>| {
        let (Registers(mut sums), mut a, mut b) = (sums, leaf.a, leaf.b);
        for chunk in 0..tile.depth / CHUNK {
            leaf.prefetch(chunk * CHUNK);
            // SAFETY: `a` and `b` hold the words of this chunk, and the machine has the instruction.
            unsafe { multiply_add!(sums, a, b; 0 1 2 3 4 5 6 7) };
            a = a.wrapping_add(CHUNK * ROWS);
            b = b.wrapping_add(CHUNK * COLUMNS);
        }
        for _ in 0..tile.depth % CHUNK {
            // SAFETY: `a` and `b` hold this word, and the machine has the instruction.
            unsafe { multiply_add!(sums, a, b; 0) };
            a = a.wrapping_add(ROWS);
            b = b.wrapping_add(COLUMNS);
        }
        Registers(sums)
    };
    // SAFETY: by this function's contract.
    unsafe { compute::<ROWS, COLUMNS, _>(tile, Registers::zero(), products) };
}

/// The micro kernel of `ROWS` rows for pairs, one step after the other.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel), on a machine with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn swapped<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe { flushing::<ROWS>(tile, flush::avx512::STEPS) };
}

/// The micro kernel of `ROWS` rows for tiles of steps.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel), on a machine with AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn rounded<const ROWS: usize>(tile: &Tile) {
    // SAFETY: by this function's contract.
    unsafe { flushing::<ROWS>(tile, flush::avx512::TILES) };
}

/// The micro kernel of `ROWS` rows whose products are added by chains of `unit`.
///
/// # Safety
/// As for [`MicroKernel`](super::MicroKernel), on a machine with AVX-512F.
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
