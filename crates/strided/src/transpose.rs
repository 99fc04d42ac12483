//! Transposing: two loops, one dense in the source and the other in the destination.

use super::kernel::{Axes, Axis, Body, Fixed, LINE, nest, row};
#[cfg(target_arch = "x86_64")]
use super::registers::Registers;

/// A rectangle of units, whose rows are contiguous in the source and whose columns in the destination.
///
/// It goes by squares, a cache line wide, so that a line is used up while it is in the cache; and squares go by strips,
/// so that few pages are in use at a time.
#[derive(Clone, Copy)]
pub(super) struct Transposed<S> {
    /// Along the source's lines.
    pub(super) rows: Axis,
    /// Along the destination's lines.
    pub(super) columns: Axis,
    pub(super) square: S,
}

/// How a square is transposed.
pub(super) trait Square: Copy {
    /// Moves one unit.
    type Unit: Body;
    const UNIT: Self::Unit;

    /// Bytes of a unit.
    const BYTES: usize;

    /// Units along a side.
    const SIDE: usize;

    /// Transposes a whole square.
    ///
    /// # Safety
    /// As [`Body::run`], for [`Square::SIDE`] units along both axes.
    unsafe fn whole(self, axes: [Axis; 2], to: *mut u8, from: *const u8);
}

/// Squares across a strip.
const STRIP: usize = 8;

impl<S: Square> Body for Transposed<S> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        let Self { rows, columns, square } = self;
        for strip in (0..columns.extent).step_by(STRIP * S::SIDE) {
            let end = columns.extent.min(strip + STRIP * S::SIDE);
            for row in (0..rows.extent).step_by(S::SIDE) {
                for column in (strip..end).step_by(S::SIDE) {
                    let (to, from) = rows.at(row, to, from);
                    let (to, from) = columns.at(column, to, from);
                    let (height, width) = (rows.extent - row, end - column);
                    // SAFETY: a part of the rectangle, which the caller promises.
                    unsafe {
                        match height.min(width) >= S::SIDE {
                            true => square.whole([rows, columns], to, from),
                            false => {
                                let units = [height.min(S::SIDE), width.min(S::SIDE)];
                                one_by_one::<S>(units, [rows, columns], to, from);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Transposes so many units along both axes. Inlined, so that whole squares are compiled with their size known.
///
/// # Safety
/// As [`Body::run`], for these units.
#[inline(always)]
unsafe fn one_by_one<S: Square>(
    [height, width]: [usize; 2],
    [rows, columns]: [Axis; 2],
    to: *mut u8,
    from: *const u8,
) {
    for step in 0..height {
        let (to, from) = rows.at(step, to, from);
        // SAFETY: the caller's promise.
        unsafe { row(Axis { extent: width, to: S::BYTES, ..columns }, to, from, S::UNIT) };
    }
}

/// Units of `N` bytes, one after the other.
#[derive(Clone, Copy)]
struct OneByOne<const N: usize>;

impl<const N: usize> Square for OneByOne<N> {
    type Unit = Fixed<N>;
    const UNIT: Fixed<N> = Fixed;
    const BYTES: usize = N;
    /// Of short units not a whole line: there would be many lines.
    const SIDE: usize = if N < 4 { 32 } else { LINE / N };

    #[inline(always)]
    unsafe fn whole(self, axes: [Axis; 2], to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { one_by_one::<Self>([Self::SIDE; 2], axes, to, from) };
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
    #[cfg(target_arch = "x86_64")]
    if unit == Registers::<false>::BYTES && is_x86_feature_detected!("avx") {
        // SAFETY: the machine has these registers; for the rest the caller's promise.
        return unsafe { super::registers::transpose(outer, [rows, columns], to, from) };
    }
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match unit {
            1 => nest(outer, to, from, Transposed { columns, rows, square: OneByOne::<1> }),
            2 => nest(outer, to, from, Transposed { columns, rows, square: OneByOne::<2> }),
            4 => nest(outer, to, from, Transposed { columns, rows, square: OneByOne::<4> }),
            8 => nest(outer, to, from, Transposed { columns, rows, square: OneByOne::<8> }),
            _ => nest(outer, to, from, Transposed { columns, rows, square: OneByOne::<16> }),
        }
    }
}
