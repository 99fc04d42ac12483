//! Copies of heads in scratch: rows one after the other, or transposed, padded with zeros to whole blocks.

use super::Heads;
use super::product::LANES;
use super::strip::KEYS;
use crate::dispatch;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

/// One head of one sequence: where its rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The first element of its row at time 0.
    pub start: usize,
    /// Elements between rows.
    pub row: usize,
    /// How many rows.
    pub time: usize,
    /// Elements per row.
    pub dim: usize,
}

impl Heads {
    /// Head `head` of sequence `batch`.
    pub(super) fn head(self, batch: usize, head: usize) -> Head {
        Head { start: self.start(batch, 0, head), row: self.row, time: self.time, dim: self.dim }
    }
}

impl Head {
    /// The elements at time `t`.
    pub(super) fn at(self, t: usize) -> std::ops::Range<usize> {
        let start = self.start + t * self.row;
        start..start + self.dim
    }
}

/// Splits scratch into consecutive parts of these sizes.
pub(super) fn carve<const N: usize>(scratch: &mut [f32], sizes: [usize; N]) -> [&mut [f32]; N] {
    let mut rest = scratch;
    sizes.map(|size| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(size);
        rest = tail;
        part
    })
}

dispatch! {
    /// Copies rows `first..` of a head, times `scale`, to rows of `width` in `out`; what is missing is zero.
    pub(super) fn pack_rows(out: &mut [f32], width: usize, x: &[f32], head: Head, first: usize, scale: f32) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            if first + i >= head.time {
                out.fill(0.0);
                continue;
            }
            let (values, padding) = out.split_at_mut(head.dim);
            values.iter_mut().zip(&x[head.at(first + i)]).for_each(|(out, x)| *out = x * scale);
            padding.fill(0.0);
        }
    }
}

dispatch! {
    /// Writes `values` times `scale` to `out`, which may be shorter.
    pub(super) fn write_scaled(out: &mut [f32], values: &[f32], scale: f32) {
        out.iter_mut().zip(values).for_each(|(out, x)| *out = x * scale);
    }
}

dispatch! {
    /// Adds `values` times `scale` to `out`, which may be shorter.
    pub(super) fn add_scaled(out: &mut [f32], values: &[f32], scale: f32) {
        out.iter_mut().zip(values).for_each(|(out, x)| *out += x * scale);
    }
}

/// Copies all rows of a head as transposed blocks `[dim, KEYS]`; what is missing is zero.
pub(super) fn pack_transposed(out: &mut [f32], x: &[f32], head: Head) {
    for (block, out) in out.chunks_exact_mut(KEYS * head.dim).enumerate() {
        for strip in (0..KEYS).step_by(LANES) {
            let first = block * KEYS + strip;
            let rows = head.time.saturating_sub(first).min(LANES);
            let x = if rows > 0 { &x[head.at(first).start..] } else { &[] };
            transpose_strip(&mut out[strip..], x, head, rows);
        }
    }
}

/// Writes `rows` rows of `x`, at most one vector of them, as columns of `out`, whose rows are `KEYS` apart.
fn transpose_strip(out: &mut [f32], x: &[f32], head: Head, rows: usize) {
    let done = if rows == LANES { transpose_fours(out, x, head) } else { 0 };
    for d in done..head.dim {
        let column = &mut out[d * KEYS..][..LANES];
        column[rows..].fill(0.0);
        column[..rows].iter_mut().enumerate().for_each(|(row, out)| *out = x[row * head.row + d]);
    }
}

/// As [`transpose_strip`] for a whole vector of rows, four elements at a time; returns how many of each row it did.
#[cfg(target_arch = "x86_64")]
fn transpose_fours(out: &mut [f32], x: &[f32], head: Head) -> usize {
    if Isa::current() != Isa::Avx512 {
        return 0;
    }
    let done = head.dim - head.dim % 4;
    assert!((LANES - 1) * head.row + head.dim <= x.len(), "`x` holds the rows");
    assert!((head.dim - 1) * KEYS + LANES <= out.len(), "`out` holds the columns");
    for d in (0..done).step_by(4) {
        let (out, x) = (out.as_mut_ptr().wrapping_add(d * KEYS), x.as_ptr().wrapping_add(d));
        // SAFETY: the instruction set is available and the assertions cover 16 rows and 4 columns of them.
        unsafe { transpose_four(out, x, head.row) };
    }
    done
}

/// Other machines have no fast transposition.
#[cfg(not(target_arch = "x86_64"))]
fn transpose_fours(_out: &mut [f32], _x: &[f32], _head: Head) -> usize {
    0
}

/// Transposes 16 rows of 4 elements at `x`, `stride` apart, into 4 vectors at `out`, `KEYS` apart.
///
/// # Safety
/// All of these elements must be in bounds, on a machine with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_four(out: *mut f32, x: *const f32, stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: in bounds by the contract.
    let quad = |row: usize| unsafe { _mm_loadu_ps(x.add(row * stride)) };
    // Quarter g of vector i holds row 4g + i, so that transposing inside quarters puts the rows in order.
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| {
        let rows = _mm512_castps128_ps512(quad(i));
        let rows = _mm512_insertf32x4::<1>(rows, quad(4 + i));
        let rows = _mm512_insertf32x4::<2>(rows, quad(8 + i));
        _mm512_insertf32x4::<3>(rows, quad(12 + i))
    });
    let pairs = [
        _mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
        _mm512_castps_pd(_mm512_unpacklo_ps(c, d)),
        _mm512_castps_pd(_mm512_unpackhi_ps(a, b)),
        _mm512_castps_pd(_mm512_unpackhi_ps(c, d)),
    ];
    let columns = [
        _mm512_unpacklo_pd(pairs[0], pairs[1]),
        _mm512_unpackhi_pd(pairs[0], pairs[1]),
        _mm512_unpacklo_pd(pairs[2], pairs[3]),
        _mm512_unpackhi_pd(pairs[2], pairs[3]),
    ];
    for (i, column) in columns.into_iter().enumerate() {
        // SAFETY: in bounds by the contract.
        unsafe { _mm512_storeu_ps(out.add(i * KEYS), _mm512_castpd_ps(column)) };
    }
}
