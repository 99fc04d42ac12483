//! Chains of multiply-adds that flush denormal numbers, as products of `bf16` are defined, on processors whose own
//! instructions for them are missing, slow or of the other order.
//!
//! Every loop is one block of assembly that changes the control register and changes it back.

use super::{CHUNK, Leaf};
use crate::bf16::{TILE_STEPS, flushing};

/// Adds the products of words to the sums of a tile, rows of the full width one after the other: `(sums, a, b, count)`, where
/// the count is of steps, or of tiles of 32 steps.
///
/// # Safety
/// The machine must have the chain's instruction set, `count` must not be zero, `sums` must be writable for the chain's rows,
/// `a` and `b` readable for the words.
pub(super) type Chain = unsafe fn(*mut f32, *const f32, *const f32, usize);

/// What a chain counts by.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// Words of each.
    pub words: usize,
    /// The chains by number of rows.
    pub chains: &'static [Chain],
}

/// Words between two looks at what is to be fetched: the registers go to memory and back meanwhile.
const STRETCH: usize = 16 * CHUNK;

/// Adds the products of a leaf to `sums`.
///
/// # Safety
/// As for [`Chain`], on `ROWS` rows.
#[inline(always)]
pub(super) unsafe fn run<const ROWS: usize, const COLUMNS: usize>(
    unit: Unit,
    sums: *mut f32,
    leaf: Leaf<'_>,
) {
    let depth = leaf.tile.depth;
    for first in (0..depth).step_by(STRETCH) {
        let words = STRETCH.min(depth - first);
        (first..first + words).step_by(CHUNK).for_each(|word| leaf.prefetch(word));
        let (a, b) = (leaf.a.wrapping_add(first * ROWS), leaf.b.wrapping_add(first * COLUMNS));
        // SAFETY: by this function's contract; a stretch is made of whole units, and so is a leaf.
        unsafe { unit.chains[ROWS - 1](sums, a, b, words / unit.words) };
    }
}

/// A chain of single steps: `$rows` rows of two registers, listed as a row and its registers; `$r0` and `$r1` hold the right
/// operand, `$bytes` are those of a register.
macro_rules! step_chain {
    ($name:ident, $rows:literal, $bytes:literal, $r0:tt $r1:tt $left:tt: $($row:tt $first:tt $second:tt,)*) => {
        unsafe fn $name(sums: *mut f32, a: *const f32, b: *const f32, count: usize) {
            // SAFETY: the loop touches what the contract of a chain allows.
            unsafe {
                flushing!([
                    $(concat!("vmovups ", $first, ", [{sums} + ", $row, "*2*", $bytes, "]"),
                    concat!("vmovups ", $second, ", [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "]"),)*
                    "2:",
                    concat!("vmovups ", $r0, ", [{b}]"),
                    concat!("vmovups ", $r1, ", [{b} + ", $bytes, "]"),
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{a} + 4*", $row, "]"),
                    concat!("vfmadd231ps ", $first, ", ", $left, ", ", $r0),
                    concat!("vfmadd231ps ", $second, ", ", $left, ", ", $r1),)*
                    concat!("add {a}, 4*", $rows),
                    concat!("add {b}, 2*", $bytes),
                    "dec {count}",
                    "jnz 2b",
                    $(concat!("vmovups [{sums} + ", $row, "*2*", $bytes, "], ", $first),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "], ", $second),)*
                ]
                    sums = in(reg) sums,
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    count = inout(reg) count => _,
                    $(out($first) _, out($second) _,)*
                    out($r0) _, out($r1) _, out($left) _,
                );
            }
        }
    };
}

/// A chain of tiles of 32 steps: `$rows` rows of two registers for even steps and two for odd ones, listed as a row and its
/// registers.
macro_rules! tile_chain {
    ($name:ident, $rows:literal, $bytes:literal, $r0:tt $r1:tt $left:tt:
        $($row:tt $even0:tt $even1:tt $odd0:tt $odd1:tt,)*) => {
        unsafe fn $name(sums: *mut f32, a: *const f32, b: *const f32, count: usize) {
            // SAFETY: the loops touch what the contract of a chain allows.
            unsafe {
                flushing!([
                    "2:",
                    $(concat!("vxorps ", $even0, ", ", $even0, ", ", $even0),
                    concat!("vxorps ", $even1, ", ", $even1, ", ", $even1),
                    concat!("vxorps ", $odd0, ", ", $odd0, ", ", $odd0),
                    concat!("vxorps ", $odd1, ", ", $odd1, ", ", $odd1),)*
                    "mov {pairs:e}, 16",
                    "3:",
                    concat!("vmovups ", $r0, ", [{b}]"),
                    concat!("vmovups ", $r1, ", [{b} + ", $bytes, "]"),
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{a} + 4*", $row, "]"),
                    concat!("vfmadd231ps ", $even0, ", ", $left, ", ", $r0),
                    concat!("vfmadd231ps ", $even1, ", ", $left, ", ", $r1),)*
                    concat!("vmovups ", $r0, ", [{b} + 2*", $bytes, "]"),
                    concat!("vmovups ", $r1, ", [{b} + 3*", $bytes, "]"),
                    $(concat!("vbroadcastss ", $left, ", dword ptr [{a} + 4*", $rows, " + 4*", $row, "]"),
                    concat!("vfmadd231ps ", $odd0, ", ", $left, ", ", $r0),
                    concat!("vfmadd231ps ", $odd1, ", ", $left, ", ", $r1),)*
                    concat!("add {a}, 8*", $rows),
                    concat!("add {b}, 4*", $bytes),
                    "dec {pairs:e}",
                    "jnz 3b",
                    $(concat!("vaddps ", $even0, ", ", $even0, ", ", $odd0),
                    concat!("vaddps ", $even1, ", ", $even1, ", ", $odd1),
                    concat!("vmovups ", $odd0, ", [{sums} + ", $row, "*2*", $bytes, "]"),
                    concat!("vmovups ", $odd1, ", [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "]"),
                    concat!("vaddps ", $odd0, ", ", $odd0, ", ", $even0),
                    concat!("vaddps ", $odd1, ", ", $odd1, ", ", $even1),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, "], ", $odd0),
                    concat!("vmovups [{sums} + ", $row, "*2*", $bytes, " + ", $bytes, "], ", $odd1),)*
                    "dec {count}",
                    "jnz 2b",
                ]
                    sums = in(reg) sums,
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    count = inout(reg) count => _,
                    pairs = out(reg) _,
                    $(out($even0) _, out($even1) _, out($odd0) _, out($odd1) _,)*
                    out($r0) _, out($r1) _, out($left) _,
                );
            }
        }
    };
}

/// Makes chains by `$kind` for the first row listed, the first two, and so on: an entry is a name, the number of rows so far,
/// the row, and its registers.
macro_rules! chains {
    ($kind:ident, $bytes:literal, ($($free:tt)*), [$($before:tt)*]) => {};
    ($kind:ident, $bytes:literal, ($($free:tt)*), [$($before:tt)*] ($name:ident $rows:literal $($row:tt)*) $($rest:tt)*) => {
        $kind!($name, $rows, $bytes, $($free)*: $($before)* $($row)*,);
        chains!($kind, $bytes, ($($free)*), [$($before)* $($row)*,] $($rest)*);
    };
}

/// Chains for AVX-512, in tiles of 32 columns.
pub(super) mod avx512 {
    use super::*;

    /// Of single steps.
    pub const STEPS: Unit =
        Unit { words: 1, chains: &[p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14] };
    /// Of tiles of steps.
    pub const TILES: Unit = Unit { words: TILE_STEPS, chains: &[t1, t2, t3, t4, t5, t6] };

    chains! { step_chain, 64, ("zmm29" "zmm30" "zmm31"), []
        (p1 1 0 "zmm0" "zmm1") (p2 2 1 "zmm2" "zmm3") (p3 3 2 "zmm4" "zmm5") (p4 4 3 "zmm6" "zmm7")
        (p5 5 4 "zmm8" "zmm9") (p6 6 5 "zmm10" "zmm11") (p7 7 6 "zmm12" "zmm13") (p8 8 7 "zmm14" "zmm15")
        (p9 9 8 "zmm16" "zmm17") (p10 10 9 "zmm18" "zmm19") (p11 11 10 "zmm20" "zmm21")
        (p12 12 11 "zmm22" "zmm23") (p13 13 12 "zmm24" "zmm25") (p14 14 13 "zmm26" "zmm27")
    }

    chains! { tile_chain, 64, ("zmm29" "zmm30" "zmm31"), []
        (t1 1 0 "zmm0" "zmm1" "zmm2" "zmm3") (t2 2 1 "zmm4" "zmm5" "zmm6" "zmm7")
        (t3 3 2 "zmm8" "zmm9" "zmm10" "zmm11") (t4 4 3 "zmm12" "zmm13" "zmm14" "zmm15")
        (t5 5 4 "zmm16" "zmm17" "zmm18" "zmm19") (t6 6 5 "zmm20" "zmm21" "zmm22" "zmm23")
    }
}

/// Chains for AVX2 with FMA, in tiles of 16 columns.
pub(super) mod avx2 {
    use super::*;

    /// Of single steps.
    pub const STEPS: Unit = Unit { words: 1, chains: &[p1, p2, p3, p4, p5, p6] };
    /// Of tiles of steps.
    pub const TILES: Unit = Unit { words: TILE_STEPS, chains: &[t1, t2, t3] };

    chains! { step_chain, 32, ("ymm13" "ymm14" "ymm15"), []
        (p1 1 0 "ymm0" "ymm1") (p2 2 1 "ymm2" "ymm3") (p3 3 2 "ymm4" "ymm5") (p4 4 3 "ymm6" "ymm7")
        (p5 5 4 "ymm8" "ymm9") (p6 6 5 "ymm10" "ymm11")
    }

    chains! { tile_chain, 32, ("ymm13" "ymm14" "ymm15"), []
        (t1 1 0 "ymm0" "ymm1" "ymm2" "ymm3") (t2 2 1 "ymm4" "ymm5" "ymm6" "ymm7")
        (t3 3 2 "ymm8" "ymm9" "ymm10" "ymm11")
    }
}
