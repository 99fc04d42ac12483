//! The right operand of a convolution's product: the weight, packed straight from `[groups · narrow, wide, kernel…]`.

use std::ops::Range;

use phalanx_ir::Space;

use super::patches::{LINE_STEPS, Lines, store_lines};
use super::phase::Phase;
use crate::dispatch;
use crate::matmul::{Block, LINE, MicroKernels, Packing, Region, RightOperand, TransposedBlock};

/// The weight of one group: channel `c`, column `j` and position `k` of the kernel at `c · channel_step + j · column_step + k`.
pub(super) struct Filter<'a> {
    /// The group's elements.
    pub weight: &'a [f32],
    /// Between summed channels.
    pub channel_step: usize,
    /// Between columns.
    pub column_step: usize,
    /// Which positions are taps.
    pub phase: Phase,
    /// Extents of the kernel.
    pub kernel: Space,
    /// Channels of a leaf.
    pub leaf: usize,
}

impl RightOperand for Filter<'_> {
    fn pack(&self, packed: &mut [f32], block: Block, columns: Range<usize>, kernels: &MicroKernels) {
        let all = self.phase.has_all_taps(self.kernel);
        for (steps, words) in block.pieces() {
            let packed = &mut packed[words.start * kernels.columns..words.end * kernels.columns];
            match all && kernels.packing == Packing::Single {
                true => pack_neighbors(packed, self, steps, &columns, kernels),
                false => pack_lines(packed, self, steps, &columns, kernels),
            }
        }
    }

    /// The channels of the block's leaves, whole.
    fn region(&self, columns: Range<usize>, block: &Block) -> Region {
        let steps = (self.phase.taps() * self.leaf).max(1);
        let leaves = block.first / steps..(block.first + block.len()).div_ceil(steps);
        let (first, channels) = (leaves.start * self.leaf, leaves.len() * self.leaf);
        let at = first * self.channel_step + columns.start * self.column_step;
        let start = self.weight.as_ptr().wrapping_add(at);
        let positions = self.kernel.iter().product::<usize>();
        match self.channel_step < self.column_step {
            true => Region::by_rows(start, columns.len(), channels * positions, self.column_step),
            false => Region::by_rows(start, channels, columns.len() * positions, self.channel_step),
        }
    }
}

/// Packs steps whose taps lie beside each other in the weight: they are columns of a small matrix for each channel.
fn pack_neighbors(
    packed: &mut [f32],
    filter: &Filter<'_>,
    steps: Range<usize>,
    columns: &Range<usize>,
    kernels: &MicroKernels,
) {
    for lane in (0..kernels.columns).step_by(LINE) {
        let column = columns.start + lane;
        let rows = columns.end.saturating_sub(column).min(LINE);
        pack_lanes(packed, filter, &steps, [lane, column, rows], kernels);
    }
}

/// Packs one line of lanes: `rows` columns from `column` on. Its lines of the weight stay in the first-level cache from one
/// channel to the next.
fn pack_lanes(
    packed: &mut [f32],
    filter: &Filter<'_>,
    steps: &Range<usize>,
    [lane, column, rows]: [usize; 3],
    kernels: &MicroKernels,
) {
    let (taps, leaf, width) = (filter.phase.taps(), filter.leaf, kernels.columns);
    for number in steps.start / (taps * leaf)..steps.end.div_ceil(taps * leaf) {
        let start = number * taps * leaf;
        let within = steps.start.max(start) - start..steps.end.min(start + taps * leaf) - start;
        for channel in 0..leaf {
            // The taps whose step lies in the piece.
            let first = within.start.saturating_sub(channel).div_ceil(leaf);
            let end = within.end.saturating_sub(channel).div_ceil(leaf);
            for tap in (first..end).step_by(LINE) {
                let word = start + tap * leaf + channel - steps.start;
                let at = (number * leaf + channel) * filter.channel_step + tap;
                let source = match rows {
                    0 => filter.weight,
                    _ => &filter.weight[at + column * filter.column_step..],
                };
                let block = TransposedBlock {
                    rows,
                    columns: (end - tap).min(LINE),
                    source: source.as_ptr(),
                    source_row: filter.column_step,
                    packed: packed[word * width + lane..].as_mut_ptr(),
                    packed_row: leaf * width,
                };
                // SAFETY: these columns and taps are elements of the weight, the words of these taps lie inside the
                // piece, and each has room for the whole width; the kernels are of an available instruction set.
                unsafe { (kernels.transpose)(&block) };
            }
        }
    }
}

dispatch! {
    /// Packs any steps, one after the other.
    fn pack_lines(
        packed: &mut [f32],
        filter: &Filter<'_>,
        steps: Range<usize>,
        columns: &Range<usize>,
        kernels: &MicroKernels,
    ) {
        let (packing, width) = (kernels.packing, kernels.columns);
        let words = packing.words(steps.len());
        let (taps, leaf) = (filter.phase.taps(), filter.leaf);
        let mut lines: Lines = [[0.0; LINE_STEPS]; LINE];
        for word in (0..words).step_by(LINE) {
            let first = (steps.start + word * packing.steps()).min(steps.end);
            let end = (first + LINE * packing.steps()).min(steps.end);
            for lane in (0..width).step_by(LINE) {
                let column = columns.start + lane;
                let rows = columns.end.saturating_sub(column).min(LINE);
                for step in first..end {
                    let (tap, own) = (step / leaf % taps, step / (taps * leaf) * leaf + step % leaf);
                    let position = filter.phase.position(tap, filter.kernel);
                    let at = own * filter.channel_step + position + column * filter.column_step;
                    for (row, line) in lines.iter_mut().enumerate().take(rows) {
                        line[step - first] = filter.weight[at + row * filter.column_step];
                    }
                }
                let to = packed[word * width + lane..].as_mut_ptr();
                store_lines(&lines, rows, end - first, to, [width, (words - word).min(LINE)], kernels);
            }
        }
    }
}
