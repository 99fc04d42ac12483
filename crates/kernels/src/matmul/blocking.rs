//! How a product is cut into blocks that fit the caches, and where each block's scratch lies.
//!
//! Names: the summed axis is cut into *blocks* that never cross a leaf; consecutive blocks form a *window*. The
//! output is cut into *tiles* (one micro kernel call), tiles side by side form a *panel* (all rows, one tile wide),
//! tiles below each other form a *group* whose left operand stays in the second-level cache. Nothing here changes
//! a bit of the result.

use std::ops::Range;

use super::MatmulParams;
use super::micro::{LEFT_ROW, LINE, MAX_BLOCK, MAX_TILE, MicroKernels};

/// The most steps of the summed axis in one window.
const MAX_WINDOW: usize = 2048;
/// Elements of the right operand that are packed at once, unless one window of [`MIN_COLUMNS`] is larger.
const RIGHT_ELEMENTS: usize = 2 << 20;
/// The fewest columns packed at once.
const MIN_COLUMNS: usize = 256;
/// Elements of the left operand in one group: half of the second-level cache.
const LEFT_ELEMENTS: usize = 352 << 10;
/// Rows handled at once when there are several windows, because their partial sums wait in scratch.
const WINDOWED_ROWS: usize = 1024;

/// The cuts of one product on `members` cores.
#[derive(Clone, Copy)]
pub(super) struct Blocking {
    /// Steps of the summed axis in one leaf.
    pub leaf: usize,
    /// How many leaves.
    pub leaves: usize,
    /// Steps in one block.
    pub block: usize,
    /// How many blocks one leaf has.
    pub blocks_per_leaf: usize,
    /// How many blocks one window has.
    pub blocks_per_window: usize,
    /// Rows of a full tile.
    pub tile_rows: usize,
    /// Columns of a tile.
    pub tile_columns: usize,
    /// Rows handled between two packings of the right operand.
    pub rows: usize,
    /// Columns handled between two packings of the right operand.
    pub columns: usize,
    /// Tiles in one group.
    pub group_tiles: usize,
    /// How many cores share the work.
    pub members: usize,
}

impl Blocking {
    /// Cuts one product of `params` for `members` cores.
    pub fn new(params: &MatmulParams, kernels: &MicroKernels, members: usize) -> Blocking {
        let leaf = params.k / params.leaves;
        let blocks_per_leaf = leaf.div_ceil(MAX_BLOCK).max(1);
        let block = leaf.div_ceil(blocks_per_leaf).max(1);
        let blocks = blocks_per_leaf * params.leaves;
        let blocks_per_window = blocks.min((MAX_WINDOW / block).max(1));
        let window = blocks_per_window * block;
        let one_window = blocks_per_window == blocks;
        let columns = (RIGHT_ELEMENTS / window).max(MIN_COLUMNS).next_multiple_of(kernels.columns);
        Blocking {
            leaf,
            leaves: params.leaves,
            block,
            blocks_per_leaf,
            blocks_per_window,
            tile_rows: kernels.rows,
            tile_columns: kernels.columns,
            rows: if one_window { params.m } else { params.m.min(WINDOWED_ROWS) },
            columns: columns.min(params.n.next_multiple_of(kernels.columns)),
            group_tiles: (LEFT_ELEMENTS / (blocks_per_window * LEFT_ROW) / kernels.rows).max(1).min(params.m.div_ceil(kernels.rows)),
            members,
        }
    }

    /// How many blocks the whole summed axis has.
    pub fn blocks(&self) -> usize {
        self.blocks_per_leaf * self.leaves
    }

    /// Whether the whole summed axis is one window.
    pub fn is_one_window(&self) -> bool {
        self.blocks() == self.blocks_per_window
    }

    /// The steps of block `index`.
    pub fn steps(&self, index: usize) -> Range<usize> {
        let (leaf, part) = (index / self.blocks_per_leaf, index % self.blocks_per_leaf);
        let start = leaf * self.leaf;
        start + part * self.block..start + self.leaf.min((part + 1) * self.block)
    }

    /// The blocks of the window that starts with block `first`.
    pub fn window(&self, first: usize) -> Range<usize> {
        first..self.blocks().min(first + self.blocks_per_window)
    }

    /// The most steps of one window.
    fn window_steps(&self) -> usize {
        self.blocks_per_window * self.block
    }

    /// Tiles kept per output tile: the chain itself and one per level of the tree.
    pub fn slots(&self) -> usize {
        1 + self.leaves.ilog2() as usize
    }

    /// Where the parts of scratch lie.
    pub fn layout(&self) -> Layout {
        let right = self.columns * self.window_steps();
        let left = self.group_tiles * self.tile_rows * self.blocks_per_window * LEFT_ROW + LINE;
        let tiles = if self.is_one_window() {
            self.group_tiles
        } else {
            self.rows.div_ceil(self.tile_rows) * (self.columns / self.tile_columns)
        };
        let owners = if self.is_one_window() { self.members } else { 1 };
        let partials = tiles * self.slots() * MAX_TILE;
        let partials_at = right.next_multiple_of(16);
        let left_at = partials_at + owners * partials;
        let left = left.next_multiple_of(16);
        Layout { partials_at, partials, left_at, left, total: left_at + self.members * left }
    }
}

/// Element offsets into scratch: the packed right operand, then partial tiles, then each member's left operand.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Where partial tiles start.
    pub partials_at: usize,
    /// Elements of partial tiles: per member with one window, else of all together.
    pub partials: usize,
    /// Where the members' packed left operands start.
    pub left_at: usize,
    /// Elements of one member's packed left operand.
    pub left: usize,
    /// Elements of all.
    pub total: usize,
}
