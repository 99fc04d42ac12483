//! Products of pairs by the instruction that is made for them, VDPBF16PS.

use std::arch::x86_64::*;

use super::Rounding;
use crate::attention::product::{LANES, Operands, Product, ROWS};

/// Registers side by side in a tile.
const WIDE: usize = 2;

/// The product, in tiles of two registers' columns, and of one where no more are left.
///
/// # Safety
/// All elements must be in bounds, on a machine with AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn product(operands: Operands, shape: Product, rounding: Rounding) {
    let mut col = 0;
    while col < shape.cols {
        let wide = col + WIDE * LANES <= shape.cols;
        for row in (0..shape.rows).step_by(ROWS) {
            let at = operands.at(row, col, shape);
            // SAFETY: the tile lies inside the product.
            unsafe { if wide { tile::<WIDE>(at, shape, rounding) } else { tile::<1>(at, shape, rounding) } }
        }
        col += if wide { WIDE * LANES } else { LANES };
    }
}

/// One tile of `W` registers' columns, its sums in registers.
///
/// # Safety
/// As for [`product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const W: usize>(operands: Operands, shape: Product, rounding: Rounding) {
    let Operands { out, mut left, mut right } = operands;
    let mut sums = [[_mm512_setzero_ps(); W]; ROWS];
    for _ in 0..shape.depth {
        // SAFETY: in bounds by the contract.
        let columns: [__m512bh; W] =
            std::array::from_fn(|w| unsafe { pairs(_mm512_loadu_ps(right.add(w * LANES))) });
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let left = unsafe { pairs(_mm512_set1_ps(*left.add(row * shape.left_row))) };
            for (sum, &columns) in sums.iter_mut().zip(&columns) {
                *sum = _mm512_dpbf16_ps(*sum, left, columns);
            }
        }
        left = left.wrapping_add(shape.left_step);
        right = right.wrapping_add(shape.right_row);
    }
    let scale = _mm512_set1_ps(rounding.scale);
    for (row, sums) in sums.into_iter().enumerate() {
        for (w, sum) in sums.into_iter().enumerate() {
            let out = out.wrapping_add(row * shape.out_row + w * LANES);
            let result = match shape.accumulate {
                // SAFETY: in bounds by the contract.
                true => _mm512_add_ps(unsafe { _mm512_loadu_ps(out) }, sum),
                false => _mm512_mul_ps(sum, scale),
            };
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(out, result) };
        }
    }
}

/// Words as pairs.
#[inline(always)]
fn pairs(words: __m512) -> __m512bh {
    // SAFETY: both are 64 bytes, of which any are allowed.
    unsafe { std::mem::transmute::<__m512, __m512bh>(words) }
}
