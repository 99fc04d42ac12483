//! The gradient of a convolution's weight: for each group the product of the windows' tensor, transposed, and the elements that
//! the windows meet.
//!
//! Columns of the product may be in any order. Where panels divide the channels, each has neighboring channels at one position
//! of the kernel, and all positions of these channels follow each other: they are written to the same cache lines. Elsewhere a
//! column is a position, then a channel.

use std::ops::Range;

use phalanx_ir::tasks::{TaskOp, TaskView};
use phalanx_ir::{Activation, Precision};

use super::ConvShape;
use super::depthwise::{depthwise_grad_weight, is_depthwise_weight};
use super::patches::copy;
use super::phase::Phase;
use crate::isa::Isa;
use crate::matmul::{
    Block, Epilogue, Factors, Grid, LINE, MatmulParams, Matrix, MicroKernels, Operands, Outputs, Packing,
    Placement, Product, RightOperand, Scatter, largest, product_blocks,
};
use crate::spmd::{Launch, Workspace};
use crate::{Kernel, Sizes, Work, conv::conv_grad_weight_reference, dispatch, params, signature};

params! {
    /// The settings of the gradient of a convolution's weight.
    pub struct ConvGradWeight {
        /// What the convolution connects.
        pub shape: ConvShape,
        /// Leaves of the sum over rows: a power of two that divides them.
        pub leaves: usize,
        /// Whether the result is added to `dweight` instead of replacing it.
        pub accumulate: bool,
        /// How operands are read and sums added.
        pub precision: Precision,
    }
}

impl ConvGradWeight {
    fn product(&self) -> MatmulParams {
        let ConvGradWeight { shape, leaves, accumulate, precision } = *self;
        MatmulParams {
            batch: shape.groups,
            m: shape.narrow,
            n: shape.wide * shape.positions(),
            k: shape.windows(),
            leaves,
            accumulate,
            precision,
            ..MatmulParams::PLAIN
        }
    }
}

/// The fast version of [`conv_grad_weight_reference`].
pub fn conv_grad_weight(
    dw: &mut [f32],
    windows: &[f32],
    wide: &[f32],
    params: ConvGradWeight,
    launch: &mut Launch<'_>,
) {
    let shape = &params.shape;
    let rows = shape.batch * shape.from.iter().product::<usize>();
    assert!(params.leaves.is_power_of_two() && shape.windows().is_multiple_of(params.leaves));
    assert_eq!(windows.len(), shape.windows() * shape.groups * shape.narrow, "the windows have their shape");
    assert_eq!(wide.len(), rows * shape.groups * shape.wide, "the wide tensor has its shape");
    assert_eq!(dw.len(), shape.groups * shape.narrow * shape.wide * shape.positions(), "so has the weight");
    if is_depthwise_weight(&params) {
        return depthwise_grad_weight(dw, windows, wide, params, launch);
    }
    if dw.is_empty() {
        return;
    }
    let kernels = MicroKernels::of(Isa::current(), params.precision);
    let matmul = params.product();
    let grid = Grid::new(&matmul, kernels, launch.blocks());
    let blocking = grid.blocking(&matmul, kernels);
    let size = blocking.layout().total();
    let operands = Operands { a: windows, b: wide, bias: None, residual: None, points: None };
    let product = Product::of_parts(Outputs { out: dw, pre: None }, operands, &matmul, kernels);
    launch.run(|mut block| {
        let own = &mut block.own()[..size];
        for share in grid.shares(&matmul, kernels, block.index) {
            let channels = shape.groups * shape.narrow;
            let a =
                Matrix { data: &windows[share.index * shape.narrow..], row_step: 1, column_step: channels };
            let order = ColumnOrder::new(shape, kernels.columns);
            let b = Met { wide, shape, phase: Phase::windows(shape), group: share.index, order };
            let scatter = Columns { order, shape, group: share.index };
            let place = Placement::Anywhere(&scatter);
            let factors = Factors { a: &a, b: &b, bias_at: 0, place };
            // SAFETY: shares do not overlap, and each belongs to one block.
            unsafe { product.run_with(&share, &blocking, own, factors) };
        }
    });
}

/// Which channel and position of the kernel a column is.
#[derive(Clone, Copy)]
struct ColumnOrder {
    channels: usize,
    positions: usize,
    /// Columns of a panel, if panels divide the channels.
    panel: Option<usize>,
}

impl ColumnOrder {
    fn new(shape: &ConvShape, width: usize) -> ColumnOrder {
        let panel = shape.wide.is_multiple_of(width).then_some(width);
        ColumnOrder { channels: shape.wide, positions: shape.positions(), panel }
    }

    /// Channel and position of `column`, and how many columns from it on are neighboring channels at the same position.
    #[inline(always)]
    fn of(&self, column: usize) -> (usize, usize, usize) {
        match self.panel {
            Some(width) => {
                let (panel, lane) = (column / width, column % width);
                (panel / self.positions * width + lane, panel % self.positions, width - lane)
            }
            None => {
                let channel = column % self.channels;
                (channel, column / self.channels, self.channels - channel)
            }
        }
    }
}

/// The elements that windows meet: a step is a window, a column a channel at a position of the kernel.
struct Met<'a> {
    wide: &'a [f32],
    shape: &'a ConvShape,
    phase: Phase,
    group: usize,
    order: ColumnOrder,
}

impl Met<'_> {
    /// The first element of the wide tensor's row that a window meets at a position, unless it lies outside.
    #[inline(always)]
    fn row(&self, (image, window): (usize, [usize; 3]), position: [usize; 3]) -> Option<usize> {
        let mut row = image;
        for dim in 0..3 {
            let axis = &self.phase.axes[dim];
            let at = axis.first
                + (window[dim] as isize) * axis.row_step
                + (position[dim] as isize) * axis.tap_step;
            let at = usize::try_from(at).ok().filter(|&at| at < axis.extent)?;
            row = row * axis.extent + at;
        }
        Some((row * self.shape.groups + self.group) * self.shape.wide)
    }

    /// Writes what one window meets in `columns`.
    #[inline(always)]
    fn fill(&self, line: &mut [f32], window: (usize, [usize; 3]), columns: Range<usize>) {
        let [_, b, c] = self.shape.kernel;
        let mut column = columns.start;
        while column < columns.end {
            let (channel, position, run) = self.order.of(column);
            let place = [position / (b * c), position / c % b, position % c];
            let row = self.row(window, place);
            let count = match (row, self.neighbors(window, place, channel)) {
                (Some(_), Some(more)) => more.min(columns.end - column),
                _ => run.min(columns.end - column),
            };
            let line = &mut line[column - columns.start..][..count];
            match row {
                Some(row) => copy_wide(line, &self.wide[row + channel..][..count]),
                None => line.fill(0.0),
            }
            column += count;
        }
    }

    /// How many columns from `channel` at a position on lie beside each other in the wide tensor, if those of several
    /// positions do: up to the end of the kernel's row, as far as it lies inside.
    #[inline(always)]
    fn neighbors(&self, window: (usize, [usize; 3]), place: [usize; 3], channel: usize) -> Option<usize> {
        let axis = &self.phase.axes[2];
        if self.order.panel.is_some() || self.shape.groups > 1 || axis.tap_step != 1 {
            return None;
        }
        let at = axis.first + window.1[2] as isize * axis.row_step + place[2] as isize;
        let inside = (axis.extent as isize - at).clamp(0, (axis.taps - place[2]) as isize) as usize;
        Some(inside * self.shape.wide - channel.min(inside * self.shape.wide)).filter(|&count| count > 0)
    }
}

#[inline(always)]
fn copy_wide(to: &mut [f32], from: &[f32]) {
    match (<&mut [f32; 32]>::try_from(&mut *to), <&[f32; 32]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => copy(to, from),
    }
}

impl RightOperand for Met<'_> {
    fn pack(&self, packed: &mut [f32], block: Block, columns: Range<usize>, kernels: &MicroKernels) {
        for (steps, words) in block.pieces() {
            let packed = &mut packed[words.start * kernels.columns..words.end * kernels.columns];
            match kernels.packing {
                Packing::Single => pack_steps(packed, self, steps, &columns, kernels.columns),
                _ => round_steps(packed, self, steps, &columns, kernels),
            }
        }
    }
}

dispatch! {
    /// Packs steps one after the other.
    fn pack_steps(packed: &mut [f32], met: &Met<'_>, steps: Range<usize>, columns: &Range<usize>, width: usize) {
        let (mut image, mut window) = met.phase.place(steps.start);
        for packed in packed.chunks_exact_mut(width) {
            let (filled, padding) = packed.split_at_mut(columns.len());
            met.fill(filled, (image, window), columns.clone());
            padding.fill(0.0);
            for dim in (0..3).rev() {
                window[dim] += 1;
                if window[dim] < met.phase.axes[dim].rows {
                    break;
                }
                window[dim] = 0;
                image += usize::from(dim == 0);
            }
        }
    }
}

/// Packs rounded words; what lies behind the last step becomes zero.
fn round_steps(
    packed: &mut [f32],
    met: &Met<'_>,
    steps: Range<usize>,
    columns: &Range<usize>,
    kernels: &MicroKernels,
) {
    for (index, packed) in packed.chunks_exact_mut(kernels.columns).enumerate() {
        for (number, packed) in packed.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
            let first = (columns.start + number * LINE).min(columns.end);
            let columns = first..columns.end.min(first + LINE);
            *packed = kernels.packing.word(index, |step| {
                let mut line = [0.0; LINE];
                if steps.start + step < steps.end {
                    let window = met.phase.place(steps.start + step);
                    met.fill(&mut line[..columns.len()], window, columns.clone());
                }
                line
            });
        }
    }
}

/// Takes columns to the weight.
struct Columns<'a> {
    order: ColumnOrder,
    shape: &'a ConvShape,
    group: usize,
}

impl Scatter for Columns<'_> {
    unsafe fn finish(
        &self,
        epilogue: &Epilogue<'_>,
        sums: &mut [f32],
        width: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        debug_assert!(epilogue.activation == Activation::None && epilogue.pre.is_none());
        let mut places = [0; 32];
        for (place, column) in places.iter_mut().zip(columns.clone()) {
            let (channel, position, _) = self.order.of(column);
            *place = channel * self.order.positions + position;
        }
        let size = self.shape.wide * self.shape.positions();
        let first = (self.group * self.shape.narrow + rows.start) * size;
        assert!(first + rows.len() * size <= epilogue.out.len(), "rows lie inside the weight");
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            let row = epilogue.out.as_mut_ptr().wrapping_add(first + row * size);
            for (sum, &place) in sums.iter().zip(&places[..columns.len()]) {
                let to = row.wrapping_add(place);
                // SAFETY: a place is below `size`, rows lie inside by the assertion, and the element is ours by the contract of
                // this function.
                unsafe { *to = if epilogue.accumulate { *to + sum } else { *sum } };
            }
        }
    }
}

impl Kernel for ConvGradWeight {
    signature!("conv_grad_weight": windows, wide => dweight by conv_grad_weight_reference, conv_grad_weight);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let TaskOp::ConvGradWeight { adjoint, leaves, accumulate, precision, .. } = *task.op() else {
            return Err("it executes gradients of convolutions".into());
        };
        let (windows, wide) = if adjoint { (1, 0) } else { (0, 1) };
        let shape = ConvShape::of_task(task, task.read(wide)?, task.read(windows)?, task.write(0)?)?;
        Ok(ConvGradWeight { shape, leaves, accumulate, precision })
    }

    /// An adjoint's input has the windows.
    fn swaps(task: &TaskView<'_>) -> bool {
        matches!(task.op(), TaskOp::ConvGradWeight { adjoint: true, .. })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(2.0 * self.shape.multiplies(), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        let all = MatmulParams { m: 1, n: 1, k: self.shape.multiplies() as usize, ..MatmulParams::PLAIN };
        product_blocks(&all, cores)
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        if is_depthwise_weight(self) {
            return Workspace::NONE;
        }
        let product = self.product();
        let of = |kernels: &MicroKernels| {
            Grid::new(&product, kernels, blocks).blocking(&product, kernels).layout().total()
        };
        Workspace::of::<f32>(0, largest(self.precision, of))
    }

    fn sizes(&self) -> Option<String> {
        Some(self.shape.text())
    }
}
