//! The left operand of a convolution's product: for each result the elements it meets, packed straight from the tensor.
//!
//! Steps come in *runs* of elements that lie beside each other in the tensor: the channels of a leaf at one tap, or, where a
//! leaf has all channels of the tensor and taps are neighbors, all taps of the innermost dimension. The rows of a tile are
//! handled together, one lane each.

use std::ops::Range;

use phalanx_ir::MAX_SPACE;

use super::phase::Phase;
use crate::dispatch;
use crate::matmul::{Group, LINE, LeftOperand, MicroKernels, Packing, TransposedBlock};

/// Steps that a line of words has at most.
pub(super) const LINE_STEPS: usize = 2 * LINE;

/// Lines of steps, one for each row of a tile.
pub(super) type Lines = [[f32; LINE_STEPS]; LINE];

/// See the head of the file.
pub(super) struct Patches<'a> {
    /// The tensor that is read.
    pub x: &'a [f32],
    /// The rows.
    pub phase: Phase,
    /// Channels of the tensor.
    pub channels: usize,
    /// The group's first channel.
    pub first_channel: usize,
    /// Channels of a leaf.
    pub leaf: usize,
    /// Whether a run has all taps of the innermost dimension.
    pub merged: bool,
}

impl<'a> Patches<'a> {
    /// The rows of `phase`, whose sums over the `inner` channels of a group have so many leaves.
    pub fn new(
        x: &'a [f32],
        phase: Phase,
        channels: usize,
        group: usize,
        inner: usize,
        leaves: usize,
    ) -> Self {
        let leaf = inner / leaves;
        let merged = leaf == channels && phase.axes[MAX_SPACE - 1].tap_step == 1;
        Patches { x, phase, channels, first_channel: group * inner, leaf, merged }
    }

    /// Steps of a run.
    fn run(&self) -> usize {
        if self.merged { self.leaf * self.phase.axes[MAX_SPACE - 1].taps } else { self.leaf }
    }

    /// Taps along each dimension that are runs of their own.
    fn outer_taps(&self) -> [usize; MAX_SPACE] {
        let [a, b, c] = self.phase.axes.map(|axis| axis.taps);
        [a, b, if self.merged { 1 } else { c }]
    }
}

impl LeftOperand for Patches<'_> {
    fn pack(&self, packed: &mut [f32], group: &Group, kernels: &MicroKernels) {
        for rows in group.tiles.clone().map(|tile| group.cut.rows(tile)) {
            let tile = TileRows::new(self, rows.clone());
            for (steps, words) in group.block.pieces() {
                let packed = &mut packed[group.left_at(rows.start) + words.start * rows.len()..];
                pack_piece(packed, self, &tile, steps, kernels);
            }
        }
    }
}

/// Where the rows of a tile look.
struct TileRows {
    rows: usize,
    /// The element of tap 0 and channel 0 of the group in the tensor; it may lie outside.
    start: [isize; LINE],
    /// The same by dimension.
    place: [[isize; LINE]; MAX_SPACE],
    /// The distance between the starts of neighbors, if it is always the same.
    step: Option<usize>,
}

impl TileRows {
    fn new(patches: &Patches<'_>, rows: Range<usize>) -> TileRows {
        let axes = &patches.phase.axes;
        let (mut image, mut place) = patches.phase.place(rows.start);
        let mut tile =
            TileRows { rows: rows.len(), start: [0; LINE], place: [[0; LINE]; MAX_SPACE], step: None };
        for row in 0..rows.len() {
            let mut start = image as isize;
            for dim in 0..MAX_SPACE {
                let at = axes[dim].first + place[dim] as isize * axes[dim].row_step;
                tile.place[dim][row] = at;
                start = start * axes[dim].extent as isize + at;
            }
            tile.start[row] = start * patches.channels as isize + patches.first_channel as isize;
            for dim in (0..MAX_SPACE).rev() {
                place[dim] += 1;
                if place[dim] < axes[dim].rows {
                    break;
                }
                place[dim] = 0;
                image += usize::from(dim == 0);
            }
        }
        let steps = tile.start[..rows.len()].windows(2).map(|pair| pair[1] - pair[0]);
        let first = steps.clone().next().unwrap_or(0);
        tile.step = usize::try_from(first).ok().filter(|_| steps.clone().all(|step| step == first));
        tile
    }
}

/// A run of one tile.
struct Run {
    leaf: usize,
    taps: [usize; MAX_SPACE],
    /// The run's first element in the tensor, for each row.
    start: [isize; LINE],
    /// Which of its elements lie inside.
    inside: [[usize; LINE]; 2],
    /// Whether all do.
    whole: bool,
}

impl Run {
    /// Run `index` of a tile.
    #[inline(always)]
    fn new(patches: &Patches<'_>, tile: &TileRows, index: usize) -> Run {
        let [a, b, c] = patches.outer_taps();
        let taps = [index / (b * c) % a, index / c % b, index % c];
        let mut run =
            Run { leaf: index / (a * b * c), taps, start: [0; LINE], inside: [[0; LINE]; 2], whole: false };
        run.look(patches, tile);
        run
    }

    /// The run behind this one.
    #[inline(always)]
    fn advance(&mut self, patches: &Patches<'_>, tile: &TileRows) {
        let taps = patches.outer_taps();
        let mut dim = MAX_SPACE;
        loop {
            if dim == 0 {
                self.leaf += 1;
                break;
            }
            dim -= 1;
            self.taps[dim] += 1;
            if self.taps[dim] < taps[dim] {
                break;
            }
            self.taps[dim] = 0;
        }
        self.look(patches, tile);
    }

    /// Finds the run's elements.
    #[inline(always)]
    fn look(&mut self, patches: &Patches<'_>, tile: &TileRows) {
        let axes = &patches.phase.axes;
        let moved: [isize; MAX_SPACE] =
            std::array::from_fn(|dim| self.taps[dim] as isize * axes[dim].tap_step);
        let mut offset = 0;
        for dim in 0..MAX_SPACE {
            offset = offset * axes[dim].extent as isize + moved[dim];
        }
        let offset = offset * patches.channels as isize + (self.leaf * patches.leaf) as isize;
        let last = MAX_SPACE - 1;
        let looked = if patches.merged { last } else { MAX_SPACE };
        let mut whole = true;
        for row in 0..LINE {
            self.start[row] = tile.start[row] + offset;
            let mut is_inside = true;
            for dim in 0..looked {
                is_inside &= ((tile.place[dim][row] + moved[dim]) as usize) < axes[dim].extent;
            }
            let (first, end) = match patches.merged {
                true => {
                    let (at, extent) = (tile.place[last][row], axes[last].extent as isize);
                    let most = axes[last].taps as isize;
                    ((-at).clamp(0, most) as usize, (extent - at).clamp(0, most) as usize)
                }
                false => (0, 1),
            };
            let inside = [first, if is_inside { end } else { 0 }];
            let unit = patches.leaf;
            self.inside[0][row] = inside[0] * unit;
            self.inside[1][row] = inside[1] * unit;
            whole &= row >= tile.rows || (inside[0] == 0 && inside[1] * unit == patches.run());
        }
        self.whole = whole;
    }
}

dispatch! {
    /// Packs one piece of a tile, which consists of whole leaves or of a part of one.
    fn pack_piece(
        packed: &mut [f32],
        patches: &Patches<'_>,
        tile: &TileRows,
        steps: Range<usize>,
        kernels: &MicroKernels,
    ) {
        if steps.is_empty() {
            return;
        }
        let (packing, length) = (kernels.packing, patches.run());
        let words = packing.words(steps.len());
        let mut run = Run::new(patches, tile, steps.start / length);
        let mut at = steps.start % length;
        let mut left = steps.len();
        let mut lines: Lines = [[0.0; LINE_STEPS]; LINE];
        for word in (0..words).step_by(LINE) {
            let wanted = (LINE * packing.steps()).min(left);
            left -= wanted;
            let columns = (words - word).min(LINE);
            let to = packed[word * tile.rows..].as_mut_ptr();
            let direct = packing == Packing::Single && run.whole && at + wanted <= length;
            if let (true, Some(step)) = (direct, tile.step) {
                let source = patches.x[(run.start[0] + at as isize) as usize..].as_ptr();
                let block = TransposedBlock {
                    rows: tile.rows, columns, source, source_row: step, packed: to, packed_row: tile.rows,
                };
                // SAFETY: all elements of the run lie inside the tensor for every row; the words of the piece lie inside
                // `packed`, with a line to spare; the kernels are of an available instruction set.
                unsafe { (kernels.transpose)(&block) };
                at += wanted;
            } else {
                let mut filled = 0;
                while filled < wanted {
                    let count = (length - at).min(wanted - filled);
                    copy_run(&mut lines, patches.x, &run, tile.rows, [at, filled, count]);
                    filled += count;
                    at += count;
                    if at == length && (filled < wanted || left > 0) {
                        at = 0;
                        run.advance(patches, tile);
                    }
                }
                store_lines(&lines, tile.rows, wanted, to, [tile.rows, columns], kernels);
            }
            if at == length && left > 0 {
                at = 0;
                run.advance(patches, tile);
            }
        }
    }
}

/// Copies `count` elements of a run from `at` on to the lines, from `to` on; zeros where they lie outside.
#[inline(always)]
fn copy_run(lines: &mut Lines, x: &[f32], run: &Run, rows: usize, [at, to, count]: [usize; 3]) {
    for row in 0..rows {
        let line = &mut lines[row][to..to + count];
        let [first, end] = [run.inside[0][row], run.inside[1][row]];
        if first <= at && at + count <= end {
            let from = &x[(run.start[row] + at as isize) as usize..][..count];
            copy(line, from);
        } else {
            for (step, element) in (at..at + count).zip(line) {
                let inside = first <= step && step < end;
                *element = if inside { x[(run.start[row] + step as isize) as usize] } else { 0.0 };
            }
        }
    }
}

/// Copies a few elements without a call.
#[inline(always)]
pub(super) fn copy(to: &mut [f32], from: &[f32]) {
    if let (Ok(to), Ok(from)) = (<&mut [f32; LINE]>::try_from(&mut *to), <&[f32; LINE]>::try_from(from)) {
        *to = *from;
    } else if let (Ok(to), Ok(from)) = (<&mut [f32; 8]>::try_from(&mut *to), <&[f32; 8]>::try_from(from)) {
        *to = *from;
    } else {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// Stores `steps` of each of `rows` lines as words, word by word: `[distance of words, how many]`.
#[inline(always)]
pub(super) fn store_lines(
    lines: &Lines,
    rows: usize,
    steps: usize,
    packed: *mut f32,
    [packed_row, columns]: [usize; 2],
    kernels: &MicroKernels,
) {
    let mut rounded = [[0.0; LINE]; LINE];
    let (source, source_row) = match kernels.packing {
        Packing::Single => (lines.as_ptr().cast::<f32>(), LINE_STEPS),
        packing => {
            for (rounded, line) in rounded.iter_mut().zip(lines).take(rows) {
                *rounded = packing.words_of(&line[..steps]);
            }
            (rounded.as_ptr().cast::<f32>(), LINE)
        }
    };
    let block = TransposedBlock { rows, columns, source, source_row, packed, packed_row };
    // SAFETY: the lines are whole; callers hand in room for a line at each word; the kernels are of an available
    // instruction set.
    unsafe { (kernels.transpose)(&block) };
}
