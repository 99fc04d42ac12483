//! The loops around the micro kernels, for one member's part of a product.
//!
//! Groups of rows from top to bottom; in each group panels from left to right. The first group packs the right
//! operand panel by panel; while a panel is computed, the micro kernels fetch what the next packing of either operand
//! will read.

use std::ops::Range;
use std::ptr;

use super::blocking::{Block, Blocking};
use super::epilogue::Epilogue;
use super::feed::{Feed, Region};
use super::micro::MicroKernels;
use super::operand::{LeftOperand, RightOperand};
use super::pack::Matrix;
use super::panel::{Cut, Group, Panel, Placement, Step};
use super::{MatmulParams, Operands, Outputs};
use crate::spmd::{Parts, share};

/// A batch of products with all that they read and write.
pub(crate) struct Product<'a> {
    params: &'a MatmulParams,
    a: &'a [f32],
    b: &'a [f32],
    epilogue: Epilogue<'a>,
    kernels: &'static MicroKernels,
}

/// The operands of one product of the batch, and where its results go.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// The left operand.
    pub a: &'a dyn LeftOperand,
    /// The right operand.
    pub b: &'a dyn RightOperand,
    /// Which element of the bias belongs to the first column.
    pub bias_at: usize,
    /// Where the results go.
    pub place: Placement<'a>,
}

/// A part of one product of the batch.
#[derive(Clone)]
pub(crate) struct Share {
    /// Which product.
    pub index: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: Range<usize>,
}

impl<'a> Product<'a> {
    /// Checks the shapes and opens the outputs for disjoint writes.
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
        assert!(
            operands.points.is_none_or(|points| points.len() == batch * m * n),
            "the points have their shape"
        );
        assert!(operands.bias.is_none_or(|bias| bias.len() == n), "the bias has its shape");
        Product { a: operands.a, b: operands.b, ..Product::of_parts(outputs, operands, params, kernels) }
    }

    /// A product whose operands are given with each share; those of `operands` are only what follows the sum.
    pub fn of_parts(
        outputs: Outputs<'a>,
        operands: Operands<'a>,
        params: &'a MatmulParams,
        kernels: &'static MicroKernels,
    ) -> Self {
        let epilogue = Epilogue {
            bias: operands.bias,
            pre: outputs.pre.map(Parts::new),
            activation: params.activation,
            slope: operands.points.map(|points| (params.slope, points)),
            rounds: params.precision.rounds(),
            residual: operands.residual,
            accumulate: params.accumulate,
            out: Parts::new(outputs.out),
        };
        Product { params, a: &[], b: &[], epilogue, kernels }
    }

    /// Computes one share, cut by `blocking`, in `scratch` of the blocking's size.
    ///
    /// # Safety
    /// No other thread may compute an overlapping share meanwhile.
    pub unsafe fn run(&self, share: &Share, blocking: &Blocking, scratch: &mut [f32]) {
        let &MatmulParams { m, n, k, trans_a, trans_b, .. } = self.params;
        let a = Matrix::new(&self.a[share.index * m * k..][..m * k], m, k, trans_a);
        let b = Matrix::new(&self.b[share.index * k * n..][..k * n], k, n, trans_b);
        let place = Placement::Rows { first: share.index * m * n, step: n };
        // SAFETY: by the contract of this function.
        unsafe { self.run_with(share, blocking, scratch, Factors { a: &a, b: &b, bias_at: 0, place }) };
    }

    /// Computes one share of the product of these operands.
    ///
    /// # Safety
    /// As for [`Product::run`]; other places belong to other elements.
    pub unsafe fn run_with(
        &self,
        share: &Share,
        blocking: &Blocking,
        scratch: &mut [f32],
        factors: Factors<'_>,
    ) {
        let layout = blocking.layout();
        let (right, scratch) = scratch.split_at_mut(layout.right);
        let (slots, left) = scratch.split_at_mut(layout.slots);
        let mut sweep = Sweep { product: self, blocking, factors, right, slots, left };
        let mut slabs = slabs(share, blocking).peekable();
        while let Some(slab) = slabs.next() {
            // SAFETY: the share is ours by the contract of this function.
            unsafe { sweep.run(&slab, slabs.peek()) };
        }
        self.epilogue.settle();
    }
}

/// The slabs of a share, in the order of work.
fn slabs(share: &Share, blocking: &Blocking) -> impl Iterator<Item = Slab> {
    let cuts = pieces(&share.columns, blocking.columns)
        .flat_map(|columns| pieces(&share.rows, blocking.rows).map(move |rows| (rows, columns.clone())));
    cuts.flat_map(move |(rows, columns)| {
        (0..blocking.blocks()).map(move |index| Slab {
            rows: rows.clone(),
            columns: columns.clone(),
            index,
            block: blocking.block(index),
        })
    })
}

/// `range` in pieces of at most `size`.
fn pieces(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(size).map(move |start| start..end.min(start + size))
}

/// One share on its way, with its scratch.
struct Sweep<'a> {
    product: &'a Product<'a>,
    blocking: &'a Blocking,
    factors: Factors<'a>,
    /// The packed right operand, panel after panel.
    right: &'a mut [f32],
    /// The partial tiles.
    slots: &'a mut [f32],
    /// The packed left operand of a group.
    left: &'a mut [f32],
}

/// One block of the summed axis for some rows and columns.
struct Slab {
    rows: Range<usize>,
    columns: Range<usize>,
    /// The number of the block.
    index: usize,
    block: Block,
}

impl Slab {
    /// The columns of a panel; empty behind the last one.
    fn panel(&self, panel: usize, width: usize) -> Range<usize> {
        let start = self.columns.end.min(self.columns.start + panel * width);
        start..self.columns.end.min(start + width)
    }
}

impl Sweep<'_> {
    /// Adds the products of one slab, before those of `next`.
    ///
    /// # Safety
    /// No other thread may write the slab's part of the outputs.
    unsafe fn run(&mut self, slab: &Slab, next: Option<&Slab>) {
        let width = self.blocking.tile_columns;
        let cut = Cut::new(&slab.rows, self.blocking.tile_rows);
        let panels = slab.columns.len().div_ceil(width);
        let groups = self.groups(slab);
        // A single group needs each packed panel only once, so all of them can share the warmest place.
        let panel_step = if groups > 1 { slab.block.words() * width } else { 0 };
        for index in 0..groups {
            let group = self.group(slab, cut, share(index, groups, cut.tiles));
            let coming = match index + 1 < groups {
                true => self.left_source(slab, index + 1),
                false => next.map_or(Region::NOTHING, |next| self.left_source(next, 0)),
            };
            let mut coming = Feed::new(coming, group.tiles.len() * panels);
            for panel in 0..panels {
                let at = panel * panel_step;
                if index == 0 {
                    let packed = &mut self.right[at..at + slab.block.words() * width];
                    let columns = slab.panel(panel, width);
                    self.factors.b.pack(packed, slab.block, columns, self.product.kernels);
                }
                let next = match index {
                    0 => self.right_source(slab, slab.panel(panel + 1, width)),
                    _ => self.right_packed(slab, at + panel_step),
                };
                let panel = self.panel(slab, &group, panel, at);
                // SAFETY: both operands are packed, the slots are this sweep's own, the outputs ours by the contract
                // of this function, and the kernels of the current instruction set.
                unsafe { panel.run(&group, [&mut Feed::new(next, group.tiles.len()), &mut coming]) };
            }
        }
    }

    /// Packs the left operand of some tiles.
    fn group(&mut self, slab: &Slab, cut: Cut, tiles: Range<usize>) -> Group {
        let mut group = Group { tiles, cut, left: ptr::null(), block: slab.block };
        self.factors.a.pack(self.left, &group, self.product.kernels);
        group.left = self.left.as_ptr();
        group
    }

    /// One panel whose right operand lies at `at`, for the tiles of `group`.
    fn panel(&mut self, slab: &Slab, group: &Group, panel: usize, at: usize) -> Panel<'_> {
        let waits = self.blocking.blocks() > 1;
        let first = if waits { panel * self.blocking.panel_tiles() + group.tiles.start } else { 0 };
        Panel {
            width: self.blocking.tile_columns,
            kernels: self.product.kernels.tiles,
            step: Step::new(self.blocking, slab.index),
            right: self.right[at..].as_ptr(),
            slots: self.slots[first * self.blocking.tile()..].as_mut_ptr(),
            slots_step: if waits { self.blocking.tile() } else { 0 },
            level_step: self.blocking.slot_tiles() * self.blocking.tile(),
            epilogue: &self.product.epilogue,
            place: self.factors.place,
            bias_at: self.factors.bias_at,
            columns: slab.panel(panel, self.blocking.tile_columns),
        }
    }

    /// How many groups the rows of a slab are.
    fn groups(&self, slab: &Slab) -> usize {
        slab.rows.len().div_ceil(self.blocking.tile_rows).div_ceil(self.blocking.group_tiles)
    }

    /// The stored left operand of one of a slab's groups.
    fn left_source(&self, slab: &Slab, group: usize) -> Region {
        let cut = Cut::new(&slab.rows, self.blocking.tile_rows);
        let tiles = share(group, self.groups(slab), cut.tiles);
        self.factors.a.region(cut.start(tiles.start)..cut.start(tiles.end), &slab.block)
    }

    /// The stored right operand of `columns`.
    fn right_source(&self, slab: &Slab, columns: Range<usize>) -> Region {
        self.factors.b.region(columns, &slab.block)
    }

    /// The packed right operand of the panel at `at`.
    fn right_packed(&self, slab: &Slab, at: usize) -> Region {
        let size = slab.block.words() * self.blocking.tile_columns;
        Region::by_rows(self.right.as_ptr().wrapping_add(at), 1, size, size)
    }
}
