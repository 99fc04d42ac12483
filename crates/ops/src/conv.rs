//! Convolution (+ bias), then an activation, of channels-last tensors: `[batch, space…, channels]`, one to three dimensions of
//! space. The weight is `[out, in / groups, kernel…]`; for the adjoint, a transposed convolution, `[in, out / groups, kernel…]`.
//!
//! Order of sums, which no plan changes: a result is a balanced tree over blocks of the summed channels; inside a block one
//! chain over the positions of the kernel, at each of them over the block's channels. The gradient of the weight is a tree over
//! blocks of the rows of the smaller tensor, image by image, like that of a linear layer. A kernel of one element with stride 1
//! has the bits of a linear layer. Precisions other than f32 round as a linear layer's products do.

use phalanx_ir::parallel::Dim;
use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Activation, Apart, Binary, ConvAxis, Cuts, LayerTasks, OpError, Operands, Operator, Part, Shape, Slots,
    Space, Tensor, TensorType, Unary, attributes, space,
};

use crate::unary::activation;
use crate::{BinaryOp, UnaryOp};

/// See the head of the file. A list may be empty, which leaves it at its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Between windows, for each dimension of space; 1 by default.
    pub stride: Vec<usize>,
    /// Between the elements of a window; 1 by default.
    pub dilation: Vec<usize>,
    /// Zeros in front of and behind each dimension: `[before, after, before, after, …]`; none by default.
    pub padding: Vec<usize>,
    /// Groups of channels that do not meet.
    pub groups: usize,
    /// The adjoint convolution: from windows to what they look at.
    pub adjoint: bool,
    /// Elements behind the result of an adjoint that no window needs; none by default.
    pub output_padding: Vec<usize>,
    /// Applied to the result.
    pub activation: Activation,
}

impl Default for Conv {
    fn default() -> Self {
        Conv {
            stride: Vec::new(),
            dilation: Vec::new(),
            padding: Vec::new(),
            groups: 1,
            adjoint: false,
            output_padding: Vec::new(),
            activation: Activation::None,
        }
    }
}

/// The parts `[before, after]` of padding written alternately.
pub(crate) fn halves(padding: &[usize]) -> [Vec<usize>; 2] {
    [0, 1].map(|first| padding.iter().skip(first).step_by(2).copied().collect())
}

/// Checks that a list has a number for each of `dims` dimensions, or none.
pub(crate) fn check_list(
    operands: &Operands<'_>,
    name: &str,
    list: &[usize],
    dims: usize,
) -> Result<(), OpError> {
    if list.is_empty() || list.len() == dims {
        return Ok(());
    }
    let wanted = format!("{name}={list:?} must have {dims} numbers for its dimensions of space, or none");
    operands.wrong(0, wanted, format!("give `{name}` {dims} numbers"))
}

/// How many dimensions of space operand 0 has.
pub(crate) fn space_dims(operands: &Operands<'_>, what: &str) -> Result<usize, OpError> {
    let rank = operands.float(0)?.rank();
    if (3..=5).contains(&rank) {
        return Ok(rank - 2);
    }
    let wanted = format!("{what} is [batch, space…, channels] with 1 to 3 dimensions of space");
    operands.wrong(0, wanted, "reshape or transpose it to that")
}

impl Conv {
    /// The axes, with neutral ones in front.
    fn axes(&self, kernel: Space) -> [ConvAxis; 3] {
        let [before, after] = halves(&self.padding).map(|half| space(&half, 0));
        let (stride, dilation) = (space(&self.stride, 1), space(&self.dilation, 1));
        [0, 1, 2].map(|dim| ConvAxis {
            kernel: kernel[dim],
            stride: stride[dim],
            dilation: dilation[dim],
            before: before[dim],
            after: after[dim],
        })
    }

    fn check_numbers(&self, operands: &Operands<'_>, dims: usize) -> Result<(), OpError> {
        check_list(operands, "stride", &self.stride, dims)?;
        check_list(operands, "dilation", &self.dilation, dims)?;
        check_list(operands, "output_padding", &self.output_padding, dims)?;
        check_list(operands, "padding", &self.padding, 2 * dims)?;
        if self.groups == 0 || self.stride.contains(&0) || self.dilation.contains(&0) {
            return operands.wrong(0, "groups, strides and dilations are positive", "make them at least 1");
        }
        let (more, stride, dilation) =
            (space(&self.output_padding, 0), space(&self.stride, 1), space(&self.dilation, 1));
        let too_much = (0..3).any(|dim| more[dim] > 0 && more[dim] >= stride[dim].max(dilation[dim]));
        if too_much || !self.adjoint && more != [0; 3] {
            let wanted = "output_padding belongs to an adjoint and is below its stride or dilation";
            return operands.wrong(0, wanted, "make `output_padding` smaller or leave it out");
        }
        Ok(())
    }

    /// Channels of the result, if input and weight fit each other.
    fn channels(&self, operands: &Operands<'_>) -> Result<usize, OpError> {
        let (input, weight, groups) = (operands.float(0)?, operands.float(1)?, self.groups);
        if weight.rank() != input.rank() {
            let wanted = format!("its input {input} has {} dimensions", input.rank());
            return operands.wrong(
                1,
                wanted,
                "give the weight two dimensions of channels and one each of space",
            );
        }
        let (first, second) = (weight.dims()[0], weight.dims()[1]);
        if !first.is_multiple_of(groups) {
            let wanted = format!("its first extent {first} must divide into {groups} groups");
            return operands.wrong(1, wanted, "change `groups` or the weight");
        }
        let (taken, given) = if self.adjoint { (first, second * groups) } else { (second * groups, first) };
        if input.last() != taken {
            let wanted = format!("weight {weight} takes {taken} channels in {groups} groups");
            let fix = format!("make the weight take {} channels or the input have {taken}", input.last());
            return operands.wrong(0, wanted, fix);
        }
        Ok(given)
    }

    /// The dimension that is summed forward, as the plan cuts it.
    fn summed(&self, tasks: &dyn LayerTasks, forward: bool) -> Dim {
        let weight = tasks.operand(1).1;
        if self.adjoint != forward {
            return weight.dims()[1];
        }
        let first = weight.dims()[0];
        match self.groups {
            1 => first,
            groups => Dim { size: first.size / groups, degree: 1 },
        }
    }

    fn is_bare(&self, operands: usize) -> bool {
        operands == 2 && self.activation == Activation::None
    }
}

impl Operator for Conv {
    attributes!("conv": stride = Vec::<usize>::new(), dilation = Vec::<usize>::new(),
        padding = Vec::<usize>::new(), groups = 1, adjoint = false,
        output_padding = Vec::<usize>::new(), activation = Activation::None);

    fn slots(&self) -> Slots {
        Slots { needed: &["input", "weight"], optional: &["bias"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let dims = space_dims(operands, "the input of a convolution")?;
        self.check_numbers(operands, dims)?;
        let channels = self.channels(operands)?;
        let (input, weight) = (operands.shape(0), operands.shape(1));
        let axes = self.axes(space(&weight.dims()[2..], 1));
        let more = space(&self.output_padding, 0);
        let mut result = input.with(dims + 1, channels);
        for dim in 0..dims {
            let (axis, extent) = (&axes[3 - dims + dim], input.dims()[1 + dim]);
            let found = match self.adjoint {
                true => axis.extent(extent, more[3 - dims + dim]),
                false => axis.windows(extent),
            };
            let Some(found) = found else {
                let wanted = format!("kernel {weight} does not fit dimension {} with its padding", 1 + dim);
                return operands.wrong(
                    0,
                    wanted,
                    "change the padding, or make the kernel or its dilation smaller",
                );
            };
            result = result.with(1 + dim, found);
        }
        if operands.len() == 3 && operands.float(2)?.dims() != [channels] {
            let wanted = format!("weight {weight} gives {channels} channels");
            return operands.wrong(2, wanted, format!("make it [{channels}]"));
        }
        Ok(vec![TensorType::f32(result)])
    }

    /// A cut of input channels gives partial sums, one of output channels wants copies of x, one of the batch copies of weight
    /// and bias. With several groups both kinds of channels are cut together, between groups. Space is whole.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let dims = operands[0].rank() - 2;
        let (batch, given, taken) = if self.groups == 1 { (1, 2, Some(0)) } else { (0, 1, None) };
        let image = |channels: usize| [vec![Some(batch)], vec![None; dims], vec![Some(channels)]].concat();
        let mut weight = match (taken, self.adjoint) {
            (Some(taken), false) => vec![Some(given), Some(taken)],
            (Some(taken), true) => vec![Some(taken), Some(given)],
            (None, _) => vec![Some(given), None],
        };
        weight.resize(dims + 2, None);
        let slots = [image(taken.unwrap_or(given)), weight, vec![Some(given)]];
        let slots = slots.into_iter().take(operands.len()).collect();
        let mut cuts = Cuts::new(slots, vec![image(given)]).claimed_by([1, 0]);
        let Some(taken) = taken else {
            cuts.blocks = vec![(given, self.groups)];
            return cuts;
        };
        cuts = cuts.contracting();
        cuts.claims.retain(|&(axis, slot, _)| slot == 1 || axis != taken);
        let fix = "apply reduction first, then add the bias and activate";
        let why = ["partial sums take no bias and no activation", fix];
        cuts.refused = (!self.is_bare(operands.len())).then_some((taken, why));
        cuts.wants_copies = Some("a weight cut into {} along its outputs wants {} copies");
        cuts
    }

    fn apart(&self, operands: &[&Shape]) -> Option<Apart> {
        let bias = (operands.len() == 3).then(|| Part {
            op: BinaryOp(Binary::Add).into(),
            operand: Some(2),
            word: "biased",
        });
        let function = (self.activation != Activation::None).then(|| Part {
            op: UnaryOp(Unary::Act(self.activation)).into(),
            operand: None,
            word: "activated",
        });
        let after: Vec<Part> = bias.into_iter().chain(function).collect();
        let sum = Conv { activation: Activation::None, ..self.clone() }.into();
        (!self.is_bare(operands.len())).then_some(Apart { sum, operands: 2, after })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let save_pre = self.activation != Activation::None && tasks.has_backward();
        let summed = self.summed(tasks, true);
        let op = TaskOp::Conv {
            stride: self.stride.clone(),
            dilation: self.dilation.clone(),
            before: halves(&self.padding)[0].clone(),
            adjoint: self.adjoint,
            activation: self.activation,
            bias: tasks.rule().operands.len() == 3,
            residual: false,
            save_pre,
            leaves: tasks.feature_leaves(summed),
            precision: tasks.precision(),
        };
        let (reads, mut writes) = (tasks.reads(), vec![tasks.result(0)]);
        if save_pre {
            let (global, map) = (tasks.output(0).1.global(), tasks.rule().results[0].clone());
            writes.push(tasks.save("pre", &global, map));
        }
        tasks.emit(op, reads, writes);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let (precision, ty) = (tasks.precision(), tasks.output(0).1.clone());
        let dy = match self.activation {
            Activation::None => dy,
            activation => {
                let name = format!("{}.pre.grad", tasks.layer());
                let before = tasks.temp(&name, &ty.dual().global(), dy.map.clone());
                let (kind, rounded) = (Unary::Act(activation), precision.rounds());
                let op = TaskOp::UnaryGrad { kind, accumulate: false, rounded };
                let pre = tasks.kept(0, tasks.rule().results[0].clone());
                tasks.emit(op, vec![pre, dy], vec![before.clone()]);
                before
            }
        };
        let (stride, dilation, adjoint) = (self.stride.clone(), self.dilation.clone(), self.adjoint);
        let [before, _] = halves(&self.padding);
        if tasks.wants(0) {
            let summed = self.summed(tasks, false);
            let (leaves, slope, accumulate) = (tasks.feature_leaves(summed), None, false);
            let (stride, dilation, before) = (stride.clone(), dilation.clone(), before.clone());
            let weight = tasks.read_again(1);
            let op = TaskOp::ConvGradInput {
                stride,
                dilation,
                before,
                adjoint,
                leaves,
                slope,
                accumulate,
                precision,
            };
            tasks.single(0, op, vec![dy.clone(), weight]);
        }
        if tasks.wants(1) {
            let windows = if adjoint { tasks.operand(0).1.clone() } else { ty };
            let (leaves, accumulate) = (tasks.row_leaves(&windows), false);
            let x = tasks.read_again(0);
            let op =
                TaskOp::ConvGradWeight { stride, dilation, before, adjoint, leaves, accumulate, precision };
            tasks.single(1, op, vec![dy.clone(), x]);
        }
        if tasks.rule().operands.len() == 3 {
            tasks.column_sum(2, dy);
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (x, weight) = (operands[0], operands[1]);
        let dims = x.shape.rank() - 2;
        let kernel = Shape::new(&weight.shape.dims()[2..]);
        let axes = self.axes(space(kernel.dims(), 1));
        let axes = &axes[3 - dims..];
        // By the shapes, because a tile has some of the groups.
        let wide = if self.adjoint { results[0].last() } else { x.shape.last() };
        let groups = wide / weight.shape.dims()[1];
        let [inner, outer] = [x.shape.last(), results[0].last()].map(|channels| channels / groups);
        // Along one dimension, the element of x that the result at `at` meets at position `k`.
        let met = |dim: usize, at: usize, k: usize| {
            let ConvAxis { stride, dilation, before, .. } = axes[dim];
            let met = match self.adjoint {
                false => (at * stride + k * dilation).checked_sub(before)?,
                true => {
                    let padded = (at + before).checked_sub(k * dilation)?;
                    padded.is_multiple_of(stride).then_some(padded / stride)?
                }
            };
            (met < x.shape.dims()[1 + dim]).then_some(met)
        };
        vec![Tensor::from_fn(&results[0], |index| {
            let (&channel, place) = index.split_last().expect("an image has channels");
            let (group, own) = (channel / outer, channel % outer);
            let mut sum = operands.get(2).map_or(0.0, |bias| bias.at(&[channel]));
            for position in 0..kernel.elements() {
                let mut rest = position;
                let mut at = vec![0; dims];
                for dim in (0..dims).rev() {
                    at[dim] = rest % kernel.dims()[dim];
                    rest /= kernel.dims()[dim];
                }
                let found: Option<Vec<usize>> =
                    (0..dims).map(|dim| met(dim, place[1 + dim], at[dim])).collect();
                let Some(found) = found else { continue };
                for c in 0..inner {
                    let ends = match self.adjoint {
                        false => [channel, c],
                        true => [group * inner + c, own],
                    };
                    let x = x.at(&[&place[..1], &found, &[group * inner + c]].concat());
                    sum += x * weight.at(&[&ends[..], &at].concat());
                }
            }
            activation(self.activation, sum)
        })]
    }
}
