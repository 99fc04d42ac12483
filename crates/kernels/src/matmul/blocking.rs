//! How a member's share of a product is cut into blocks that fit the caches, and how much scratch that takes.
//!
//! Names: the summed axis is cut into *blocks*, each a part of a leaf or some whole leaves that are a subtree of the sum.
//! A packed operand consists of *words* of 32 bits: one step, or a pair of them. The output is cut into *tiles* (one micro
//! kernel call); tiles below each other form a *panel*, tiles of all columns in some rows a *group*, whose left
//! operand stays in the second-level cache. Nothing here changes a bit of the result.

use std::ops::Range;

use super::MatmulParams;
use super::micro::{LINE, MAX_LEAVES, MicroKernels};
use super::pack::Packing;

/// The most words of one block, for each row or column. A panel of the right operand then leaves the first-level cache,
/// which costs less than storing and loading partial tiles more often.
const MAX_BLOCK: usize = 768;
/// Words of the right operand that are kept packed.
const RIGHT_WORDS: usize = 2 << 20;
/// Words of the left operand in one group: a quarter of the second-level cache.
const LEFT_WORDS: usize = 128 << 10;
/// Elements of partial tiles that wait in scratch for the next block; rows beyond them come later.
const SLOT_ELEMENTS: usize = 8 << 20;

/// The cuts of a share.
#[derive(Clone, Copy)]
pub(crate) struct Blocking {
    packing: Packing,
    /// Steps of the summed axis in one leaf.
    leaf: usize,
    /// Leaves in one block; one if a leaf is longer than a block.
    leaves: usize,
    /// Steps of a leaf in one block.
    part: usize,
    /// How many blocks one leaf has; one if a block has several leaves.
    pub parts: usize,
    /// How many subtrees of the sum are computed in one go: blocks, or leaves of several blocks.
    pub subtrees: usize,
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
        let packing = kernels.packing;
        let leaf = params.k / params.leaves;
        let words = packing.words(leaf).max(1);
        let part = leaf.div_ceil(words.div_ceil(MAX_BLOCK)).next_multiple_of(packing.multiple()).min(leaf);
        let leaves = params.leaves.min((MAX_BLOCK / words).max(1)).min(MAX_LEAVES);
        let leaves = 1 << leaves.ilog2();
        let mut blocking = Blocking {
            packing,
            leaf,
            leaves,
            part,
            parts: leaf.div_ceil(part.max(1)).max(1),
            subtrees: params.leaves / leaves,
            tile_rows: kernels.rows,
            tile_columns: kernels.columns,
            rows,
            columns,
            group_tiles: 1,
        };
        let block = blocking.words();
        blocking.columns = columns.min(RIGHT_WORDS / block).next_multiple_of(kernels.columns);
        blocking.group_tiles = (LEFT_WORDS / block / kernels.rows).max(1).min(rows.div_ceil(kernels.rows));
        if blocking.blocks() > 1 {
            let panels = blocking.columns / kernels.columns;
            let tiles = SLOT_ELEMENTS / (blocking.slots() * blocking.tile() * panels);
            blocking.rows = rows.min(tiles.max(1) * kernels.rows);
        }
        blocking
    }

    /// How many blocks the whole summed axis has.
    pub fn blocks(&self) -> usize {
        self.parts * self.subtrees
    }

    /// The steps of block `index`.
    pub fn block(&self, index: usize) -> Block {
        let (subtree, part) = (index / self.parts, index % self.parts);
        let first = subtree * self.leaves * self.leaf + part * self.part;
        let leaf = (self.leaf - part * self.part).min(self.part);
        Block { packing: self.packing, first, leaf, leaves: self.leaves }
    }

    /// The most packed words of a block for each row or column.
    fn words(&self) -> usize {
        (self.leaves * self.packing.words(self.part)).max(1)
    }

    /// Elements of a full tile.
    pub fn tile(&self) -> usize {
        self.tile_rows * self.tile_columns
    }

    /// How many slots an output tile has: one for the chain itself and one per level of the tree over subtrees.
    fn slots(&self) -> usize {
        1 + self.subtrees.ilog2() as usize
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
            right: self.columns * self.words(),
            slots: self.slots() * self.slot_tiles() * self.tile(),
            left: (self.group_tiles * self.tile_rows * self.words()).next_multiple_of(LINE) + LINE,
        }
    }
}

/// One block of the summed axis: whole leaves, or a part of one.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    packing: Packing,
    /// The first step.
    pub first: usize,
    /// Steps of each leaf.
    leaf: usize,
    /// How many leaves.
    pub leaves: usize,
}

impl Block {
    /// How many steps.
    pub fn len(&self) -> usize {
        self.leaves * self.leaf
    }

    /// Packed words of each leaf, for each row or column.
    pub fn depth(&self) -> usize {
        self.packing.words(self.leaf)
    }

    /// Packed words of all leaves.
    pub fn words(&self) -> usize {
        self.leaves * self.depth()
    }

    /// The pieces that are packed one after the other, each a range of steps and one of words: leaves, or all of them
    /// together where they need no padding.
    pub fn pieces(self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let together = self.leaf.is_multiple_of(self.packing.multiple());
        let (count, steps) = if together { (1, self.len()) } else { (self.leaves, self.leaf) };
        let words = self.packing.words(steps);
        (0..count).map(move |piece| {
            let first = self.first + piece * steps;
            (first..first + steps, piece * words..(piece + 1) * words)
        })
    }
}

/// Elements of the parts of one member's scratch.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
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
