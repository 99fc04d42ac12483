//! What the loops ask of an operand, wherever its elements come from: a stored matrix, or what a convolution makes of a
//! tensor.

use std::ops::Range;

use super::blocking::Block;
use super::feed::Region;
use super::micro::MicroKernels;
use super::pack::{Matrix, pack_panel, pack_tiles};
use super::panel::Group;

/// The left operand of a product: rows of steps.
pub(crate) trait LeftOperand: Sync {
    /// Packs the rows of `group`: per tile, its rows word by word. Writes up to a line more than the packed words.
    fn pack(&self, packed: &mut [f32], group: &Group, kernels: &MicroKernels);

    /// The memory that packing these rows for a block reads.
    fn region(&self, _rows: Range<usize>, _block: &Block) -> Region {
        Region::NOTHING
    }
}

/// The right operand of a product: steps of columns.
pub(crate) trait RightOperand: Sync {
    /// Packs the steps of `block` of some columns as rows of `kernels.columns` words, padded with zeros.
    fn pack(&self, packed: &mut [f32], block: Block, columns: Range<usize>, kernels: &MicroKernels);

    /// The memory that packing these columns for a block reads.
    fn region(&self, _columns: Range<usize>, _block: &Block) -> Region {
        Region::NOTHING
    }
}

impl LeftOperand for Matrix<'_> {
    fn pack(&self, packed: &mut [f32], group: &Group, kernels: &MicroKernels) {
        pack_tiles(packed, *self, group, kernels);
    }

    fn region(&self, rows: Range<usize>, block: &Block) -> Region {
        let start = self.element(rows.start, block.first);
        match self.column_step {
            1 => Region::by_rows(start, rows.len(), block.len(), self.row_step),
            step => Region::by_rows(start, block.len(), rows.len(), step),
        }
    }
}

impl RightOperand for Matrix<'_> {
    fn pack(&self, packed: &mut [f32], block: Block, columns: Range<usize>, kernels: &MicroKernels) {
        pack_panel(packed, *self, block, columns, kernels);
    }

    fn region(&self, columns: Range<usize>, block: &Block) -> Region {
        let start = self.element(block.first, columns.start);
        match self.column_step {
            1 => Region::by_columns(start, block.len(), columns.len(), self.row_step),
            step => Region::by_rows(start, columns.len(), block.len(), step),
        }
    }
}
