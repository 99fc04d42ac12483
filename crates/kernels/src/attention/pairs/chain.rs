//! Products of rounded operands by multiply-adds that flush denormal numbers, in either order, for processors whose own
//! instruction is missing, slow or of the other order.
//!
//! Pairs are taken apart in registers: an even step is a word shifted up, an odd one a word without its lower half.

use phalanx_ir::Precision;

use super::{COLUMNS, Rounding, TILE_WORDS};
use crate::attention::product::{LANES, Operands, Product};
use crate::bf16::flushing;

/// The operands of a chain; steps are in bytes.
struct Words {
    left: *const f32,
    right: *const f32,
    /// Between rows of `left`.
    row: usize,
    /// Between words of `left`.
    left_step: usize,
    /// Between words of `right`.
    right_step: usize,
    /// How many words, at least one.
    count: usize,
    /// Of which this many, at least one, belong to the first tile; others belong to whole ones but for the last.
    first: usize,
}

/// Computes the sums of a tile: rows one after the other.
///
/// # Safety
/// The machine must have the chain's instruction set, `sums` must be writable for its tile, and be zeros, and the operands
/// be readable for their words.
type Chain = unsafe fn(sums: *mut f32, words: &Words);

/// A chain of pairs, of each the odd step first: rows of two registers, listed as a row's address, its number and its
/// registers. Then follow four registers for words of `right`, two for a word of `left`, one for a mask.
macro_rules! pair_chain {
    ($name:ident, $bytes:literal, $ones:literal, $even0:tt $odd0:tt $even1:tt $odd1:tt $even:tt $odd:tt $mask:tt:
        $($at:literal $row:literal $first:tt $second:tt,)*) => {
        /// # Safety
        /// As for [`Chain`].
        unsafe fn $name(sums: *mut f32, words: &Words) {
            // SAFETY: the loop touches what the contract of a chain allows.
            unsafe {
                flushing!([
                    $ones,
                    concat!("vpslld ", $mask, ", ", $mask, ", 16"),
                    $(concat!("vxorps ", $first, ", ", $first, ", ", $first),
                    concat!("vxorps ", $second, ", ", $second, ", ", $second),)*
                    "2:",
                    concat!("vmovups ", $odd0, ", [{right}]"),
                    concat!("vmovups ", $odd1, ", [{right} + ", $bytes, "]"),
                    concat!("vpslld ", $even0, ", ", $odd0, ", 16"),
                    concat!("vpslld ", $even1, ", ", $odd1, ", 16"),
                    concat!("vandps ", $odd0, ", ", $odd0, ", ", $mask),
                    concat!("vandps ", $odd1, ", ", $odd1, ", ", $mask),
                    $(concat!("vbroadcastss ", $odd, ", dword ptr [{left}", $at, "]"),
                    concat!("vpslld ", $even, ", ", $odd, ", 16"),
                    concat!("vandps ", $odd, ", ", $odd, ", ", $mask),
                    concat!("vfmadd231ps ", $first, ", ", $odd, ", ", $odd0),
                    concat!("vfmadd231ps ", $second, ", ", $odd, ", ", $odd1),
                    concat!("vfmadd231ps ", $first, ", ", $even, ", ", $even0),
                    concat!("vfmadd231ps ", $second, ", ", $even, ", ", $even1),)*
                    "add {left}, {left_step}",
                    "add {right}, {right_step}",
                    "dec {count}",
                    "jnz 2b",
                    $(concat!("vmovups [{sums} + ", $row, "*2*", $bytes, "], ", $first),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "], ", $second),)*
                ]
                    sums = in(reg) sums,
                    left = inout(reg) words.left => _,
                    right = inout(reg) words.right => _,
                    row = in(reg) words.row,
                    row3 = in(reg) 3 * words.row,
                    left_step = in(reg) words.left_step,
                    right_step = in(reg) words.right_step,
                    count = inout(reg) words.count => _,
                    $(out($first) _, out($second) _,)*
                    out($even0) _, out($odd0) _, out($even1) _, out($odd1) _, out($even) _, out($odd) _, out($mask) _,
                );
            }
        }
    };
}

/// A chain of tiles, their even and odd steps apart: as [`pair_chain`], but rows have two registers of each.
macro_rules! tile_chain {
    ($name:ident, $bytes:literal, $ones:literal, $even0:tt $odd0:tt $even1:tt $odd1:tt $even:tt $odd:tt $mask:tt:
        $($at:literal $row:literal $evens0:tt $evens1:tt $odds0:tt $odds1:tt,)*) => {
        /// # Safety
        /// As for [`Chain`].
        unsafe fn $name(sums: *mut f32, words: &Words) {
            // SAFETY: the loops touch what the contract of a chain allows.
            unsafe {
                flushing!([
                    "/* {row3} */",
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
                    $(concat!("vbroadcastss ", $odd, ", dword ptr [{left}", $at, "]"),
                    concat!("vpslld ", $even, ", ", $odd, ", 16"),
                    concat!("vandps ", $odd, ", ", $odd, ", ", $mask),
                    concat!("vfmadd231ps ", $evens0, ", ", $even, ", ", $even0),
                    concat!("vfmadd231ps ", $evens1, ", ", $even, ", ", $even1),
                    concat!("vfmadd231ps ", $odds0, ", ", $odd, ", ", $odd0),
                    concat!("vfmadd231ps ", $odds1, ", ", $odd, ", ", $odd1),)*
                    "add {left}, {left_step}",
                    "add {right}, {right_step}",
                    "dec {count}",
                    "jz 4f",
                    "dec {tile}",
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
                    "mov {tile}, {tile_words}",
                    "test {count}, {count}",
                    "jnz 2b",
                ]
                    tile_words = const TILE_WORDS,
                    sums = in(reg) sums,
                    left = inout(reg) words.left => _,
                    right = inout(reg) words.right => _,
                    row = in(reg) words.row,
                    row3 = in(reg) 3 * words.row,
                    left_step = in(reg) words.left_step,
                    right_step = in(reg) words.right_step,
                    count = inout(reg) words.count => _,
                    tile = inout(reg) words.first => _,
                    $(out($evens0) _, out($evens1) _, out($odds0) _, out($odds1) _,)*
                    out($even0) _, out($odd0) _, out($even1) _, out($odd1) _, out($even) _, out($odd) _, out($mask) _,
                );
            }
        }
    };
}

pair_chain! { pairs512, 64, "vpternlogd zmm31, zmm31, zmm31, 255",
    "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm31":
    "" 0 "zmm0" "zmm1",
    " + {row}" 1 "zmm2" "zmm3",
    " + 2*{row}" 2 "zmm4" "zmm5",
    " + {row3}" 3 "zmm6" "zmm7",
}
tile_chain! { tiles512, 64, "vpternlogd zmm31, zmm31, zmm31, 255",
    "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm31":
    "" 0 "zmm0" "zmm1" "zmm2" "zmm3",
    " + {row}" 1 "zmm4" "zmm5" "zmm6" "zmm7",
    " + 2*{row}" 2 "zmm8" "zmm9" "zmm10" "zmm11",
    " + {row3}" 3 "zmm12" "zmm13" "zmm14" "zmm15",
}
pair_chain! { pairs256, 32, "vpcmpeqd ymm15, ymm15, ymm15",
    "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm13" "ymm15":
    "" 0 "ymm0" "ymm1",
    " + {row}" 1 "ymm2" "ymm3",
    " + 2*{row}" 2 "ymm4" "ymm5",
    " + {row3}" 3 "ymm6" "ymm7",
}
tile_chain! { tiles256, 32, "vpcmpeqd ymm15, ymm15, ymm15",
    "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm13" "ymm15":
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
/// All elements must be in bounds of whole tiles, on a machine with AVX2 and FMA.
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

/// The product in tiles of `R` rows by `C` columns, each by one `chain`.
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
    for col in (0..shape.cols).step_by(C) {
        for row in (0..shape.rows).step_by(R) {
            let at = operands.at(row, col, shape);
            let words = Words {
                left: at.left,
                right: at.right,
                row: 4 * shape.left_row,
                left_step: 4 * shape.left_step,
                right_step: 4 * shape.right_row,
                count: shape.depth,
                first: TILE_WORDS - rounding.skipped % TILE_WORDS,
            };
            let mut sums = [[0.0f32; C]; R];
            // SAFETY: by this function's contract.
            unsafe { chain(sums.as_mut_ptr().cast(), &words) };
            for (row, sums) in sums.iter().enumerate() {
                let out = at.out.wrapping_add(row * shape.out_row).cast::<[f32; C]>();
                // SAFETY: in bounds by this function's contract; arrays need no more alignment than their elements.
                let out = unsafe { &mut *out };
                finish(out, sums, shape, rounding);
            }
        }
    }
}

/// Writes a row of sums.
#[inline(always)]
fn finish<const C: usize>(out: &mut [f32; C], sums: &[f32; C], shape: Product, rounding: Rounding) {
    match shape.accumulate {
        true => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        false => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * rounding.scale),
    }
}
