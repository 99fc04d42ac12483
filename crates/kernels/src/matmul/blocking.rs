//! How a member's share of a product is cut into blocks that fit the caches, and how much scratch that takes.
//!
//! Names: the summed axis is cut into *blocks* that never cross a leaf. The output is cut into *tiles* (one micro
//! kernel call); tiles below each other form a *panel*, tiles of all columns in some rows a *group*, whose left
//! operand stays in the second-level cache. Nothing here changes a bit of the result.

use std::ops::Range;

use super::MatmulParams;
use super::micro::{LINE, MicroKernels};

/// The most steps of one block. A panel of the right operand then leaves the first-level cache, which costs less than
/// storing and loading partial tiles more often.
const MAX_BLOCK: usize = 768;
/// Elements of the right operand that are kept packed.
const RIGHT_ELEMENTS: usize = 2 << 20;
/// Elements of the left operand in one group: a quarter of the second-level cache.
const LEFT_ELEMENTS: usize = 128 << 10;
/// Elements of partial tiles that wait in scratch for the next block; rows beyond them come later.
const SLOT_ELEMENTS: usize = 8 << 20;

/// The cuts of a share.
#[derive(Clone, Copy)]
pub(super) struct Blocking {
    /// Steps of the summed axis in one leaf.
    leaf: usize,
    /// How many leaves.
    pub leaves: usize,
    /// Steps in one block.
    block: usize,
    /// How many blocks one leaf has.
    pub blocks_per_leaf: usize,
    /// Rows of a full tile.
    pub tile_rows: usize,
    /// Columns of a tile.
    pub tile_columns: usize,
    /// Rows that go through all blocks before the next rows start.
    pub rows: usize,
    /// Columns whose right operand is packed at once.
    pub columns: usize,
    /// The most tiles of one panel in one group.
    pub group_tiles: usize,
}

impl Blocking {
    /// Cuts `rows x columns` of a product of `params`.
    pub fn new(params: &MatmulParams, kernels: &MicroKernels, rows: usize, columns: usize) -> Blocking {
        let leaf = params.k / params.leaves;
        let blocks_per_leaf = leaf.div_ceil(MAX_BLOCK).max(1);
        let block = leaf.div_ceil(blocks_per_leaf).max(1);
        let columns = columns.min(RIGHT_ELEMENTS / block).next_multiple_of(kernels.columns);
        let mut blocking = Blocking {
            leaf,
            leaves: params.leaves,
            block,
            blocks_per_leaf,
            tile_rows: kernels.rows,
            tile_columns: kernels.columns,
            rows,
            columns,
            group_tiles: (LEFT_ELEMENTS / block / kernels.rows).max(1).min(rows.div_ceil(kernels.rows)),
        };
        if blocking.blocks() > 1 {
            let tiles = SLOT_ELEMENTS / (blocking.slots() * blocking.tile() * columns / kernels.columns);
            blocking.rows = rows.min(tiles.max(1) * kernels.rows);
        }
        blocking
    }

    /// How many blocks the whole summed axis has.
    pub fn blocks(&self) -> usize {
        self.blocks_per_leaf * self.leaves
    }

    /// The steps of block `index`.
    pub fn steps(&self, index: usize) -> Range<usize> {
        let (leaf, part) = (index / self.blocks_per_leaf, index % self.blocks_per_leaf);
        let start = leaf * self.leaf;
        start + part * self.block..start + self.leaf.min((part + 1) * self.block)
    }

    /// Elements of a full tile.
    pub fn tile(&self) -> usize {
        self.tile_rows * self.tile_columns
    }

    /// How many slots an output tile has: one for the chain itself and one per level of the tree.
    fn slots(&self) -> usize {
        1 + self.leaves.ilog2() as usize
    }

    /// Tiles that wait in scratch, in every slot; with a single block no tile waits and all use the same slot.
    pub fn slot_tiles(&self) -> usize {
        match self.blocks() {
            1 => 1,
            _ => self.panel_tiles() * (self.columns / self.tile_columns),
        }
    }

    /// Tiles in a panel of all rows that go together.
    pub fn panel_tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows)
    }

    /// How large the parts of scratch are.
    pub fn layout(&self) -> Layout {
        Layout {
            right: self.columns * self.block,
            slots: self.slots() * self.slot_tiles() * self.tile(),
            left: (self.group_tiles * self.tile_rows * self.block).next_multiple_of(LINE) + LINE,
        }
    }
}

/// Elements of the parts of one member's scratch.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// For the packed right operand.
    pub right: usize,
    /// For partial tiles.
    pub slots: usize,
    /// For the packed left operand of one group, with a line to spare.
    pub left: usize,
}

impl Layout {
    /// Elements of all parts.
    pub fn total(&self) -> usize {
        self.right + self.slots + self.left
    }
}
