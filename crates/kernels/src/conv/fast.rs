//! The fast convolution: a matrix product for each phase, with a product of its own for each group.

use std::ops::Range;

use phalanx_ir::{Activation, Space};

use super::ConvParams;
use super::depthwise::{depthwise, depthwise_workspace, is_depthwise};
use super::filter::Filter;
use super::patches::Patches;
use super::phase::Phase;
use crate::isa::Isa;
use crate::matmul::{
    Epilogue, Factors, Grid, LeftOperand, MatmulParams, Matrix, MicroKernels, Operands, Outputs, Place,
    Placement, Product, RightOperand, Scatter, largest, product_blocks,
};
use crate::spmd::{Launch, Parts, Workspace};

/// How many blocks a convolution wants.
pub(super) fn blocks(params: &ConvParams, cores: usize) -> i64 {
    let all = MatmulParams { m: 1, n: 1, k: params.shape.multiplies() as usize, ..MatmulParams::PLAIN };
    product_blocks(&all, cores)
}

/// What [`conv`] works in, for any instruction set.
pub(super) fn workspace(params: &ConvParams, blocks: usize) -> Workspace {
    if is_depthwise(params) {
        return depthwise_workspace(params);
    }
    let of = |phase: Phase| {
        let product = product(params, &phase);
        largest(params.precision, |kernels| {
            Grid::new(&product, kernels, blocks).blocking(&product, kernels).layout().total()
        })
    };
    Workspace::of::<f32>(0, params.phases().map(of).max().unwrap_or(0))
}

/// The matrix product of a phase.
fn product(params: &ConvParams, phase: &Phase) -> MatmulParams {
    let &ConvParams { shape, leaves, bias, residual, activation, .. } = params;
    let &ConvParams { save_pre, accumulate, slope, precision, .. } = params;
    MatmulParams {
        batch: shape.groups,
        m: phase.rows(),
        n: params.outer(),
        k: phase.taps() * params.inner(),
        leaves,
        bias,
        residual,
        activation,
        save_pre,
        accumulate,
        slope,
        precision,
        ..MatmulParams::PLAIN
    }
}

/// The fast version of [`conv_reference`](super::conv_reference).
pub fn conv(mut outputs: Outputs<'_>, operands: Operands<'_>, params: &ConvParams, launch: &mut Launch<'_>) {
    params.check(&outputs, &operands);
    if is_depthwise(params) {
        return depthwise(outputs, operands, params, launch);
    }
    let kernels = MicroKernels::of(Isa::current(), params.precision);
    for phase in params.phases() {
        let matmul = product(params, &phase);
        if matmul.batch * matmul.m * matmul.n == 0 {
            continue;
        }
        if matmul.k == 0 && is_bare(params) {
            fill_zeros(outputs.out, params, &phase, launch);
            continue;
        }
        let grid = Grid::new(&matmul, kernels, launch.blocks());
        let blocking = grid.blocking(&matmul, kernels);
        let size = blocking.layout().total();
        let outputs = Outputs { out: &mut *outputs.out, pre: outputs.pre.as_deref_mut() };
        let product = Product::of_parts(outputs, operands, &matmul, kernels);
        launch.run(|mut block| {
            let own = &mut block.own()[..size];
            for share in grid.shares(&matmul, kernels, block.index) {
                let parts = GroupParts { params, operands, phase: &phase, group: share.index };
                // SAFETY: shares do not overlap, and each belongs to one block; neither do phases.
                parts.with(|factors| unsafe { product.run_with(&share, &blocking, own, factors) });
            }
        });
    }
}

/// Whether nothing follows the sum.
fn is_bare(params: &ConvParams) -> bool {
    let functions = [params.activation, params.slope];
    !params.bias && !params.residual && !params.save_pre && functions == [Activation::None; 2]
}

/// The results of a phase that meets no position of the kernel.
fn fill_zeros(out: &mut [f32], params: &ConvParams, phase: &Phase, launch: &mut Launch<'_>) {
    let channels = params.shape.groups * params.outer();
    let out = Parts::new(out);
    launch.run(|block| {
        for row in block.share(phase.rows()) {
            let at = phase.result_row(row, params.result()) * channels;
            // SAFETY: a row belongs to one block.
            let out = unsafe { out.part(at..at + channels) };
            match params.accumulate {
                // It makes zeros positive, as every sum does.
                true => out.iter_mut().for_each(|out| *out += 0.0),
                false => out.fill(0.0),
            }
        }
    });
}

/// The operands of one group in one phase.
struct GroupParts<'a> {
    params: &'a ConvParams,
    operands: Operands<'a>,
    phase: &'a Phase,
    group: usize,
}

impl GroupParts<'_> {
    /// Calls `body` with the operands.
    fn with(&self, body: impl FnOnce(Factors<'_>)) {
        let GroupParts { params, operands, phase, group } = self;
        let (inner, outer, shape) = (params.inner(), params.outer(), &params.shape);
        let channels = shape.groups * inner;
        let patches = Patches::new(operands.a, **phase, channels, *group, inner, params.leaves);
        let pointwise = Matrix { data: &operands.a[group * inner..], row_step: channels, column_step: 1 };
        let a: &dyn LeftOperand = if phase.is_pointwise() { &pointwise } else { &patches };
        let size = shape.narrow * shape.wide * shape.positions();
        let weight = &operands.b[group * size..][..size];
        let [narrow_step, wide_step] = [shape.wide * shape.positions(), shape.positions()];
        let [channel_step, column_step] =
            if params.adjoint { [narrow_step, wide_step] } else { [wide_step, narrow_step] };
        let (leaf, kernel) = (inner / params.leaves, shape.kernel);
        let filter = Filter { weight, channel_step, column_step, phase: **phase, kernel, leaf };
        let single = Matrix { data: weight, row_step: channel_step, column_step };
        let is_single = shape.positions() == 1 && phase.taps() == 1;
        let b: &dyn RightOperand = if is_single { &single } else { &filter };
        let rows = PhaseRows { params, phase, first: group * outer };
        let place = match phase.is_whole() {
            true => Placement::Rows { first: rows.first, step: shape.groups * outer },
            false => Placement::Anywhere(&rows),
        };
        body(Factors { a, b, bias_at: group * outer, place });
    }
}

/// Results at equal distances in space.
struct PhaseRows<'a> {
    params: &'a ConvParams,
    phase: &'a Phase,
    /// The group's first channel in the result.
    first: usize,
}

impl Scatter for PhaseRows<'_> {
    unsafe fn finish(
        &self,
        epilogue: &Epilogue<'_>,
        sums: &mut [f32],
        width: usize,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let (result, channels): (Space, usize) =
            (self.params.result(), self.params.shape.groups * self.params.outer());
        for (sums, row) in sums.chunks_exact_mut(width).zip(rows) {
            let at = self.phase.result_row(row, result) * channels + self.first + columns.start;
            let place = Place { at, row_step: channels, rows: 1, columns: columns.len() };
            // SAFETY: by the contract of this function.
            unsafe { epilogue.finish(sums, width, place) };
        }
    }
}
