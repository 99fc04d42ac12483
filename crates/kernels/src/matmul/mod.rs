//! Matrix product with optional bias, activation, slope, residual and accumulation.
//!
//! Reads `a`, `b`, then `bias`, `residual` and `points` if the parameters say so; writes `out`, then `pre` (the value
//! before the activation) if the parameters say so. `out` accumulates if the parameters say so.
//!
//! The sum over k is a balanced binary tree over `leaves` equal blocks; inside a leaf it is one chain of fused
//! multiply-adds in ascending k that starts from +0.0, or what `bf16::leaf` says for operands that are rounded. So the bits do
//! not depend on tiles, cores or instruction set. A slope is taken at points rounded like the operands.
//!
//! The fast version packs the right operand into panels as wide as a register tile, keeps a group of rows of the
//! left operand in the second-level cache, and carries partial sums between blocks of k in packed tiles.

mod blocking;
mod burn;
mod epilogue;
mod feed;
mod grid;
mod micro;
mod operand;
mod pack;
mod panel;
mod sweep;
#[cfg(test)]
mod tests;

use phalanx_ir::tasks::{TaskOp, TaskView};
use phalanx_ir::{Activation, Names, Precision, names};

use crate::bf16;
use crate::isa::Isa;
use crate::spmd::{Launch, Workspace};
use crate::unary::{activate_in_place, slope_in_place};
use crate::{Call, Kernel, Sizes, Work, params};

pub(crate) use blocking::{Block, Blocking};
pub use burn::{fma_burn, fma_burn_flops};
pub(crate) use epilogue::{Epilogue, Place};
pub(crate) use feed::Region;
pub(crate) use grid::{Grid, blocks as product_blocks};
pub use micro::compare_dot;
#[cfg(target_arch = "x86_64")]
pub(crate) use micro::has_fast_pairs;
pub(crate) use micro::{LINE, MicroKernels, Transpose as TransposedBlock};
pub(crate) use operand::{LeftOperand, RightOperand};
pub(crate) use pack::{Matrix, Packing};
pub(crate) use panel::{Group, Placement, Scatter};
pub(crate) use sweep::{Factors, Product, Share};

params! {
    /// The settings of a matrix product.
    pub struct MatmulParams {
        /// How many independent products.
        pub batch: usize,
        /// Rows of the output.
        pub m: usize,
        /// Columns of the output.
        pub n: usize,
        /// Length of the summed axis.
        pub k: usize,
        /// Whether `a` is stored as `[batch, k, m]`.
        pub trans_a: bool,
        /// Whether `b` is stored as `[batch, n, k]`.
        pub trans_b: bool,
        /// Leaves of the sum's tree: a power of two that divides `k`.
        pub leaves: usize,
        /// Whether a bias `[n]` is added.
        pub bias: bool,
        /// Whether a residual `[batch, m, n]` is added after the activation.
        pub residual: bool,
        /// What is applied to the sum plus bias.
        pub activation: Activation,
        /// Whether the value before the activation is written too.
        pub save_pre: bool,
        /// Whether the result is added to `out` instead of replacing it.
        pub accumulate: bool,
        /// The function whose slope at `points [batch, m, n]` the activated sum is multiplied by: the gradient of an
        /// activation. None reads no points.
        pub slope: Activation,
        /// How operands are read and sums added.
        pub precision: Precision,
    }
}

/// What a matrix product reads.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// The left operand, `[batch, m, k]` or transposed.
    pub a: &'a [f32],
    /// The right operand, `[batch, k, n]` or transposed.
    pub b: &'a [f32],
    /// One value per column of the output.
    pub bias: Option<&'a [f32]>,
    /// Added after the activation.
    pub residual: Option<&'a [f32]>,
    /// Where the slope is taken.
    pub points: Option<&'a [f32]>,
}

/// What a matrix product writes.
pub struct Outputs<'a> {
    /// The result.
    pub out: &'a mut [f32],
    /// The value before the activation.
    pub pre: Option<&'a mut [f32]>,
}

/// The plain meaning of the product: `a [batch, m, k]` times `b [batch, k, n]` gives `out [batch, m, n]`.
pub fn matmul_reference(outputs: Outputs<'_>, operands: Operands<'_>, params: &MatmulParams) {
    let &MatmulParams { batch, m, n, k, leaves, .. } = params;
    let Outputs { out, mut pre } = outputs;
    for at in 0..batch * m * n {
        let (p, i, j) = (at / (m * n), at / n % m, at % n);
        let operands_of = |l: usize| {
            let a = operands.a[p * m * k + if params.trans_a { l * m + i } else { i * k + l }];
            let b = operands.b[p * k * n + if params.trans_b { j * k + l } else { l * n + j }];
            (a, b)
        };
        let steps = k / leaves;
        let leaf = |leaf| bf16::leaf(params.precision, steps, |step| operands_of(leaf * steps + step));
        let mut value = tree_sum(0, leaves, &leaf);
        if let Some(bias) = operands.bias {
            value += bias[j];
        }
        if let Some(pre) = &mut pre {
            pre[at] = value;
        }
        if params.activation != Activation::None {
            activate_in_place(params.activation, std::slice::from_mut(&mut value));
        }
        if let Some(points) = operands.points {
            let point = if params.precision.rounds() { bf16::rounded(points[at]) } else { points[at] };
            slope_in_place(params.slope, std::slice::from_mut(&mut value), &[point]);
        }
        if let Some(residual) = operands.residual {
            value += residual[at];
        }
        out[at] = if params.accumulate { out[at] + value } else { value };
    }
}

/// The sum of `count` leaves from `first`, as a balanced binary tree.
pub(crate) fn tree_sum(first: usize, count: usize, leaf: &dyn Fn(usize) -> f32) -> f32 {
    match count {
        1 => leaf(first),
        _ => tree_sum(first, count / 2, leaf) + tree_sum(first + count / 2, count / 2, leaf),
    }
}

/// The fast product.
pub fn matmul(outputs: Outputs<'_>, operands: Operands<'_>, params: &MatmulParams, launch: &mut Launch<'_>) {
    if params.batch * params.m * params.n == 0 {
        return;
    }
    let kernels = MicroKernels::of(Isa::current(), params.precision);
    let grid = Grid::new(params, kernels, launch.blocks());
    let blocking = grid.blocking(params, kernels);
    let size = blocking.layout().total();
    let product = Product::new(outputs, operands, params, kernels);
    launch.run(|mut block| {
        let own = &mut block.own()[..size];
        for share in grid.shares(params, kernels, block.index) {
            // SAFETY: shares do not overlap, and each belongs to one block.
            unsafe { product.run(&share, &blocking, own) };
        }
    });
}

/// Columns whose partial sums [`matmul_alone`] keeps: with the rows of a tile they fit the second-level cache.
const ALONE_COLUMNS: usize = 1024;

/// The fast product on the calling thread alone, in `scratch` of at least [`alone_scratch`] elements.
pub(crate) fn matmul_alone(
    outputs: Outputs<'_>,
    operands: Operands<'_>,
    params: &MatmulParams,
    scratch: &mut [f32],
) {
    if params.batch * params.m * params.n == 0 {
        return;
    }
    let kernels = MicroKernels::of(Isa::current(), params.precision);
    let blocking = alone_blocking(params, kernels);
    let own = &mut scratch[..blocking.layout().total()];
    let product = Product::new(outputs, operands, params, kernels);
    for index in 0..params.batch {
        let share = Share { index, rows: 0..params.m, columns: 0..params.n };
        // SAFETY: the outputs are borrowed by this call, and no other thread computes them.
        unsafe { product.run(&share, &blocking, own) };
    }
}

fn alone_blocking(params: &MatmulParams, kernels: &MicroKernels) -> Blocking {
    Blocking::new(params, kernels, params.m, params.n.min(ALONE_COLUMNS))
}

/// Elements [`matmul_alone`] works in, for any instruction set and as many rows or fewer.
pub(crate) fn alone_scratch(params: &MatmulParams) -> usize {
    largest(params.precision, |kernels| alone_blocking(params, kernels).layout().total())
}

/// What [`matmul`] works in on `blocks` blocks, for any instruction set: packed operands and partial tiles.
fn workspace(params: &MatmulParams, blocks: usize) -> Workspace {
    let of = |kernels: &_| Grid::new(params, kernels, blocks).blocking(params, kernels).layout().total();
    Workspace::of::<f32>(0, largest(params.precision, of))
}

/// The most elements that `of` says for the micro kernels of any instruction set.
pub(crate) fn largest(precision: Precision, of: impl Fn(&MicroKernels) -> usize) -> usize {
    let all = [Isa::Portable, Isa::Avx2, Isa::Avx512];
    all.into_iter().map(|isa| of(MicroKernels::of(isa, precision))).max().unwrap_or(0)
}

impl MatmulParams {
    /// A product of single elements with no epilogue.
    pub const PLAIN: MatmulParams = MatmulParams {
        batch: 1,
        m: 1,
        n: 1,
        k: 1,
        trans_a: false,
        trans_b: false,
        leaves: 1,
        bias: false,
        residual: false,
        activation: Activation::None,
        save_pre: false,
        accumulate: false,
        slope: Activation::None,
        precision: Precision::F32,
    };

    fn slices<'a>(&self, call: &mut Call<'a>) -> (Operands<'a>, Outputs<'a>) {
        let residual_at = 2 + usize::from(self.bias);
        let points_at = residual_at + usize::from(self.residual);
        let operands = Operands {
            a: call.read(0),
            b: call.read(1),
            bias: self.bias.then(|| call.read(2)),
            residual: self.residual.then(|| call.read(residual_at)),
            points: (self.slope != Activation::None).then(|| call.read(points_at)),
        };
        (operands, Outputs { out: call.write(0), pre: self.save_pre.then(|| call.write(1)) })
    }
}

impl Kernel for MatmulParams {
    const NAME: &'static str = "matmul";
    const TASKS: &'static [&'static str] = &["matmul", "linear", "linear_grad_input", "linear_grad_weight"];
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (a, out) = (task.read(0)?, task.write(0)?);
        let (m, n, k) = (a.rows(), out.last(), a.last());
        let plain = MatmulParams { accumulate: task.is("accumulate"), ..MatmulParams::PLAIN };
        match *task.op() {
            TaskOp::Linear { transposed, activation, bias, residual, save_pre, leaves, precision } => {
                let plain = MatmulParams { activation, bias, residual, save_pre, precision, ..plain };
                Ok(MatmulParams { m, n, k, trans_b: !transposed, leaves, ..plain })
            }
            // dx = dy · weight, the weight as [out, in].
            TaskOp::LinearGradInput { transposed, leaves, slope, precision, .. } => {
                let slope = slope.unwrap_or(Activation::None);
                Ok(MatmulParams { m, n, k, trans_b: transposed, leaves, slope, precision, ..plain })
            }
            TaskOp::LinearGradWeight { leaves, precision, .. } => {
                Ok(MatmulParams { m: out.rows(), n, k: m, trans_a: true, leaves, precision, ..plain })
            }
            TaskOp::Matmul { transpose_a: trans_a, transpose_b: trans_b, leaves, precision, .. } => {
                let m = out.dims()[out.rank() - 2];
                let (batch, k) = (out.elements() / (m * n), a.elements() / (out.elements() / n));
                Ok(MatmulParams { batch, m, n, k, trans_a, trans_b, leaves, precision, ..plain })
            }
            _ => Err("it executes matrix products and linear layers".into()),
        }
    }

    /// dweight = dyᵀ · x; xᵀ · dy where the weight is stored as [in, out].
    fn swaps(task: &TaskView<'_>) -> bool {
        matches!(task.op(), TaskOp::LinearGradWeight { transposed: true, .. })
    }

    fn arguments(&self) -> Names {
        let &MatmulParams { bias, residual, slope, save_pre, .. } = self;
        let sloped = slope != Activation::None;
        names!(a, b, bias if bias, residual if residual, points if sloped => out, pre if save_pre)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (operands, outputs) = self.slices(call);
        matmul_reference(outputs, operands, self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (operands, outputs) = self.slices(call);
        matmul(outputs, operands, self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let [batch, m, n, k] = [self.batch, self.m, self.n, self.k].map(|size| size as f64);
        let functions = [self.activation, self.slope].map(|function| function != Activation::None);
        let after = [self.bias, self.residual].iter().chain(&functions).filter(|&&is| is).count();
        sizes.work(batch * m * n * (2.0 * k + after as f64), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        grid::blocks(self, cores)
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        workspace(self, blocks)
    }

    fn sizes(&self) -> Option<String> {
        let MatmulParams { batch, m, n, k, .. } = self;
        let all = if *batch == 1 { String::new() } else { format!("{batch} of ") };
        (m * n * k > 0).then(|| format!("{all}{m} x {n} x {k}"))
    }
}
