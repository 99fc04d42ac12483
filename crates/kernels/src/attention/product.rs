//! Small matrix products on strided blocks in scratch.
//!
//! Every output element is one chain of fused multiply-adds in ascending step, so tiles and instruction sets do not
//! show in the bits.

use super::Attention;
use super::strip::{KEYS, STRIP, Strip};
use crate::isa::Isa;

/// Elements of a vector; columns of every product are a multiple of it.
pub(super) const LANES: usize = 16;
/// Rows of every product are a multiple of this.
pub(super) const ROWS: usize = 8;

/// The sizes and strides of a product `out[rows, cols] = left[rows, depth] * right[depth, cols]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    /// Elements between rows of `out`.
    pub out_row: usize,
    /// Elements between rows of `left`.
    pub left_row: usize,
    /// Elements between steps of `left`.
    pub left_step: usize,
    /// Elements between steps of `right`.
    pub right_row: usize,
    /// Whether the chains continue from what `out` holds instead of +0.0.
    pub accumulate: bool,
}

impl Product {
    /// Scores of a strip of queries, `left_row` apart, against a transposed block of keys.
    pub(super) fn scores(strip: &Strip, dim: usize, left_row: usize) -> Product {
        let Strip { rows, cols, .. } = *strip;
        let (out_row, right_row) = (KEYS, KEYS);
        Product { rows, cols, depth: dim, out_row, left_row, left_step: 1, right_row, accumulate: false }
    }

    /// Adds the rows of a block of keys or values, `padded` long, weighted by a strip of scores.
    pub(super) fn weighted(strip: &Strip, padded: usize) -> Product {
        let Strip { rows, cols: depth, .. } = *strip;
        let (out_row, left_row, right_row) = (padded, KEYS, padded);
        Product { rows, cols: padded, depth, out_row, left_row, left_step: 1, right_row, accumulate: true }
    }

    /// Adds `depth` queries' rows, `padded` long, weighted by their scores of one strip of keys.
    pub(super) fn transposed(padded: usize, depth: usize) -> Product {
        let (out_row, left_step, right_row) = (padded, KEYS, padded);
        let rows = STRIP;
        Product { rows, cols: padded, depth, out_row, left_row: 1, left_step, right_row, accumulate: true }
    }

    /// A weighted sum over words of two steps.
    pub(super) fn of_pairs(self, params: Attention) -> Product {
        let cols = params.head_dim.next_multiple_of(LANES);
        Product { cols, depth: self.depth / 2, left_row: self.left_row / 2, ..self }
    }
}

/// Computes the product.
pub(super) fn product(out: &mut [f32], left: &[f32], right: &[f32], shape: Product) {
    let Some(operands) = Operands::new(out, left, right, shape) else { return };
    match Isa::current() {
        // SAFETY: the instruction set is available; the assertions above cover every element the tiles touch.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(operands, shape) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(operands, shape) },
        // SAFETY: as above.
        _ => unsafe { tiles::<4, 1>(operands, shape) },
    }
}

/// Where the three blocks start.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub out: *mut f32,
    pub left: *const f32,
    pub right: *const f32,
}

impl Operands {
    /// The operands of a product, all of whose elements are in bounds; none if it has no elements.
    pub(super) fn new(out: &mut [f32], left: &[f32], right: &[f32], shape: Product) -> Option<Operands> {
        let Product { rows, cols, depth, out_row, left_row, left_step, right_row, .. } = shape;
        assert!(
            rows.is_multiple_of(ROWS) && cols.is_multiple_of(LANES),
            "a product of whole tiles, not {shape:?}"
        );
        if rows == 0 || cols == 0 {
            return None;
        }
        assert!((rows - 1) * out_row + cols <= out.len(), "`out` holds the product {shape:?}");
        if depth > 0 {
            assert!((rows - 1) * left_row + (depth - 1) * left_step < left.len(), "`left` holds its block");
            assert!((depth - 1) * right_row + cols <= right.len(), "`right` holds its block");
        }
        Some(Operands { out: out.as_mut_ptr(), left: left.as_ptr(), right: right.as_ptr() })
    }

    /// The same blocks from this row and column of the product on.
    #[inline(always)]
    pub(super) fn at(self, row: usize, col: usize, shape: Product) -> Operands {
        Operands {
            out: self.out.wrapping_add(row * shape.out_row + col),
            left: self.left.wrapping_add(row * shape.left_row),
            right: self.right.wrapping_add(col),
        }
    }
}

/// # Safety
/// As for [`tiles`], on a machine with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
unsafe fn avx512(operands: Operands, shape: Product) {
    // SAFETY: by this function's contract.
    unsafe { tiles::<8, 2>(operands, shape) }
}

/// # Safety
/// As for [`tiles`], on a machine with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(operands: Operands, shape: Product) {
    // SAFETY: by this function's contract.
    unsafe { tiles::<4, 1>(operands, shape) }
}

/// The product in tiles of `R` rows by `W` vectors, and of one vector where less than `W` are left.
///
/// # Safety
/// Every element of the blocks that `shape` describes must be in bounds of its operand.
#[inline(always)]
unsafe fn tiles<const R: usize, const W: usize>(operands: Operands, shape: Product) {
    let mut col = 0;
    while col < shape.cols {
        let wide = col + W * LANES <= shape.cols;
        for row in (0..shape.rows).step_by(R) {
            let at = operands.at(row, col, shape);
            // SAFETY: the tile lies inside the product.
            unsafe { if wide { tile::<R, W>(at, shape) } else { tile::<R, 1>(at, shape) } }
        }
        col += if wide { W * LANES } else { LANES };
    }
}

type Vector = [f32; LANES];

/// One tile, its sums in registers.
///
/// # Safety
/// As for [`tiles`], for `R` rows and `W` vectors from the operands' starts.
#[inline(always)]
unsafe fn tile<const R: usize, const W: usize>(operands: Operands, shape: Product) {
    let out =
        |row: usize, w: usize| operands.out.wrapping_add(row * shape.out_row + w * LANES).cast::<Vector>();
    let mut sums = [[[0.0; LANES]; W]; R];
    if shape.accumulate {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (w, sum) in sums.iter_mut().enumerate() {
                // SAFETY: in bounds by the contract; a vector needs no more alignment than its elements.
                *sum = unsafe { *out(row, w) };
            }
        }
    }
    for step in 0..shape.depth {
        let right = operands.right.wrapping_add(step * shape.right_row).cast::<Vector>();
        let left = operands.left.wrapping_add(step * shape.left_step);
        // SAFETY: in bounds by the contract.
        let right: [Vector; W] = std::array::from_fn(|w| unsafe { *right.add(w) });
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: in bounds by the contract.
            let left = unsafe { *left.add(row * shape.left_row) };
            for (sum, right) in sums.iter_mut().zip(&right) {
                for (sum, right) in sum.iter_mut().zip(right) {
                    *sum = left.mul_add(*right, *sum);
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (w, sum) in sums.iter().enumerate() {
            // SAFETY: in bounds by the contract.
            unsafe { *out(row, w) = *sum };
        }
    }
}
