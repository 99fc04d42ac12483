//! What happens to a finished tile that is not simply stored: bias, saved value, activation, slope, residual.
//!
//! The saved value is for the backward pass, long after the caches have forgotten it: where possible it is written
//! past them.

use std::ops::Range;
use std::ptr;

use phalanx_ir::Activation;

use super::micro::MAX_TILE;
use crate::bf16::rounded;
use crate::dispatch;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
use crate::spmd::Parts;
use crate::unary::{activate_in_place, slope_in_place};

/// The steps after the sum, for whole `[batch, m, n]` arrays.
pub(crate) struct Epilogue<'a> {
    /// One value per column.
    pub bias: Option<&'a [f32]>,
    /// Where the value before the activation goes.
    pub pre: Option<Parts<'a, f32>>,
    /// What is applied.
    pub activation: Activation,
    /// The function whose slope is a factor, and where it is taken.
    pub slope: Option<(Activation, &'a [f32])>,
    /// Whether that is at rounded points.
    pub rounds: bool,
    /// Added after the activation.
    pub residual: Option<&'a [f32]>,
    /// Whether the result is added to the output.
    pub accumulate: bool,
    /// The result.
    pub out: Parts<'a, f32>,
}

/// The place of a tile in the output.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Position of its first element in the whole output.
    pub at: usize,
    /// Distance between output rows.
    pub row_step: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns inside the output.
    pub columns: usize,
}

impl Epilogue<'_> {
    /// Whether a micro kernel can write full tiles to the output by itself.
    pub fn is_simple(&self) -> bool {
        let computes = self.activation != Activation::None || self.slope.is_some();
        self.pre.is_none() && !computes && !(self.residual.is_some() && self.accumulate)
    }

    /// What a micro kernel adds to a tile at element `at` of the output, if it writes by itself; null if nothing.
    pub fn addend(&self, at: usize) -> *const f32 {
        match self.residual {
            Some(residual) => residual.as_ptr().wrapping_add(at),
            None if self.accumulate => self.out.as_mut_ptr().wrapping_add(at),
            None => ptr::null(),
        }
    }

    /// The addresses of element `at` in all arrays that [`Epilogue::finish`] reads and writes through the caches.
    pub fn places(&self, at: usize) -> impl Iterator<Item = *const f32> {
        let out = Some(self.out.as_mut_ptr().cast_const());
        let residual = self.residual.map(|residual| residual.as_ptr());
        let points = self.slope.map(|(_, points)| points.as_ptr());
        [out, residual, points].into_iter().flatten().map(move |start| start.wrapping_add(at))
    }

    /// Adds the bias of `columns` to packed rows of `width` elements: what a micro kernel leaves out at the edge.
    pub fn add_bias(&self, tile: &mut [f32], width: usize, columns: &Range<usize>) {
        if let Some(bias) = self.bias {
            add_rows(tile, width, &bias[columns.start..], 0, columns.len());
        }
    }

    /// Finishes a tile of packed rows of `width` elements, to which the bias is added, and writes it to its place.
    ///
    /// Before other threads read `pre`, [`Epilogue::settle`] must be called.
    ///
    /// # Safety
    /// No other thread may use the tile's place in `out` and `pre` meanwhile.
    pub unsafe fn finish(&self, tile: &mut [f32], width: usize, place: Place) {
        let Place { at, row_step, columns, .. } = place;
        let row_at = |row| at + row * row_step..at + row * row_step + columns;
        if let Some(pre) = &self.pre {
            for (row, tile) in tile.chunks_exact(width).enumerate() {
                // SAFETY: this row of the place is ours by the contract of this function.
                stream(unsafe { pre.part(row_at(row)) }, &tile[..columns]);
            }
        }
        if self.activation != Activation::None {
            activate_in_place(self.activation, tile);
        }
        if let Some((activation, points)) = self.slope {
            // Rows of a tile are too short for vector loops; all of them together are not.
            let mut packed = [0.0; MAX_TILE];
            pack_rows(&mut packed[..tile.len()], width, &points[at..], row_step, columns);
            if self.rounds {
                packed.iter_mut().for_each(|point| *point = rounded(*point));
            }
            slope_in_place(activation, tile, &packed[..tile.len()]);
        }
        if let Some(residual) = self.residual {
            add_rows(tile, width, &residual[at..], row_step, columns);
        }
        for (row, tile) in tile.chunks_exact_mut(width).enumerate() {
            // SAFETY: this row of the place is ours by the contract of this function.
            let out = unsafe { self.out.part(row_at(row)) };
            if self.accumulate {
                tile.iter_mut().zip(&*out).for_each(|(value, out)| *value += out);
            }
            copy(out, &tile[..columns]);
        }
    }

    /// Makes what was written past the caches visible to a thread that synchronizes with this one.
    pub fn settle(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.pre.is_some() {
            // SAFETY: every x86-64 machine has this fence.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

dispatch! {
    /// Adds rows of `columns` elements, `row_step` apart, to those of a tile, `width` apart.
    fn add_rows(tile: &mut [f32], width: usize, from: &[f32], row_step: usize, columns: usize) {
        for (row, tile) in tile.chunks_exact_mut(width).enumerate() {
            let from = &from[row * row_step..][..columns];
            match (tile.first_chunk_mut::<32>(), from.first_chunk::<32>()) {
                (Some(tile), Some(from)) => tile.iter_mut().zip(from).for_each(|(sum, value)| *sum += value),
                _ => tile.iter_mut().zip(from).for_each(|(sum, value)| *sum += value),
            }
        }
    }
}

dispatch! {
    /// Copies rows of `columns` elements, `row_step` apart, to rows of a tile, `width` apart.
    fn pack_rows(tile: &mut [f32], width: usize, from: &[f32], row_step: usize, columns: usize) {
        for (row, tile) in tile.chunks_exact_mut(width).enumerate() {
            copy(&mut tile[..columns], &from[row * row_step..][..columns]);
        }
    }
}

/// Copies a row of a tile; one of the usual length without a call.
#[inline(always)]
fn copy(to: &mut [f32], from: &[f32]) {
    match (to.first_chunk_mut::<32>(), from.first_chunk::<32>()) {
        (Some(to), Some(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// Copies a row of a tile past the caches, where the machine and the row's place allow it.
fn stream(to: &mut [f32], from: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if let (Isa::Avx512, Some(to), Some(from)) =
        (Isa::current(), to.first_chunk_mut::<32>(), from.first_chunk::<32>())
        && to.as_ptr().addr().is_multiple_of(64)
    {
        // SAFETY: the instruction set is available, and the row starts on a cache line.
        return unsafe { stream_lines(to, from) };
    }
    to.copy_from_slice(from);
}

/// # Safety
/// `to` must start on a cache line, on a machine with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines(to: &mut [f32; 32], from: &[f32; 32]) {
    use std::arch::x86_64::{_mm512_loadu_ps, _mm512_stream_ps};
    for (to, from) in to.chunks_exact_mut(16).zip(from.chunks_exact(16)) {
        // SAFETY: both are whole lines, and that of `to` is aligned by this function's contract.
        unsafe { _mm512_stream_ps(to.as_mut_ptr(), _mm512_loadu_ps(from.as_ptr())) };
    }
}
