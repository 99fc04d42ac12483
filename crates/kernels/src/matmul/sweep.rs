//! The loops around the micro kernels: pack the right operand, then every member sweeps its share of the tiles.

use std::ops::Range;

use super::blocking::{Blocking, Layout};
use super::epilogue::Epilogue;
use super::micro::{MAX_TILE, MicroKernels};
use super::pack::{Matrix, pack_columns, pack_panels, pack_rows};
use super::panel::{Cut, Group, Panel};
use super::{MatmulParams, Operands, Outputs};
use crate::spmd::{Block, Parts};

/// Starts a body on all members that share a product.
type Launch<'a> = &'a dyn Fn(&(dyn Fn(Block) + Sync));

/// A batch of products with all that they read and write.
pub(super) struct Product<'a> {
    params: &'a MatmulParams,
    a: &'a [f32],
    b: &'a [f32],
    epilogue: Epilogue<'a>,
    kernels: &'static MicroKernels,
}

/// One product of the batch, with its scratch.
struct Sweep<'a> {
    product: &'a Product<'a>,
    blocking: &'a Blocking,
    layout: Layout,
    scratch: &'a Parts<'a, f32>,
    /// Where this product's scratch starts.
    base: usize,
    a: Matrix<'a>,
    b: Matrix<'a>,
    /// Where this product's output starts.
    out_at: usize,
}

/// What is swept between two packings of the right operand.
#[derive(Clone)]
struct Window {
    rows: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    steps: Range<usize>,
}

impl<'a> Product<'a> {
    pub fn new(
        outputs: Outputs<'a>,
        operands: Operands<'a>,
        params: &'a MatmulParams,
        kernels: &'static MicroKernels,
    ) -> Self {
        let &MatmulParams { batch, m, n, k, .. } = params;
        assert!(params.leaves.is_power_of_two() && k.is_multiple_of(params.leaves), "leaves cut k evenly");
        assert_eq!(operands.a.len(), batch * m * k, "the left operand has its shape");
        assert_eq!(operands.b.len(), batch * k * n, "the right operand has its shape");
        assert_eq!(outputs.out.len(), batch * m * n, "the output has its shape");
        assert!(operands.bias.is_none_or(|bias| bias.len() == n), "the bias has its shape");
        let epilogue = Epilogue {
            bias: operands.bias,
            pre: outputs.pre.map(Parts::new),
            activation: params.activation,
            residual: operands.residual,
            accumulate: params.accumulate,
            out: Parts::new(outputs.out),
        };
        Product { params, a: operands.a, b: operands.b, epilogue, kernels }
    }

    /// Computes product `index` of the batch with scratch from element `base`, on the members that `launch` starts.
    pub fn run(
        &self,
        index: usize,
        blocking: &Blocking,
        scratch: &Parts<'_, f32>,
        base: usize,
        launch: Launch<'_>,
    ) {
        let &MatmulParams { m, n, k, trans_a, trans_b, .. } = self.params;
        let layout = blocking.layout();
        assert!(base + layout.total <= scratch.len(), "scratch has the size that was asked for");
        let sweep = Sweep {
            product: self,
            blocking,
            layout,
            scratch,
            base,
            a: Matrix::new(&self.a[index * m * k..][..m * k], m, k, trans_a),
            b: Matrix::new(&self.b[index * k * n..][..k * n], k, n, trans_b),
            out_at: index * m * n,
        };
        for column in (0..n).step_by(blocking.columns) {
            for row in (0..m).step_by(blocking.rows) {
                for first in (0..blocking.blocks()).step_by(blocking.blocks_per_window) {
                    let blocks = blocking.window(first);
                    let window = Window {
                        rows: row..m.min(row + blocking.rows),
                        columns: column..n.min(column + blocking.columns),
                        steps: blocking.steps(first).start..blocking.steps(blocks.end - 1).end,
                        blocks,
                    };
                    launch(&|block| sweep.pack_right(&window, block));
                    launch(&|block| sweep.run_window(&window, block));
                }
            }
        }
    }
}

impl Sweep<'_> {
    /// Packs this member's share of the window's right operand.
    fn pack_right(&self, window: &Window, block: Block) {
        let width = self.blocking.tile_columns;
        let size = window.steps.len() * width;
        let panels = block.share(window.columns.len().div_ceil(width));
        let column = |panel: usize| window.columns.end.min(window.columns.start + panel * width);
        let (start, end) = (self.base + panels.start * size, self.base + panels.end * size);
        // SAFETY: panels do not overlap and each belongs to one member.
        let packed = unsafe { self.scratch.part(start..end) };
        let columns = column(panels.start)..column(panels.end);
        pack_panels(packed, self.b, window.steps.clone(), columns, self.product.kernels);
    }

    /// Computes this member's share of the window: some rows, or some columns if there are few rows.
    fn run_window(&self, window: &Window, block: Block) {
        let cut = Cut::new(&window.rows, self.blocking.tile_rows);
        let panels = window.columns.len().div_ceil(self.blocking.tile_columns);
        let by_rows = cut.tiles >= panels || cut.tiles >= 8 * block.count;
        let (tiles, panels) = match by_rows {
            true => (block.share(cut.tiles), 0..panels),
            false => (0..cut.tiles, block.share(panels)),
        };
        if panels.is_empty() {
            return;
        }
        let groups = tiles.len().div_ceil(self.blocking.group_tiles);
        for group in 0..groups {
            let part = Block { index: group, count: groups }.share(tiles.len());
            let group = self.group(window, cut, tiles.start + part.start..tiles.start + part.end, block);
            for panel in panels.clone() {
                let panel = self.panel(window, &group, panel, block);
                // SAFETY: the launch before this one has packed the right operand, `group` the left one; tiles and
                // their slots belong to one member; the kernels are those of the current instruction set.
                unsafe { panel.run(&group) };
            }
        }
    }

    /// Packs the left operand of some tiles.
    fn group(&self, window: &Window, cut: Cut, tiles: Range<usize>, block: Block) -> Group {
        let start = self.base + self.layout.left_at + block.index * self.layout.left;
        // SAFETY: this part of scratch belongs to this member alone.
        let packed = unsafe { self.scratch.part(start..start + self.layout.left) };
        let adjacent_steps = !self.product.params.trans_a;
        let group = Group { tiles, cut, left: packed.as_ptr(), adjacent_steps, steps: window.steps.clone() };
        for (index, steps) in window.blocks.clone().map(|block| self.blocking.steps(block)).enumerate() {
            let packed = &mut packed[group.left_at(group.first(), index, &steps)..];
            match adjacent_steps {
                true => pack_rows(packed, self.a, group.first()..cut.start(group.tiles.end), steps),
                false => pack_columns(packed, self.a, &group, steps),
            }
        }
        group
    }

    /// One panel of the window, for the tiles of `group`.
    fn panel(&self, window: &Window, group: &Group, panel: usize, block: Block) -> Panel<'_> {
        let Blocking { columns, tile_columns: width, .. } = *self.blocking;
        let slots = self.blocking.slots() * MAX_TILE;
        let (partials, partials_step) = match self.blocking.is_one_window() {
            true => (block.index * self.layout.partials, slots),
            false => ((group.tiles.start * (columns / width) + panel) * slots, columns / width * slots),
        };
        let at = |offset: usize| self.scratch.as_mut_ptr().wrapping_add(self.base + offset);
        let column = window.columns.start + panel * width;
        Panel {
            blocking: self.blocking,
            kernels: match self.product.params.trans_a {
                false => self.product.kernels.by_row,
                true => self.product.kernels.by_column,
            },
            blocks: window.blocks.clone(),
            right: at(panel * window.steps.len() * width),
            right_row: width,
            partials: at(self.layout.partials_at + partials),
            partials_step,
            epilogue: &self.product.epilogue,
            out_at: self.out_at,
            n: self.product.params.n,
            columns: column..window.columns.end.min(column + width),
        }
    }
}
