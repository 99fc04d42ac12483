//! What happens to a finished tile that is not simply stored: bias, saved value, activation, slope, residual.

use super::micro::MAX_TILE;
use crate::dispatch;
use crate::spmd::Parts;
use crate::unary::{Activation, activate_in_place, slope_in_place};

/// The steps after the sum, for whole `[batch, m, n]` arrays.
pub(super) struct Epilogue<'a> {
    /// One value per column.
    pub bias: Option<&'a [f32]>,
    /// Where the value before the activation goes.
    pub pre: Option<Parts<'a, f32>>,
    /// What is applied.
    pub activation: Activation,
    /// The function whose slope is a factor, and where it is taken.
    pub slope: Option<(Activation, &'a [f32])>,
    /// Added after the activation.
    pub residual: Option<&'a [f32]>,
    /// Whether the result is added to the output.
    pub accumulate: bool,
    /// The result.
    pub out: Parts<'a, f32>,
}

/// The place of a tile in the output.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Position of its first element in the whole output.
    pub at: usize,
    /// Distance between output rows.
    pub row_step: usize,
    /// Its first column.
    pub column: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns inside the output.
    pub columns: usize,
}

impl Epilogue<'_> {
    /// Whether a micro kernel can write full tiles to the output by itself.
    pub fn is_simple(&self) -> bool {
        let reads = self.residual.is_some() || self.slope.is_some();
        self.pre.is_none() && !reads && self.activation == Activation::None
    }

    /// The addresses of element `at` in all arrays that [`Epilogue::finish`] reads and writes.
    pub fn places(&self, at: usize) -> impl Iterator<Item = *const f32> {
        let out = Some(self.out.as_mut_ptr().cast_const());
        let pre = self.pre.as_ref().map(|pre| pre.as_mut_ptr().cast_const());
        let residual = self.residual.map(|residual| residual.as_ptr());
        let points = self.slope.map(|(_, points)| points.as_ptr());
        [out, pre, residual, points].into_iter().flatten().map(move |start| start.wrapping_add(at))
    }

    /// Finishes a tile of packed rows of `width` elements and writes it to its place.
    ///
    /// # Safety
    /// Nobody else may use the tile's place in `out` and `pre` meanwhile.
    pub unsafe fn finish(&self, tile: &mut [f32], width: usize, place: Place) {
        let Place { at, row_step, columns, .. } = place;
        let row_at = |row| at + row * row_step..at + row * row_step + columns;
        let rows = 0..place.rows;
        if let Some(bias) = self.bias {
            let bias = &bias[place.column..place.column + columns];
            tile.chunks_exact_mut(width).for_each(|row| add(&mut row[..columns], bias));
        }
        if let Some(pre) = &self.pre {
            for (row, tile) in rows.clone().zip(tile.chunks_exact(width)) {
                // SAFETY: this row of the place is ours by the contract of this function.
                unsafe { pre.part(row_at(row)) }.copy_from_slice(&tile[..columns]);
            }
        }
        if self.activation != Activation::None {
            activate_in_place(self.activation, tile);
        }
        if let Some((activation, points)) = self.slope {
            // Rows of a tile are too short for vector loops; all of them together are not.
            let mut packed = [0.0; MAX_TILE];
            for (row, packed) in rows.clone().zip(packed.chunks_exact_mut(width)) {
                packed[..columns].copy_from_slice(&points[row_at(row)]);
            }
            slope_in_place(activation, tile, &packed[..tile.len()]);
        }
        for (row, tile) in rows.zip(tile.chunks_exact_mut(width)) {
            if let Some(residual) = self.residual {
                add(&mut tile[..columns], &residual[row_at(row)]);
            }
            // SAFETY: this row of the place is ours by the contract of this function.
            let out = unsafe { self.out.part(row_at(row)) };
            match self.accumulate {
                true => add(out, &tile[..columns]),
                false => out.copy_from_slice(&tile[..columns]),
            }
        }
    }
}

dispatch! {
    /// Adds `values` to `sums`, element by element.
    fn add(sums: &mut [f32], values: &[f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
}
