//! Convolutions of channels-last tensors, their adjoints, and the gradients of their weights.
//!
//! A convolution connects a *wide* tensor `[batch, space…, groups · wide]` with one that has an element of space for each
//! *window*, `[batch, windows…, groups · narrow]`, by a weight `[groups · narrow, wide, kernel…]`. Window `t` meets the
//! elements `t · stride + k · dilation - before` of the wide tensor, one for each position `k` of the kernel; elements outside
//! are zeros.
//!
//! `conv` reads x, the weight, then bias, residual and points if the parameters say so; it writes y, then the value before the
//! activation if the parameters say so. It goes from the wide tensor to the windows, or, if `adjoint`, the other way: that is a
//! transposed convolution, and the gradient of the input of a convolution. `conv_grad_weight` reads the tensor of the windows
//! and the wide one, and writes the weight's gradient. Both accumulate if the parameters say so.
//!
//! *Order of sums.* An element of `conv` is a balanced tree over `leaves` equal blocks of the summed channels of its group.
//! Inside a leaf it is one chain of fused multiply-adds from +0.0 over the positions of the kernel in ascending order, and at
//! each of them over the leaf's channels in ascending order; or what `bf16::leaf` says for operands that are rounded. A
//! position that meets an element outside is part of the chain, with a factor zero; an adjoint's positions are only those
//! that meet a whole window. An element of `conv_grad_weight` is a tree over `leaves` equal blocks of the rows (image, then
//! window), inside a leaf a chain in ascending order. So a kernel of one element with stride 1 gives the bits of a linear layer,
//! and nothing depends on tiles, cores or instruction set.
//!
//! The fast versions are matrix products whose operands are packed straight from the tensors: no patches are ever stored. Where
//! every group has one channel (`depthwise`), lanes are channels instead.

mod depthwise;
mod fast;
mod filter;
mod patches;
mod phase;
mod reference;
#[cfg(test)]
mod tests;
mod weight;

use phalanx_ir::tasks::{TaskOp, TaskView};
use phalanx_ir::{Activation, Names, Precision, Shape, Space, names, space};

use crate::matmul::{Operands, Outputs};
use crate::spmd::Workspace;
use crate::{Call, Kernel, Sizes, Work, params};

pub use fast::conv;
pub use reference::{conv_grad_weight_reference, conv_reference};
pub use weight::{ConvGradWeight, conv_grad_weight};

params! {
    /// What a convolution connects.
    pub struct ConvShape {
        /// How many images.
        pub batch: usize,
        /// Extents of the wide tensor.
        pub from: Space,
        /// How many windows.
        pub to: Space,
        /// Extents of the kernel.
        pub kernel: Space,
        /// From a window to the next.
        pub stride: Space,
        /// From an element of a window to the next.
        pub dilation: Space,
        /// Zeros in front of the wide tensor.
        pub before: Space,
        /// How many groups of channels.
        pub groups: usize,
        /// Channels of a group in the wide tensor.
        pub wide: usize,
        /// Channels of a group in the tensor of the windows.
        pub narrow: usize,
    }
}

impl ConvShape {
    /// The shape of a task between these tensors; the wide one first.
    fn of_task(task: &TaskView<'_>, wide: &Shape, windows: &Shape, weight: &Shape) -> Result<Self, String> {
        let lists: [Vec<usize>; 3] = match task.op() {
            TaskOp::Conv { stride, dilation, before, .. }
            | TaskOp::ConvGradInput { stride, dilation, before, .. }
            | TaskOp::ConvGradWeight { stride, dilation, before, .. } => {
                [stride.clone(), dilation.clone(), before.clone()]
            }
            _ => return Err("it executes convolutions".into()),
        };
        let rank = weight.rank();
        let fits = (3..=5).contains(&rank) && wide.rank() == rank && windows.rank() == rank;
        let groups = wide.last().checked_div(weight.dims().get(1).copied().unwrap_or(0));
        let Some(groups) = groups.filter(|&groups| fits && groups > 0) else {
            return Err(format!("weight {weight} does not connect {wide} with {windows}"));
        };
        let inner = |shape: &Shape| space(&shape.dims()[1..rank - 1], 1);
        Ok(ConvShape {
            batch: wide.dims()[0],
            from: inner(wide),
            to: inner(windows),
            kernel: space(&weight.dims()[2..], 1),
            stride: space(&lists[0], 1),
            dilation: space(&lists[1], 1),
            before: space(&lists[2], 0),
            groups,
            wide: weight.dims()[1],
            narrow: windows.last() / groups,
        })
    }

    /// How many positions the kernel has.
    pub(crate) fn positions(&self) -> usize {
        self.kernel.iter().product()
    }

    /// How many rows the tensor of the windows has.
    pub(crate) fn windows(&self) -> usize {
        self.batch * self.to.iter().product::<usize>()
    }

    /// Multiply-adds of a convolution, its adjoint, or the gradient of its weight.
    fn multiplies(&self) -> f64 {
        let sizes = [self.batch, self.groups, self.narrow, self.wide];
        sizes.iter().chain(&self.to).chain(&self.kernel).map(|&size| size as f64).product()
    }

    fn text(&self) -> String {
        let list = |sizes: Space| sizes.map(|size| size.to_string()).join("x");
        let ConvShape { batch, groups, wide, narrow, .. } = self;
        let (from, kernel) = (list(self.from), list(self.kernel));
        format!("{batch} of {from}x{} to {}, kernel {kernel}", groups * wide, groups * narrow)
    }
}

params! {
    /// The settings of a convolution.
    pub struct ConvParams {
        /// What it connects.
        pub shape: ConvShape,
        /// From the windows to the wide tensor.
        pub adjoint: bool,
        /// Leaves of the sum over the channels of a group: a power of two that divides them.
        pub leaves: usize,
        /// Whether a bias is added, one value for each channel of the result.
        pub bias: bool,
        /// Whether a tensor like the result is added after the activation.
        pub residual: bool,
        /// What is applied to the sum plus bias.
        pub activation: Activation,
        /// Whether the value before the activation is written too.
        pub save_pre: bool,
        /// Whether the result is added to `y` instead of replacing it.
        pub accumulate: bool,
        /// The function whose slope at `points` the activated sum is multiplied by. None reads no points.
        pub slope: Activation,
        /// How operands are read and sums added.
        pub precision: Precision,
    }
}

impl ConvParams {
    /// A convolution with no epilogue.
    pub fn plain(shape: ConvShape) -> ConvParams {
        ConvParams {
            shape,
            adjoint: false,
            leaves: 1,
            bias: false,
            residual: false,
            activation: Activation::None,
            save_pre: false,
            accumulate: false,
            slope: Activation::None,
            precision: Precision::F32,
        }
    }

    /// Channels of a group that are summed.
    pub(crate) fn inner(&self) -> usize {
        if self.adjoint { self.shape.narrow } else { self.shape.wide }
    }

    /// Channels of a group of the result.
    pub(crate) fn outer(&self) -> usize {
        if self.adjoint { self.shape.wide } else { self.shape.narrow }
    }

    /// Extents of the result.
    pub(crate) fn result(&self) -> Space {
        if self.adjoint { self.shape.from } else { self.shape.to }
    }

    /// Checks that the slices have their shapes.
    fn check(&self, outputs: &Outputs<'_>, operands: &Operands<'_>) {
        let shape = &self.shape;
        let rows = shape.batch * shape.from.iter().product::<usize>();
        let ends = [rows * shape.groups * shape.wide, shape.windows() * shape.groups * shape.narrow];
        let [x, y] = if self.adjoint { [ends[1], ends[0]] } else { ends };
        let weight = shape.groups * shape.narrow * shape.wide * shape.positions();
        assert!(
            self.leaves.is_power_of_two() && self.inner().is_multiple_of(self.leaves),
            "leaves cut evenly"
        );
        assert_eq!((operands.a.len(), operands.b.len()), (x, weight), "the operands have their shapes");
        assert_eq!(outputs.out.len(), y, "the result has its shape");
        let like = |slice: Option<&[f32]>| slice.is_none_or(|slice| slice.len() == y);
        assert!(like(operands.residual) && like(operands.points) && like(outputs.pre.as_deref()));
        assert!(operands.bias.is_none_or(|bias| bias.len() == shape.groups * self.outer()));
    }

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

impl Kernel for ConvParams {
    const NAME: &'static str = "conv";
    const TASKS: &'static [&'static str] = &["conv", "conv_grad_input"];
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (x, weight, y) = (task.read(0)?, task.read(1)?, task.write(0)?);
        let of = |adjoint: bool| {
            let [wide, windows] = if adjoint { [y, x] } else { [x, y] };
            let shape = ConvShape::of_task(task, wide, windows, weight)?;
            let accumulate = task.is("accumulate");
            Ok::<_, String>(ConvParams { adjoint, accumulate, ..ConvParams::plain(shape) })
        };
        match *task.op() {
            TaskOp::Conv { adjoint, activation, bias, residual, save_pre, leaves, precision, .. } => {
                let plain = of(adjoint)?;
                Ok(ConvParams { activation, bias, residual, save_pre, leaves, precision, ..plain })
            }
            TaskOp::ConvGradInput { adjoint, leaves, slope, precision, .. } => {
                let slope = slope.unwrap_or(Activation::None);
                Ok(ConvParams { leaves, slope, precision, ..of(!adjoint)? })
            }
            _ => Err("it executes convolutions".into()),
        }
    }

    fn arguments(&self) -> Names {
        let &ConvParams { bias, residual, slope, save_pre, .. } = self;
        let sloped = slope != Activation::None;
        names!(x, weight, bias if bias, residual if residual, points if sloped => y, pre if save_pre)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (operands, outputs) = self.slices(call);
        conv_reference(outputs, operands, self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (operands, outputs) = self.slices(call);
        conv(outputs, operands, self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let functions = [self.activation, self.slope].map(|function| function != Activation::None);
        let after = [self.bias, self.residual].iter().chain(&functions).filter(|&&is| is).count();
        let flops = 2.0 * self.shape.multiplies() + after as f64 * sizes.result(0);
        sizes.work(flops, self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        fast::blocks(self, cores)
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        fast::workspace(self, blocks)
    }

    fn sizes(&self) -> Option<String> {
        Some(self.shape.text())
    }
}
