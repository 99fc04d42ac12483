//! Operands rounded to `bf16` and their products.
//!
//! A packed word is a pair of steps, the even one in the lower half, for every order and instruction set: VDPBF16PS reads
//! pairs as they are, other kernels take them apart in registers.
//!
//! `halves` are rows whose pairs lie side by side: left operands. `pairs` are two rows, element by element: right operands,
//! and left ones whose steps are rows.

#[cfg(target_arch = "x86_64")]
mod chain;
#[cfg(target_arch = "x86_64")]
mod dot;
#[cfg(test)]
mod tests;

use phalanx_ir::Precision;

use super::Attention;
use super::pack::Head;
use super::product::{LANES, Operands, Product};
use super::strip::{KEYS, Strip};
use crate::bf16::{TILE_STEPS, leaf, round, widen};
use crate::dispatch;
use crate::isa::Isa;

/// Rows of right operands and results are a multiple of this long.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Words of one tile multiplication.
const TILE_WORDS: usize = TILE_STEPS / 2;

/// What a product of rounded operands needs to know beside its shape, which counts words.
///
/// Each element is one leaf. It is multiplied by `scale` and written, or, if the shape accumulates, added in single
/// precision to what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    /// In which order steps are added.
    pub precision: Precision,
    /// The factor on results that are written.
    pub scale: f32,
    /// How many words of zeros were left out before the first.
    pub skipped: usize,
}

impl Rounding {
    /// That of attention's products; none if they do not round.
    pub fn of(params: Attention) -> Option<Rounding> {
        let Attention { precision, scale, .. } = params;
        precision.rounds().then_some(Rounding { precision, scale, skipped: 0 })
    }
}

/// Computes the product; may write more columns, up to a multiple of [`COLUMNS`].
pub(super) fn product(out: &mut [f32], left: &[f32], right: &[f32], shape: Product, rounding: Rounding) {
    let whole = Product { cols: shape.cols.next_multiple_of(COLUMNS), ..shape };
    let Some(operands) = Operands::new(out, left, right, whole) else { return };
    if shape.depth == 0 {
        assert!(shape.accumulate, "a product that is written has steps");
        return;
    }
    match (Isa::current(), rounding.precision) {
        // SAFETY: the processor has the instruction; all elements are in bounds.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, Precision::Bf16Pair) if crate::matmul::has_fast_pairs() => unsafe {
            dot::product(operands, shape, rounding)
        },
        // SAFETY: the instruction set is available; all elements are in bounds.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, _) => unsafe { chain::avx512(operands, whole, rounding) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, _) => unsafe { chain::avx2(operands, shape, rounding) },
        _ => portable(out, left, right, shape, rounding),
    }
}

/// The product by its definition.
fn portable(out: &mut [f32], left: &[f32], right: &[f32], shape: Product, rounding: Rounding) {
    for row in 0..shape.rows {
        for col in 0..shape.cols {
            let word = |step: usize| (step / 2).checked_sub(rounding.skipped);
            let sum = leaf(rounding.precision, 2 * (rounding.skipped + shape.depth), |step| {
                let Some(word) = word(step) else { return (0.0, 0.0) };
                let (left, right) = (
                    left[row * shape.left_row + word * shape.left_step],
                    right[word * shape.right_row + col],
                );
                (half(left, step % 2), half(right, step % 2))
            });
            let out = &mut out[row * shape.out_row + col];
            *out = if shape.accumulate { *out + sum } else { sum * rounding.scale };
        }
    }
}

/// The even (0) or odd (1) step of a word.
fn half(word: f32, odd: usize) -> f32 {
    widen((word.to_bits() >> (16 * odd)) as u16)
}

/// A word of an even and an odd step.
#[inline(always)]
fn word(even: f32, odd: f32) -> f32 {
    f32::from_bits(u32::from(round(even)) | u32::from(round(odd)) << 16)
}

/// The halves of words, in order.
#[inline(always)]
fn halves(words: &mut [f32]) -> &mut [u16] {
    const { assert!(cfg!(target_endian = "little"), "the lower half of a word comes first in memory") };
    bytemuck::cast_slice_mut(words)
}

dispatch! {
    /// Rounds rows `first..` of a head to rows of `width` words in `out`; what is missing is zero.
    pub(super) fn pack_halves(out: &mut [f32], width: usize, x: &[f32], head: Head, first: usize) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let out = halves(out);
            if first + i >= head.time {
                out.fill(0);
                continue;
            }
            let (values, padding) = out.split_at_mut(head.dim);
            values.iter_mut().zip(&x[head.at(first + i)]).for_each(|(out, &x)| *out = round(x));
            padding.fill(0);
        }
    }
}

dispatch! {
    /// Rounds rows `first..` of a head to times `at..` in `out`, whose rows of `width` words hold two times each; later times
    /// are zero. If `at` is odd, its pair holds the time before.
    pub(super) fn pack_pairs(out: &mut [f32], width: usize, x: &[f32], head: Head, first: usize, at: usize) {
        let out: &mut [u32] = bytemuck::cast_slice_mut(out);
        for (pair, out) in out.chunks_exact_mut(width).enumerate().skip(at / 2) {
            let row = |time: usize| match (time + first).checked_sub(at) {
                Some(i) if i < head.time => &x[head.at(i)],
                _ => &[],
            };
            let (even, odd) = (row(2 * pair), row(2 * pair + 1));
            if 2 * pair >= at {
                let (values, padding) = out.split_at_mut(even.len());
                values.iter_mut().zip(even).for_each(|(out, &x)| *out = u32::from(round(x)));
                padding.fill(0);
            }
            out.iter_mut().zip(odd).for_each(|(out, &x)| *out |= u32::from(round(x)) << 16);
        }
    }
}

dispatch! {
    /// Rounds a strip of scores, rows of `KEYS`, to rows of halves.
    pub(super) fn round_halves(out: &mut [f32], scores: &[f32], strip: &Strip) {
        let rows = out.chunks_exact_mut(KEYS / 2).zip(scores.chunks_exact(KEYS)).take(strip.rows);
        for (out, scores) in rows {
            halves(out).iter_mut().zip(&scores[..strip.cols]).for_each(|(out, &x)| *out = round(x));
        }
    }
}

dispatch! {
    /// Rounds a strip of scores to rows that hold two queries each.
    pub(super) fn round_pairs(out: &mut [f32], scores: &[f32], strip: &Strip) {
        let pairs = scores.chunks_exact(2 * KEYS).take(strip.rows / 2);
        for (out, pair) in out.chunks_exact_mut(KEYS).zip(pairs) {
            let (even, odd) = (&pair[..strip.cols], &pair[KEYS..KEYS + strip.cols]);
            for ((out, &even), &odd) in out.iter_mut().zip(even).zip(odd) {
                *out = word(even, odd);
            }
        }
    }
}
