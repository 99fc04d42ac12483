//! Transposing: two loops, one dense in the source and the other in the destination.

use super::kernel::{Axes, Axis, Body, Fixed, nest, row};

/// A rectangle of units of `N` bytes, whose rows are contiguous in the source and whose columns in the destination.
///
/// It goes by squares of `W` units, a cache line wide, so that a line is used up while it is in the cache; and squares go
/// by strips, so that few pages are in use at a time.
#[derive(Clone, Copy)]
struct Transposed<const N: usize, const W: usize> {
    /// Along the source's lines.
    rows: Axis,
    /// Along the destination's lines.
    columns: Axis,
}

/// Squares across a strip.
const STRIP: usize = 8;

impl<const N: usize, const W: usize> Body for Transposed<N, W> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        let Self { rows, columns } = self;
        for strip in (0..columns.extent).step_by(STRIP * W) {
            let end = columns.extent.min(strip + STRIP * W);
            for row in (0..rows.extent).step_by(W) {
                for column in (strip..end).step_by(W) {
                    let (to, from) = rows.at(row, to, from);
                    let (to, from) = columns.at(column, to, from);
                    let (height, width) = (W.min(rows.extent - row), W.min(end - column));
                    // SAFETY: a part of the rectangle, which the caller promises.
                    unsafe {
                        match (height, width) == (W, W) {
                            true => self.square(W, W, to, from),
                            false => self.square(height, width, to, from),
                        }
                    }
                }
            }
        }
    }
}

impl<const N: usize, const W: usize> Transposed<N, W> {
    /// Inlined, so that whole squares are compiled with their size known.
    ///
    /// # Safety
    /// As [`Body::run`], for so many units along both axes.
    #[inline(always)]
    unsafe fn square(self, height: usize, width: usize, to: *mut u8, from: *const u8) {
        for step in 0..height {
            let (to, from) = self.rows.at(step, to, from);
            // SAFETY: the caller's promise.
            unsafe { row(Axis { extent: width, to: N, ..self.columns }, to, from, Fixed::<N>) };
        }
    }
}

/// The loops around a transposition of units, the loop that is dense in the source and the one that is dense in the
/// destination; nothing if there are no two such loops.
pub(super) fn split(axes: &Axes, unit: usize) -> Option<(Axes, Axis, Axis)> {
    if !matches!(unit, 1 | 2 | 4 | 8 | 16) {
        return None;
    }
    let columns = axes.iter().position(|axis| axis.to == unit)?;
    let rows = axes.iter().position(|axis| axis.from == unit).filter(|&rows| rows != columns)?;
    let outer = (0..axes.len()).filter(|&dim| dim != rows && dim != columns).map(|dim| axes[dim]).collect();
    Some((outer, axes[rows], axes[columns]))
}

/// Transposes units of `unit` bytes, at every step of the loops around.
///
/// # Safety
/// As [`super::kernel::copy`].
pub(super) unsafe fn run(
    unit: usize,
    outer: &[Axis],
    [rows, columns]: [Axis; 2],
    to: *mut u8,
    from: *const u8,
) {
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match unit {
            1 => nest(outer, to, from, Transposed::<1, 32> { columns, rows }),
            2 => nest(outer, to, from, Transposed::<2, 32> { columns, rows }),
            4 => nest(outer, to, from, Transposed::<4, 16> { columns, rows }),
            8 => nest(outer, to, from, Transposed::<8, 8> { columns, rows }),
            _ => nest(outer, to, from, Transposed::<16, 4> { columns, rows }),
        }
    }
}
