//! One panel of one group: the micro kernel calls of its tiles for one block of the summed axis.
//!
//! A partial tile lies in *slots*: slot 0 holds the chain of the current leaf between two blocks, slot `1 + level`
//! the sum of `2^level` finished subtrees. A finished subtree first takes in those that it completes, older in front,
//! like the carries of a binary counter.

use std::ops::Range;
use std::ptr;

use super::blocking::{Block, Blocking};
use super::epilogue::{Epilogue, Place};
use super::feed::Feed;
use super::micro::{Fetch, LINE, MAX_FETCHES, MAX_TILE, MicroKernel, Tile};

/// What later packing reads is fetched from: the right operand of the next panel, the left one of the next group.
const FEEDS: usize = 2;
/// Slots of the tile below that are fetched; deeper levels of the tree are rarely read.
const SLOT_FETCHES: usize = 3;

/// Where the elements of a product's result lie.
#[derive(Clone, Copy)]
pub(crate) enum Placement<'a> {
    /// Rows of adjacent elements, `step` apart.
    Rows {
        /// The first element.
        first: usize,
        /// From a row to the next.
        step: usize,
    },
    /// Where something else says.
    Anywhere(&'a dyn Scatter),
}

/// Takes finished tiles to places that are not rows of adjacent elements at equal distances.
pub(crate) trait Scatter: Sync {
    /// Does to the sums of `rows x columns`, packed as rows of `width`, what `epilogue` says, and writes them.
    ///
    /// # Safety
    /// No other thread may use the places of these elements meanwhile.
    unsafe fn finish(
        &self,
        epilogue: &Epilogue<'_>,
        sums: &mut [f32],
        width: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    );
}

/// An even cut of rows into tiles that differ by at most one row.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    first: usize,
    short: usize,
    tall: usize,
    /// How many tiles.
    pub tiles: usize,
}

impl Cut {
    /// Cuts `rows` into tiles of at most `tile_rows`.
    pub fn new(rows: &Range<usize>, tile_rows: usize) -> Cut {
        let tiles = rows.len().div_ceil(tile_rows);
        Cut { first: rows.start, short: rows.len() / tiles, tall: rows.len() % tiles, tiles }
    }

    /// The first row of `tile`; of the tile after the last, the end of the rows.
    pub fn start(&self, tile: usize) -> usize {
        self.first + tile * self.short + tile.min(self.tall)
    }

    /// The rows of `tile`.
    pub fn rows(&self, tile: usize) -> Range<usize> {
        self.start(tile)..self.start(tile + 1)
    }
}

/// The packed left operand of some tiles below each other: tile after tile, as the micro kernels want it.
pub(crate) struct Group {
    /// Its tiles.
    pub tiles: Range<usize>,
    /// How the rows are cut into tiles.
    pub cut: Cut,
    /// The operand.
    pub left: *const f32,
    /// The block of the summed axis.
    pub block: Block,
}

impl Group {
    /// Where the left operand of the tile that starts with `row` lies.
    pub fn left_at(&self, row: usize) -> usize {
        (row - self.cut.start(self.tiles.start)) * self.block.words()
    }
}

/// What one block of the summed axis does to a tile.
pub(super) struct Step {
    /// Whether the block continues a chain.
    continues: bool,
    /// How many sums of finished subtrees it completes.
    merges: usize,
    /// The slot that takes the sum, unless the sum is complete.
    slot: usize,
    /// Whether the sum is complete.
    completes: bool,
}

impl Step {
    /// What block `block` does.
    pub fn new(blocking: &Blocking, block: usize) -> Step {
        let (subtree, part) = (block / blocking.parts, block % blocking.parts);
        let ends = part + 1 == blocking.parts;
        let merges = if ends { subtree.trailing_ones() as usize } else { 0 };
        let completes = ends && subtree + 1 == blocking.subtrees;
        let slot = if ends && !completes { 1 + merges } else { 0 };
        Step { continues: part > 0, merges, slot, completes }
    }
}

/// One block of one panel: right operand, partial tiles and output.
pub(super) struct Panel<'a> {
    /// Columns of a tile.
    pub width: usize,
    /// The micro kernel for each number of rows.
    pub kernels: &'static [MicroKernel],
    /// What the block does to a tile.
    pub step: Step,
    /// The packed right operand.
    pub right: *const f32,
    /// The first slot of the group's first tile.
    pub slots: *mut f32,
    /// Elements from a tile's first slot to that of the tile below.
    pub slots_step: usize,
    /// Elements from one slot of a tile to the next.
    pub level_step: usize,
    /// What happens to finished tiles.
    pub epilogue: &'a Epilogue<'a>,
    /// Where the results of this product go.
    pub place: Placement<'a>,
    /// Which element of the bias belongs to the product's first column.
    pub bias_at: usize,
    /// The panel's columns.
    pub columns: Range<usize>,
}

impl Panel<'_> {
    /// Computes the tiles of `group` in this panel and meanwhile fetches from `feeds`.
    ///
    /// # Safety
    /// The operands must be packed as the group and the panel say, the kernels must be of an available instruction
    /// set, and no other thread may use the slots or the output of these tiles.
    pub unsafe fn run(&self, group: &Group, mut feeds: [&mut Feed; FEEDS]) {
        let in_rows = matches!(self.place, Placement::Rows { .. });
        let full = self.columns.len() == self.width;
        let simple = self.step.completes && in_rows && self.epilogue.is_simple() && full;
        let mut work = self.first(group, simple);
        for tile in group.tiles.clone() {
            let rows = group.cut.rows(tile);
            work.fetches[..FEEDS].iter_mut().zip(&mut feeds).for_each(|(fetch, feed)| *fetch = feed.next());
            // SAFETY: the operands and the slots are laid out for the kernel of this many rows, `out` is a whole tile.
            unsafe { self.kernels[rows.len() - 1](&work) };
            if self.step.completes && !simple {
                // SAFETY: the micro kernel has just written these elements of the tile's own slot.
                let sums = unsafe { std::slice::from_raw_parts_mut(work.out, rows.len() * self.width) };
                if work.bias.is_null() {
                    self.epilogue.add_bias(sums, self.width, &self.bias_columns());
                }
                // SAFETY: the place belongs to this tile alone.
                unsafe { self.finish(sums, &rows) };
            }
            self.advance(&mut work, rows.len(), simple);
        }
    }

    /// The micro kernel call for the group's first tile, which goes to its slot, or to the output if `simple`.
    fn first(&self, group: &Group, simple: bool) -> Tile {
        let slots = self.slots;
        let place = self.rows_place(&group.cut.rows(group.tiles.start));
        let mut work = Tile {
            leaves: group.block.leaves,
            depth: group.block.depth(),
            a: group.left,
            b: self.right,
            fetches: [Fetch::NOTHING; MAX_FETCHES],
            start: if self.step.continues { slots } else { ptr::null() },
            older: slots.wrapping_add(self.level_step),
            older_step: self.level_step,
            merges: self.step.merges,
            bias: ptr::null(),
            out: slots.wrapping_add(self.step.slot * self.level_step),
            out_row: self.width,
            addend: ptr::null(),
        };
        if self.step.completes && self.columns.len() == self.width {
            let bias = self.epilogue.bias;
            work.bias = bias.map_or(ptr::null(), |bias| bias[self.bias_columns()].as_ptr());
        }
        if simple {
            work.addend = self.epilogue.addend(place.at);
            work.out = self.epilogue.out.as_mut_ptr().wrapping_add(place.at);
            work.out_row = place.row_step;
        }
        self.plan_fetches(&mut work, place);
        work
    }

    /// Fetches the slots that the tile below will read, and what this tile will write.
    fn plan_fetches(&self, work: &mut Tile, place: Place) {
        let slot = |slots: *const f32, slot: usize| Fetch {
            at: slots.wrapping_add(slot * self.level_step),
            step: 2 * LINE,
            pairs: MAX_TILE / (2 * LINE),
        };
        let below = self.slots.wrapping_add(self.slots_step);
        let read = usize::from(!self.step.continues)..1 + self.step.merges;
        let (slots, places) = work.fetches[FEEDS..].split_at_mut(SLOT_FETCHES);
        for (fetch, index) in slots.iter_mut().zip(read) {
            *fetch = slot(below, index);
        }
        if self.step.completes && place.row_step > 0 {
            for (fetch, at) in places.iter_mut().zip(self.epilogue.places(place.at)) {
                *fetch = Fetch { at, step: place.row_step, pairs: place.rows };
            }
        } else if !self.step.completes {
            places[0] = slot(self.slots, self.step.slot);
        }
    }

    /// Moves on from a tile of `rows` to the tile below.
    fn advance(&self, work: &mut Tile, rows: usize, simple: bool) {
        let in_output = rows * self.row_step();
        let written = if self.step.completes { in_output } else { self.slots_step };
        work.a = work.a.wrapping_add(rows * work.leaves * work.depth);
        if !work.start.is_null() {
            work.start = work.start.wrapping_add(self.slots_step);
        }
        work.older = work.older.wrapping_add(self.slots_step);
        work.out = work.out.wrapping_add(if simple { in_output } else { self.slots_step });
        if !work.addend.is_null() {
            work.addend = work.addend.wrapping_add(in_output);
        }
        let (slots, places) = work.fetches[FEEDS..].split_at_mut(SLOT_FETCHES);
        slots.iter_mut().for_each(|fetch| fetch.at = fetch.at.wrapping_add(self.slots_step));
        places.iter_mut().for_each(|fetch| fetch.at = fetch.at.wrapping_add(written));
    }

    /// The elements of the bias that belong to the panel's columns.
    fn bias_columns(&self) -> Range<usize> {
        self.bias_at + self.columns.start..self.bias_at + self.columns.end
    }

    /// Distance between rows of the output; zero if they lie anywhere.
    fn row_step(&self) -> usize {
        match self.place {
            Placement::Rows { step, .. } => step,
            Placement::Anywhere(_) => 0,
        }
    }

    /// Where `rows` of this panel lie in the output, if that is row by row.
    fn rows_place(&self, rows: &Range<usize>) -> Place {
        let (rows_len, columns, row_step) = (rows.len(), self.columns.len(), self.row_step());
        let at = match self.place {
            Placement::Rows { first, step } => first + rows.start * step + self.columns.start,
            Placement::Anywhere(_) => 0,
        };
        Place { at, row_step, rows: rows_len, columns }
    }

    /// Does to the sums of `rows` what follows, and writes them.
    ///
    /// # Safety
    /// As for [`Epilogue::finish`].
    unsafe fn finish(&self, sums: &mut [f32], rows: &Range<usize>) {
        match self.place {
            // SAFETY: by the contract of this function.
            Placement::Rows { .. } => unsafe {
                self.epilogue.finish(sums, self.width, self.rows_place(rows));
            },
            // SAFETY: by the contract of this function.
            Placement::Anywhere(scatter) => unsafe {
                scatter.finish(self.epilogue, sums, self.width, rows.clone(), self.columns.clone());
            },
        }
    }
}
