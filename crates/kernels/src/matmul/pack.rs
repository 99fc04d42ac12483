//! Copies operands into the order in which the micro kernels read them.
//!
//! Copies run over a few rows of the source at a time, so that they read it in long streams.

use std::ops::Range;

use super::micro::{LINE, MicroKernels, Transpose, prefetch_line};
use super::panel::Group;
use crate::dispatch;

/// Rows of the source that a copy handles at once.
const CHUNK: usize = 8;

/// A stored matrix: element `(row, column)` at `row * row_step + column * column_step`, one of the steps being 1.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    /// The stored elements.
    pub data: &'a [f32],
    /// Distance between rows.
    pub row_step: usize,
    /// Distance between columns.
    pub column_step: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix of `rows x columns` elements, stored by rows, or by columns if `transposed`.
    pub fn new(data: &'a [f32], rows: usize, columns: usize, transposed: bool) -> Self {
        match transposed {
            false => Matrix { data, row_step: columns, column_step: 1 },
            true => Matrix { data, row_step: 1, column_step: rows },
        }
    }

    /// The same elements with rows and columns exchanged.
    #[inline(always)]
    fn flipped(self) -> Self {
        Matrix { data: self.data, row_step: self.column_step, column_step: self.row_step }
    }

    /// The address of an element.
    pub fn element(&self, row: usize, column: usize) -> *const f32 {
        self.data.as_ptr().wrapping_add(row * self.row_step + column * self.column_step)
    }

    /// The adjacent elements of `row` from `column` on; only for matrices stored by rows.
    #[inline(always)]
    fn row(&self, row: usize, column: usize) -> &'a [f32] {
        &self.data[row * self.row_step + column..]
    }
}

/// Packs `rows x columns` of the right operand as rows of `kernels.columns` elements, padded with zeros.
pub(super) fn pack_panel(
    packed: &mut [f32],
    b: Matrix<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    kernels: &MicroKernels,
) {
    if b.column_step != 1 {
        transpose(packed, b.flipped(), columns, rows, kernels);
    } else if columns.len() == kernels.columns {
        copy_panel(packed, b, rows, columns);
    } else {
        copy_padded(packed, b, rows, columns, kernels.columns);
    }
}

dispatch! {
    /// Copies a whole panel.
    fn copy_panel(packed: &mut [f32], b: Matrix<'_>, rows: Range<usize>, columns: Range<usize>) {
        match columns.len() {
            32 => copy_panel_of::<32>(packed, b, rows, columns.start),
            16 => copy_panel_of::<16>(packed, b, rows, columns.start),
            _ => unreachable!("tiles are 16 or 32 columns wide"),
        }
    }
}

#[inline(always)]
fn copy_panel_of<const WIDTH: usize>(packed: &mut [f32], b: Matrix<'_>, rows: Range<usize>, column: usize) {
    for (packed, row) in packed.chunks_exact_mut(WIDTH).zip(rows) {
        packed.copy_from_slice(&b.row(row, column)[..WIDTH]);
    }
}

/// Copies a panel that is narrower than `width`, and fills it up with zeros.
fn copy_padded(packed: &mut [f32], b: Matrix<'_>, rows: Range<usize>, columns: Range<usize>, width: usize) {
    for (packed, row) in packed.chunks_exact_mut(width).zip(rows) {
        let (filled, padding) = packed.split_at_mut(columns.len());
        filled.copy_from_slice(&b.row(row, columns.start)[..columns.len()]);
        padding.fill(0.0);
    }
}

/// Packs the rows of `group` and `steps` of a left operand stored by rows: per tile, its rows step by step.
///
/// Writes up to a line more than the packed elements.
pub(super) fn pack_rows(
    packed: &mut [f32],
    a: Matrix<'_>,
    group: &Group,
    steps: Range<usize>,
    kernels: &MicroKernels,
) {
    for rows in group.tiles.clone().map(|tile| group.cut.rows(tile)) {
        let packed = &mut packed[group.left_at(rows.start)..];
        for step in steps.clone().step_by(LINE) {
            // The tile below comes next.
            (rows.end..rows.end + rows.len()).for_each(|row| prefetch_line(a.element(row, step)));
            let block = Transpose {
                rows: rows.len(),
                columns: (steps.end - step).min(LINE),
                source: a.row(rows.start, step).as_ptr(),
                source_row: a.row_step,
                packed: packed[(step - steps.start) * rows.len()..].as_mut_ptr(),
                packed_row: rows.len(),
            };
            // SAFETY: rows and steps lie inside the operand, the packed rows of the block with the line to spare inside
            // `packed`, and the kernels are of an available instruction set.
            unsafe { (kernels.transpose)(&block) };
        }
    }
}

dispatch! {
    /// Packs the rows of `group` and `steps` of a left operand stored by columns: per tile, its rows step by step.
    pub(super) fn pack_columns(packed: &mut [f32], a: Matrix<'_>, group: &Group, steps: Range<usize>) {
        let source = a.flipped();
        for first in steps.clone().step_by(CHUNK) {
            for rows in group.tiles.clone().map(|tile| group.cut.rows(tile)) {
                let at = group.left_at(rows.start) + (first - steps.start) * rows.len();
                for (index, step) in (first..steps.end.min(first + CHUNK)).enumerate() {
                    let from = source.row(step, rows.start);
                    let left = (steps.end - step) * rows.len();
                    let packed = &mut packed[at + index * rows.len()..][..left];
                    // A whole line is faster to copy; what is too much lies in later steps of the same tile.
                    match (packed.first_chunk_mut::<LINE>(), from.first_chunk::<LINE>()) {
                        (Some(packed), Some(from)) => *packed = *from,
                        _ => (0..rows.len()).for_each(|row| packed[row] = from[row]),
                    }
                }
            }
        }
    }
}

/// Writes column `c` of `rows x columns` of a matrix stored by rows as row `c` of `kernels.columns` elements,
/// padded with zeros.
fn transpose(
    packed: &mut [f32],
    source: Matrix<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    kernels: &MicroKernels,
) {
    let width = kernels.columns;
    for column in columns.clone().step_by(LINE) {
        for lane in (0..width).step_by(LINE) {
            let from = (rows.start + lane) * source.row_step + column;
            let to = (column - columns.start) * width + lane;
            let block = Transpose {
                rows: rows.len().saturating_sub(lane).min(LINE),
                columns: (columns.end - column).min(LINE),
                source: source.data[from.min(source.data.len())..].as_ptr(),
                source_row: source.row_step,
                packed: packed[to..].as_mut_ptr(),
                packed_row: width,
            };
            // SAFETY: rows and columns lie inside the source (checked by the caller's ranges), the packed rows of the
            // block inside the panel, and the kernels are of an available instruction set.
            unsafe { (kernels.transpose)(&block) };
        }
    }
}
