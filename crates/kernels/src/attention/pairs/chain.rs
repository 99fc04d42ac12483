//! Products of rounded operands by multiply-adds that flush denormal numbers, in either order, for processors whose own
//! instruction is missing, slow or of the other order.
//!
//! Words of the left operand are taken apart before, those of the right one in registers: an even step is a word shifted up,
//! an odd one a word without its lower half.

use std::mem::MaybeUninit;

use phalanx_ir::Precision;

use super::{COLUMNS, Rounding, TILE_WORDS};
use crate::attention::product::{LANES, Operands, Product, ROWS};
use crate::attention::strip::STRIP;
use crate::bf16::flushing;

/// The most words of a left operand that are taken apart at once: whole tiles.
const CHUNK: usize = 64;
/// The most rows of a product.
const MAX_ROWS: usize = STRIP;

/// The operands of a chain, for its assembly: all counts and distances (in bytes) are as wide as pointers.
#[repr(C)]
struct Words {
    /// Single steps, of each pair first the one that the order begins with.
    left: *const f32,
    right: *const f32,
    /// Between rows of `left`.
    row: usize,
    /// Between steps of `left`.
    left_step: usize,
    /// Between words of `right`.
    right_step: usize,
    /// How many words, at least one.
    count: usize,
    /// Of which this many, at least one, belong to the first tile; others belong to whole ones but for the last.
    first: usize,
    /// How many times the chain's rows, at least once.
    repeats: usize,
    /// Between the first rows of two repeats.
    rows: usize,
}

/// Adds the products to sums: rows of the chain's columns one after the other. Changes the operands as it goes.
///
/// # Safety
/// The machine must have the chain's instruction set, `sums` must be writable for the chain's rows, repeated, and the operands
/// be readable for their words.
type Chain = unsafe fn(sums: *mut f32, words: &mut Words);

/// The loop over repeated rows, inside of which `{left}`, `{right}`, `{count}` and `{first}` are those of one repeat.
macro_rules! repeated {
    ([$($line:expr,)*] $sums:ident, $words:ident, $bytes_of_rows:expr, $($operands:tt)*) => {
        flushing!([
            "7:",
            "mov {left}, qword ptr [{words}]",
            "mov {right}, qword ptr [{words} + 8]",
            "mov {count}, qword ptr [{words} + 40]",
            "mov {first}, qword ptr [{words} + 48]",
            $($line,)*
            "add {sums}, {bytes_of_rows}",
            "mov {left}, qword ptr [{words} + 64]",
            "add qword ptr [{words}], {left}",
            "dec qword ptr [{words} + 56]",
            "jnz 7b",
            "/* {row} {row3} */",
        ]
            words = in(reg) &raw mut *$words,
            sums = inout(reg) $sums => _,
            left = out(reg) _,
            right = out(reg) _,
            count = out(reg) _,
            first = out(reg) _,
            row = in(reg) $words.row,
            row3 = in(reg) 3 * $words.row,
            step = in(reg) $words.left_step,
            bytes_of_rows = const $bytes_of_rows,
            $($operands)*
        )
    };
}

/// A chain of pairs, of each the odd step first: rows of two registers, listed as a row's address, its number and its
/// registers. Before them come four registers for words of `right`, one for a step of `left`, one for a mask.
macro_rules! pair_chain {
    ($name:ident, $rows:literal, $bytes:literal, $ones:literal, $even0:tt $odd0:tt $even1:tt $odd1:tt $left:tt $mask:tt:
        $($at:literal $row:literal $sum0:tt $sum1:tt,)*) => {
        /// # Safety
        /// As for [`Chain`].
        unsafe fn $name(sums: *mut f32, words: &mut Words) {
            // SAFETY: the loop touches what the contract of a chain allows.
            unsafe {
                repeated!([
                    $ones,
                    concat!("vpslld ", $mask, ", ", $mask, ", 16"),
                    $(concat!("vmovups ", $sum0, ", [{sums} + ", $row, "*2*", $bytes, "]"),
                    concat!("vmovups ", $sum1, ", [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "]"),)*
                    "2:",
                    concat!("vmovups ", $odd0, ", [{right}]"),
                    concat!("vmovups ", $odd1, ", [{right} + ", $bytes, "]"),
                    concat!("vpslld ", $even0, ", ", $odd0, ", 16"),
                    concat!("vpslld ", $even1, ", ", $odd1, ", 16"),
                    concat!("vandps ", $odd0, ", ", $odd0, ", ", $mask),
                    concat!("vandps ", $odd1, ", ", $odd1, ", ", $mask),
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{left}", $at, "]"),
                    concat!("vfmadd231ps ", $sum0, ", ", $left, ", ", $odd0),
                    concat!("vfmadd231ps ", $sum1, ", ", $left, ", ", $odd1),)*
                    "add {left}, {step}",
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{left}", $at, "]"),
                    concat!("vfmadd231ps ", $sum0, ", ", $left, ", ", $even0),
                    concat!("vfmadd231ps ", $sum1, ", ", $left, ", ", $even1),)*
                    "add {left}, {step}",
                    "add {right}, qword ptr [{words} + 32]",
                    "dec {count}",
                    "jnz 2b",
                    $(concat!("vmovups [{sums} + ", $row, "*2*", $bytes, "], ", $sum0),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "], ", $sum1),)*
                ]
                    sums, words, $rows * 2 * $bytes,
                    $(out($sum0) _, out($sum1) _,)*
                    out($even0) _, out($odd0) _, out($even1) _, out($odd1) _, out($left) _, out($mask) _,
                );
            }
        }
    };
}

/// A chain of tiles, their even and odd steps apart: as [`pair_chain`], but rows have two registers of each.
macro_rules! tile_chain {
    ($name:ident, $rows:literal, $bytes:literal, $ones:literal, $even0:tt $odd0:tt $even1:tt $odd1:tt $left:tt $mask:tt:
        $($at:literal $row:literal $evens0:tt $evens1:tt $odds0:tt $odds1:tt,)*) => {
        /// # Safety
        /// As for [`Chain`].
        unsafe fn $name(sums: *mut f32, words: &mut Words) {
            // SAFETY: the loops touch what the contract of a chain allows.
            unsafe {
                repeated!([
                    $ones,
                    concat!("vpslld ", $mask, ", ", $mask, ", 16"),
                    "2:",
                    $(concat!("vxorps ", $evens0, ", ", $evens0, ", ", $evens0),
                    concat!("vxorps ", $evens1, ", ", $evens1, ", ", $evens1),
                    concat!("vxorps ", $odds0, ", ", $odds0, ", ", $odds0),
                    concat!("vxorps ", $odds1, ", ", $odds1, ", ", $odds1),)*
                    "3:",
                    concat!("vmovups ", $odd0, ", [{right}]"),
                    concat!("vmovups ", $odd1, ", [{right} + ", $bytes, "]"),
                    concat!("vpslld ", $even0, ", ", $odd0, ", 16"),
                    concat!("vpslld ", $even1, ", ", $odd1, ", 16"),
                    concat!("vandps ", $odd0, ", ", $odd0, ", ", $mask),
                    concat!("vandps ", $odd1, ", ", $odd1, ", ", $mask),
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{left}", $at, "]"),
                    concat!("vfmadd231ps ", $evens0, ", ", $left, ", ", $even0),
                    concat!("vfmadd231ps ", $evens1, ", ", $left, ", ", $even1),)*
                    "add {left}, {step}",
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{left}", $at, "]"),
                    concat!("vfmadd231ps ", $odds0, ", ", $left, ", ", $odd0),
                    concat!("vfmadd231ps ", $odds1, ", ", $left, ", ", $odd1),)*
                    "add {left}, {step}",
                    "add {right}, qword ptr [{words} + 32]",
                    "dec {count}",
                    "jz 4f",
                    "dec {first}",
                    "jnz 3b",
                    "4:",
                    $(concat!("vaddps ", $evens0, ", ", $evens0, ", ", $odds0),
                    concat!("vaddps ", $evens1, ", ", $evens1, ", ", $odds1),
                    concat!("vmovups ", $odds0, ", [{sums} + ", $row, "*2*", $bytes, "]"),
                    concat!("vmovups ", $odds1, ", [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "]"),
                    concat!("vaddps ", $odds0, ", ", $odds0, ", ", $evens0),
                    concat!("vaddps ", $odds1, ", ", $odds1, ", ", $evens1),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, "], ", $odds0),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "], ", $odds1),)*
                    "mov {first}, {tile_words}",
                    "test {count}, {count}",
                    "jnz 2b",
                ]
                    sums, words, $rows * 2 * $bytes,
                    tile_words = const TILE_WORDS,
                    $(out($evens0) _, out($evens1) _, out($odds0) _, out($odds1) _,)*
                    out($even0) _, out($odd0) _, out($even1) _, out($odd1) _, out($left) _, out($mask) _,
                );
            }
        }
    };
}

pair_chain! { pairs512, 4, 64, "vpternlogd zmm31, zmm31, zmm31, 255",
    "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm31":
    "" 0 "zmm0" "zmm1",
    " + {row}" 1 "zmm2" "zmm3",
    " + 2*{row}" 2 "zmm4" "zmm5",
    " + {row3}" 3 "zmm6" "zmm7",
}
tile_chain! { tiles512, 4, 64, "vpternlogd zmm31, zmm31, zmm31, 255",
    "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm31":
    "" 0 "zmm0" "zmm1" "zmm2" "zmm3",
    " + {row}" 1 "zmm4" "zmm5" "zmm6" "zmm7",
    " + 2*{row}" 2 "zmm8" "zmm9" "zmm10" "zmm11",
    " + {row3}" 3 "zmm12" "zmm13" "zmm14" "zmm15",
}
pair_chain! { pairs256, 4, 32, "vpcmpeqd ymm15, ymm15, ymm15",
    "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm15":
    "" 0 "ymm0" "ymm1",
    " + {row}" 1 "ymm2" "ymm3",
    " + 2*{row}" 2 "ymm4" "ymm5",
    " + {row3}" 3 "ymm6" "ymm7",
}
tile_chain! { tiles256, 2, 32, "vpcmpeqd ymm15, ymm15, ymm15",
    "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm15":
    "" 0 "ymm0" "ymm1" "ymm2" "ymm3",
    " + {row}" 1 "ymm4" "ymm5" "ymm6" "ymm7",
}

/// The product, with AVX-512.
///
/// # Safety
/// All elements must be in bounds of whole tiles, on a machine with AVX-512.
#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
pub(super) unsafe fn avx512(operands: Operands, shape: Product, rounding: Rounding) {
    let chain = if rounding.precision == Precision::Bf16 { tiles512 } else { pairs512 };
    // SAFETY: by this function's contract.
    unsafe { tiles::<4, COLUMNS>(chain, operands, shape, rounding) };
}

/// The product, with AVX2.
///
/// # Safety
/// All elements must be in bounds, on a machine with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(operands: Operands, shape: Product, rounding: Rounding) {
    // SAFETY: by this function's contract.
    unsafe {
        match rounding.precision {
            Precision::Bf16 => tiles::<2, LANES>(tiles256, operands, shape, rounding),
            _ => tiles::<4, LANES>(pairs256, operands, shape, rounding),
        }
    }
}

/// The product in panels of `C` columns, each by a `chain` of `R` rows, repeated.
///
/// # Safety
/// As for the chain, and all elements of whole tiles must be in bounds.
#[inline(always)]
unsafe fn tiles<const R: usize, const C: usize>(
    chain: Chain,
    operands: Operands,
    shape: Product,
    rounding: Rounding,
) {
    const { assert!(ROWS.is_multiple_of(R)) };
    assert!(shape.rows <= MAX_ROWS, "a strip, not {shape:?}");
    assert!(shape.depth <= CHUNK || !shape.accumulate, "sums of many words are kept in `out`");
    let mut steps = MaybeUninit::<[f32; 2 * CHUNK * MAX_ROWS]>::uninit();
    for chunk in (0..shape.depth).step_by(CHUNK) {
        let depth = CHUNK.min(shape.depth - chunk);
        let left = operands.left.wrapping_add(chunk * shape.left_step);
        // SAFETY: the words are in bounds by this function's contract.
        let (row, step) = unsafe { take_apart(&mut steps, left, Product { depth, ..shape }, rounding) };
        let scale = if chunk + depth == shape.depth { rounding.scale } else { 1.0 };
        for col in (0..shape.cols).step_by(C) {
            let at = operands.at(0, col, shape);
            let out = |row: usize| at.out.wrapping_add(row * shape.out_row).cast::<[f32; C]>();
            let mut words = Words {
                left: steps.as_ptr().cast(),
                right: at.right.wrapping_add(chunk * shape.right_row),
                row: 4 * row,
                left_step: 4 * step,
                right_step: 4 * shape.right_row,
                count: depth,
                first: TILE_WORDS - rounding.skipped % TILE_WORDS,
                repeats: shape.rows / R,
                rows: 4 * R * row,
            };
            let mut sums = [[0.0f32; C]; MAX_ROWS];
            for (row, sums) in sums[..shape.rows].iter_mut().enumerate().filter(|_| chunk > 0) {
                // SAFETY: in bounds by this function's contract; arrays need no more alignment than their elements.
                *sums = unsafe { *out(row) };
            }
            // SAFETY: the steps have been written; the rest is in bounds by this function's contract.
            unsafe { chain(sums.as_mut_ptr().cast(), &mut words) };
            for (row, sums) in sums[..shape.rows].iter().enumerate() {
                // SAFETY: as above.
                let before = unsafe { *out(row) };
                // Values rather than places, which might be the same for all that the compiler knows.
                let sums = match shape.accumulate {
                    true => std::array::from_fn(|i| before[i] + sums[i]),
                    false => sums.map(|sum| sum * scale),
                };
                // SAFETY: as above.
                unsafe { *out(row) = sums };
            }
        }
    }
}

/// Writes the steps of a left operand of at most [`MAX_ROWS`] rows and [`CHUNK`] words, of each word first the one that the order
/// begins with; returns the distances between rows and between steps.
///
/// # Safety
/// The words must be in bounds.
#[inline(always)]
unsafe fn take_apart(
    steps: &mut MaybeUninit<[f32; 2 * CHUNK * MAX_ROWS]>,
    left: *const f32,
    shape: Product,
    rounding: Rounding,
) -> (usize, usize) {
    let (steps, left) = (steps.as_mut_ptr().cast::<u32>(), left.cast::<u32>());
    let swapped = rounding.precision == Precision::Bf16Pair;
    let split = |word: u32| {
        let (even, odd) = (word << 16, word & 0xffff_0000);
        if swapped { [odd, even] } else { [even, odd] }
    };
    if shape.left_step == 1 {
        for row in 0..shape.rows {
            let (steps, left) =
                (steps.wrapping_add(row * 2 * CHUNK), left.wrapping_add(row * shape.left_row));
            for word in 0..shape.depth {
                // SAFETY: in bounds by the contract; there is room for every row and word.
                unsafe { *steps.add(2 * word).cast() = split(*left.add(word)) };
            }
        }
        return (2 * CHUNK, 1);
    }
    for word in 0..shape.depth {
        let (steps, left) =
            (steps.wrapping_add(word * 2 * MAX_ROWS), left.wrapping_add(word * shape.left_step));
        for row in 0..shape.rows {
            // SAFETY: as above.
            let [first, second] = split(unsafe { *left.add(row * shape.left_row) });
            // SAFETY: as above.
            unsafe { *steps.add(row) = first };
            // SAFETY: as above.
            unsafe { *steps.add(MAX_ROWS + row) = second };
        }
    }
    (1, MAX_ROWS)
}
