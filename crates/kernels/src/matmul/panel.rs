//! One panel of one group: the micro kernel calls of its tiles, block after block of the summed axis.
//!
//! A partial tile lies in *slots*: slot 0 holds the chain of the current leaf between two blocks, slot `1 + level`
//! a finished subtree of `2^level` leaves. A finished leaf first takes in the subtrees it completes, older in front,
//! like the carries of a binary counter.

use std::ops::Range;
use std::ptr;

use super::blocking::Blocking;
use super::epilogue::{Epilogue, Place};
use super::micro::{CHUNK, LEFT_ROW, MAX_TILE, MicroKernel, Tile};

/// An even cut of rows into tiles that differ by at most one row.
#[derive(Clone, Copy)]
pub(super) struct Cut {
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

/// The packed left operand of some tiles below each other, over one window.
///
/// Block after block of the window; in a block tile after tile, as the micro kernels want it.
pub(super) struct Group {
    /// Its tiles.
    pub tiles: Range<usize>,
    /// How the rows are cut into tiles.
    pub cut: Cut,
    /// The operand.
    pub left: *const f32,
    /// Whether steps are adjacent (see [`Tile::a`]).
    pub adjacent_steps: bool,
    /// The steps of the window.
    pub steps: Range<usize>,
}

impl Group {
    /// Its first row.
    pub fn first(&self) -> usize {
        self.cut.start(self.tiles.start)
    }

    /// Where the left operand of `row`'s tile over `steps` lies, in the `index`-th block of the window.
    pub fn left_at(&self, row: usize, index: usize, steps: &Range<usize>) -> usize {
        let rows = self.cut.start(self.tiles.end) - self.first();
        let row = row - self.first();
        match self.adjacent_steps {
            true => (index * rows + row) * LEFT_ROW,
            false => (steps.start - self.steps.start) * rows + row * steps.len(),
        }
    }
}

/// The right operand, partial tiles and output of one panel.
pub(super) struct Panel<'a> {
    /// The cuts.
    pub blocking: &'a Blocking,
    /// The micro kernel for each number of rows.
    pub kernels: &'static [MicroKernel],
    /// The blocks of the window.
    pub blocks: Range<usize>,
    /// The right operand.
    pub right: *const f32,
    /// Distance between its rows.
    pub right_row: usize,
    /// The slots of the group's first tile.
    pub partials: *mut f32,
    /// Elements from one tile's slots to those of the tile below.
    pub partials_step: usize,
    /// What happens to finished tiles.
    pub epilogue: &'a Epilogue<'a>,
    /// Where the output of this product starts.
    pub out_at: usize,
    /// Columns of the output.
    pub n: usize,
    /// The panel's columns.
    pub columns: Range<usize>,
}

/// What one block of the summed axis does to a tile.
struct Step {
    /// Its position in the window.
    index: usize,
    steps: Range<usize>,
    continues: bool,
    merges: usize,
    /// The slot that takes the sum, unless the sum is complete.
    slot: usize,
    completes: bool,
}

impl Panel<'_> {
    /// Computes the tiles of `group` in this panel.
    ///
    /// # Safety
    /// The operands must be packed as the group and the panel say, the kernels must be of an available instruction
    /// set, and nobody else may use the slots or the output of these tiles.
    pub unsafe fn run(&self, group: &Group) {
        for block in self.blocks.clone() {
            let step = self.step(block);
            for tile in group.tiles.clone() {
                // SAFETY: by the contract of this function.
                unsafe { self.run_tile(group, tile, &step) };
            }
        }
    }

    fn step(&self, block: usize) -> Step {
        let (leaf, part) = (block / self.blocking.blocks_per_leaf, block % self.blocking.blocks_per_leaf);
        let ends_leaf = part + 1 == self.blocking.blocks_per_leaf;
        let merges = if ends_leaf { leaf.trailing_ones() as usize } else { 0 };
        let completes = ends_leaf && leaf + 1 == self.blocking.leaves;
        Step {
            index: block - self.blocks.start,
            steps: self.blocking.steps(block),
            continues: part > 0,
            merges,
            slot: if ends_leaf && !completes { 1 + merges } else { 0 },
            completes,
        }
    }

    /// Adds one block to one tile.
    ///
    /// # Safety
    /// As for [`Panel::run`].
    unsafe fn run_tile(&self, group: &Group, tile: usize, step: &Step) {
        let width = self.blocking.tile_columns;
        let rows = group.cut.rows(tile);
        let slots = self.partials.wrapping_add((tile - group.tiles.start) * self.partials_step);
        let right = (step.steps.start - group.steps.start) * self.right_row;
        let (ahead, ahead_step) = self.ahead(group, tile, step);
        let mut work = Tile {
            depth: step.steps.len(),
            a: group.left.wrapping_add(group.left_at(rows.start, step.index, &step.steps)),
            b: self.right.wrapping_add(right),
            b_row: self.right_row,
            ahead: self.right.wrapping_add(right + ahead),
            ahead_step,
            start: if step.continues { slots } else { ptr::null() },
            older: slots.wrapping_add(MAX_TILE),
            older_step: MAX_TILE,
            merges: step.merges,
            bias: ptr::null(),
            out: slots.wrapping_add(step.slot * MAX_TILE),
            out_row: width,
            add: false,
        };
        let simple = step.completes && self.epilogue.is_simple() && self.columns.len() == width;
        if simple {
            let bias = self.epilogue.bias;
            work.bias = bias.map_or(ptr::null(), |bias| bias[self.columns.clone()].as_ptr());
            work.add = self.epilogue.accumulate;
            work.out = self.epilogue.out.as_mut_ptr().wrapping_add(self.place(&rows).at);
            work.out_row = self.n;
        }
        // SAFETY: `a`, `b` and the slots are laid out for the kernel of this many rows, `out` is a whole tile.
        unsafe { self.kernels[rows.len() - 1](&work) };
        if step.completes && !simple {
            // SAFETY: the micro kernel has just written these elements of the tile's own slot.
            let sums = unsafe { std::slice::from_raw_parts_mut(work.out, rows.len() * width) };
            // SAFETY: the place belongs to this tile alone.
            unsafe { self.epilogue.finish(sums, width, self.place(&rows)) };
        }
    }

    /// Which part of the next block's right operand to fetch during `tile`: the offset from this block's, and the
    /// advance per chunk.
    ///
    /// Packed panels follow each other, so what comes next is behind this block, or behind this panel.
    fn ahead(&self, group: &Group, tile: usize, step: &Step) -> (usize, usize) {
        let tiles = group.tiles.len();
        let size = step.steps.len() * self.right_row;
        (size + (tile - group.tiles.start) * size / tiles, (CHUNK * self.right_row).div_ceil(tiles))
    }

    /// Where `rows` of this panel lie in the output.
    fn place(&self, rows: &Range<usize>) -> Place {
        Place {
            at: self.out_at + rows.start * self.n + self.columns.start,
            row_step: self.n,
            column: self.columns.start,
            rows: rows.len(),
            columns: self.columns.len(),
        }
    }
}
