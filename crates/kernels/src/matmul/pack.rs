//! Copies operands into the order in which the micro kernels read them, rounded if the product says so.
//!
//! Copies run over a few rows of the source at a time, so that they read it in long streams.

use std::ops::Range;

use super::blocking::Block;
use super::micro::{LINE, MicroKernels, Transpose, adjacent_pairs, pairs_of_lines, prefetch_line};
use super::panel::Group;
use crate::bf16::{self, TILE_STEPS};
use crate::dispatch;

/// Rows of the source that a copy handles at once.
const CHUNK: usize = 8;

/// What a word of a packed operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// One step.
    Single,
    /// One step, rounded to `bf16`; leaves are filled up with zeros to whole tiles.
    Rounded,
    /// One step, rounded to `bf16`; of each pair the odd one comes first.
    Swapped,
    /// A pair of steps, rounded to `bf16`; the even one is the lower half. Only for processors that multiply pairs.
    Pairs,
}

impl Packing {
    /// Leaves are filled up to a multiple of this many steps.
    pub fn multiple(self) -> usize {
        match self {
            Packing::Single => 1,
            Packing::Rounded => TILE_STEPS,
            Packing::Swapped | Packing::Pairs => 2,
        }
    }

    /// Words of so many steps.
    pub fn words(self, steps: usize) -> usize {
        steps.next_multiple_of(self.multiple()) / self.steps()
    }

    /// Steps of a word.
    pub fn steps(self) -> usize {
        if self == Packing::Pairs { 2 } else { 1 }
    }

    /// Word `index`, from lines that hold one step each.
    #[inline(always)]
    pub fn word(self, index: usize, line: impl Fn(usize) -> [f32; LINE]) -> [f32; LINE] {
        match self {
            Packing::Single => line(index),
            Packing::Rounded => rounded(line(index)),
            Packing::Swapped => rounded(line(index ^ 1)),
            Packing::Pairs => pairs_of_lines(line(2 * index), line(2 * index + 1)),
        }
    }

    /// Words whose steps lie beside each other; zeros behind the last step.
    #[inline(always)]
    pub fn words_of(self, steps: &[f32]) -> [f32; LINE] {
        let first = line_of(steps);
        match self {
            Packing::Single => first,
            Packing::Rounded => rounded(first),
            Packing::Swapped => rounded(std::array::from_fn(|i| first[i ^ 1])),
            Packing::Pairs => adjacent_pairs(first, line_of(steps.get(LINE..).unwrap_or_default())),
        }
    }
}

/// The first line of `source`; zeros behind its end.
#[inline(always)]
pub(crate) fn line_of(source: &[f32]) -> [f32; LINE] {
    match source.first_chunk::<LINE>() {
        Some(whole) => *whole,
        None => std::array::from_fn(|i| source.get(i).copied().unwrap_or(0.0)),
    }
}

/// Each element as a product reads it.
#[inline(always)]
fn rounded(mut line: [f32; LINE]) -> [f32; LINE] {
    line.iter_mut().for_each(|element| *element = bf16::rounded(*element));
    line
}

/// A stored matrix: element `(row, column)` at `row * row_step + column * column_step`, one of the steps being 1.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
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

/// Packs the steps of `block` of some columns of the right operand as rows of `kernels.columns` words, padded with zeros.
pub(super) fn pack_panel(
    packed: &mut [f32],
    b: Matrix<'_>,
    block: Block,
    columns: Range<usize>,
    kernels: &MicroKernels,
) {
    let width = kernels.columns;
    for (steps, words) in block.pieces() {
        let packed = &mut packed[words.start * width..words.end * width];
        if b.column_step != 1 {
            transpose(packed, b.flipped(), columns.clone(), steps, kernels);
        } else if kernels.packing != Packing::Single {
            round_panel(packed, b, steps, columns.clone(), kernels);
        } else if columns.len() == width {
            copy_panel(packed, b, steps, columns.clone());
        } else {
            copy_padded(packed, b, steps, columns.clone(), width);
        }
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

dispatch! {
    /// Rounds a panel; what lies behind its last step or column becomes zero.
    fn round_panel(packed: &mut [f32], b: Matrix<'_>, steps: Range<usize>, columns: Range<usize>, kernels: &MicroKernels) {
        for (index, packed) in packed.chunks_exact_mut(kernels.columns).enumerate() {
            for (line, packed) in packed.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
                let first = (columns.start + line * LINE).min(columns.end);
                *packed = kernels.packing.word(index, |step| match steps.start + step < steps.end {
                    true => line_of(&b.row(steps.start + step, first)[..columns.end - first]),
                    false => [0.0; LINE],
                });
            }
        }
    }
}

/// Packs the left operand of `group`: per tile, its rows word by word.
///
/// Writes up to a line more than the packed words.
pub(super) fn pack_tiles(packed: &mut [f32], a: Matrix<'_>, group: &Group, kernels: &MicroKernels) {
    if a.column_step != 1 {
        return pack_columns(packed, a.flipped(), group, kernels);
    }
    for rows in group.tiles.clone().map(|tile| group.cut.rows(tile)) {
        for (steps, words) in group.block.pieces() {
            let packed = &mut packed[group.left_at(rows.start) + words.start * rows.len()..];
            pack_rows(packed, a, rows.clone(), steps, kernels);
        }
    }
}

/// Packs rows of a matrix stored by rows, word by word.
fn pack_rows(
    packed: &mut [f32],
    a: Matrix<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    kernels: &MicroKernels,
) {
    let packing = kernels.packing;
    let words = packing.words(steps.len());
    for word in (0..words).step_by(LINE) {
        let step = (steps.start + word * packing.steps()).min(steps.end);
        // The tile below comes next.
        (rows.end..rows.end + rows.len()).for_each(|row| prefetch_line(a.element(row, step)));
        let to = Transposed {
            at: packed[word * rows.len()..].as_mut_ptr(),
            row: rows.len(),
            words: (words - word).min(LINE),
        };
        // SAFETY: the words of the block lie inside `packed` with the line to spare.
        unsafe { transpose_block(a, rows.clone(), step..steps.end, to, kernels) };
    }
}

dispatch! {
    /// Packs the rows of `group` of a left operand whose steps are the rows of `a`: per tile, its rows word by word.
    fn pack_columns(packed: &mut [f32], a: Matrix<'_>, group: &Group, kernels: &MicroKernels) {
        let all = group.block.words();
        for (steps, words) in group.block.pieces() {
            for first in words.clone().step_by(CHUNK) {
                for rows in group.tiles.clone().map(|tile| group.cut.rows(tile)) {
                    for word in first..words.end.min(first + CHUNK) {
                        let at = group.left_at(rows.start) + word * rows.len();
                        let packed = &mut packed[at..][..(all - word) * rows.len()];
                        pack_column(packed, a, &rows, &steps, word - words.start, kernels.packing);
                    }
                }
            }
        }
    }
}

/// Packs one word of `rows`, which lie beside each other.
#[inline(always)]
fn pack_column(
    packed: &mut [f32],
    a: Matrix<'_>,
    rows: &Range<usize>,
    steps: &Range<usize>,
    word: usize,
    packing: Packing,
) {
    let line = packing.word(word, |step| match steps.start + step < steps.end {
        true => line_of(a.row(steps.start + step, rows.start)),
        false => [0.0; LINE],
    });
    // A whole line is faster to copy; what is too much lies in later words of the same tile.
    match packed.first_chunk_mut::<LINE>() {
        Some(packed) => *packed = line,
        None => packed[..rows.len()].copy_from_slice(&line[..rows.len()]),
    }
}

/// Writes column `c` of `rows x steps` of a matrix stored by rows as row `c` of `kernels.columns` words, padded with zeros.
fn transpose(
    packed: &mut [f32],
    source: Matrix<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    kernels: &MicroKernels,
) {
    let (width, packing) = (kernels.columns, kernels.packing);
    let words = packing.words(steps.len());
    for word in (0..words).step_by(LINE) {
        let step = (steps.start + word * packing.steps()).min(steps.end);
        for lane in (0..width).step_by(LINE) {
            let rows = (rows.start + lane).min(rows.end)..(rows.start + lane + LINE).min(rows.end);
            let to = packed[word * width + lane..].as_mut_ptr();
            let to = Transposed { at: to, row: width, words: (words - word).min(LINE) };
            // SAFETY: the words of the block lie inside the panel.
            unsafe { transpose_block(source, rows, step..steps.end, to, kernels) };
        }
    }
}

/// Where the columns of a block go.
struct Transposed {
    /// The first word.
    at: *mut f32,
    /// Distance between words of one row of the source.
    row: usize,
    /// How many words of each row.
    words: usize,
}

/// Stores up to a line of words of up to a line of `rows`, word by word; there may be more `steps` than they need, or less.
///
/// # Safety
/// `to` must be writable for a line at each of its words.
unsafe fn transpose_block(
    source: Matrix<'_>,
    rows: Range<usize>,
    steps: Range<usize>,
    to: Transposed,
    kernels: &MicroKernels,
) {
    let mut lines = [[0.0; LINE]; LINE];
    let (from, from_row) = match kernels.packing {
        Packing::Single => (source.element(rows.start, steps.start), source.row_step),
        packing => {
            round_lines(&mut lines, source, rows.clone(), steps, packing);
            (lines.as_ptr().cast(), LINE)
        }
    };
    let block = Transpose {
        rows: rows.len(),
        columns: to.words,
        source: from,
        source_row: from_row,
        packed: to.at,
        packed_row: to.row,
    };
    // SAFETY: rows and steps lie inside the source, or its lines inside of ours; the rest is this function's contract, and the
    // kernels are of an available instruction set.
    unsafe { (kernels.transpose)(&block) };
}

dispatch! {
    /// Rounds a line of words of each row.
    fn round_lines(
        lines: &mut [[f32; LINE]; LINE],
        source: Matrix<'_>,
        rows: Range<usize>,
        steps: Range<usize>,
        packing: Packing,
    ) {
        for (line, row) in lines.iter_mut().zip(rows) {
            *line = packing.words_of(&source.row(row, steps.start)[..steps.len()]);
        }
    }
}
