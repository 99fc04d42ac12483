//! Shorthands for building models, one a layer kind.

use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ir::{Activation, Binary, OpError, Reduce, Shape, Unary};

use crate::batch_norm::batch_norm;
use crate::experts::experts;
use crate::{
    BatchNormOptions, BinaryOp, CountLabels, CrossEntropy, Linear, MoeLayer, ReduceOp, Reshape, UnaryOp,
};

/// Layers that are added to a model by one call.
///
/// ```
/// use phalanx_ir::{TensorType, graph::Builder, Init};
/// use phalanx_ops::Layers;
/// let mut model = Builder::new("line");
/// let x = model.input("x", TensorType::f32([4, 2]))?;
/// let w = model.param("w", [1, 2], Init::Normal(0.1))?;
/// let y = model.linear("y", x, w, None)?;
/// println!("{}", model.finish([y]));
/// # Ok::<(), phalanx_ir::graph::BuildError>(())
/// ```
pub trait Layers {
    /// x · weightᵀ + bias, the weight stored `[out, in]`.
    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId, BuildError>;

    /// An element-wise function.
    fn unary(&mut self, name: &str, unary: Unary, x: ValueId) -> Result<ValueId, BuildError>;

    /// An element-wise function of two tensors.
    fn binary(&mut self, name: &str, binary: Binary, a: ValueId, b: ValueId) -> Result<ValueId, BuildError>;

    /// The same elements in another shape.
    fn reshape(&mut self, name: &str, x: ValueId, shape: impl Into<Shape>) -> Result<ValueId, BuildError>;

    /// Mean negative log-likelihood of the labels that are not `ignore`.
    fn cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        labels: ValueId,
        ignore: i64,
    ) -> Result<ValueId, BuildError>;

    /// Mean negative log-likelihood of `rows`, logits and labels, where labels are spread evenly over all classes by a share of `smoothing`; with weights
    /// of the classes, their weighted mean.
    fn smooth_cross_entropy(
        &mut self,
        name: &str,
        rows: [ValueId; 2],
        weights: Option<ValueId>,
        loss: CrossEntropy,
    ) -> Result<ValueId, BuildError>;

    /// Mean over rows of the cross entropy between the softmax of `logits` and `labels`, rows of probabilities.
    fn dense_cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        labels: ValueId,
    ) -> Result<ValueId, BuildError>;

    /// The sum, for every row of x `[rows…, width]`, of what its k experts make of it, each times its weight; ids and weights
    /// are `[rows…, k]`.
    fn experts(
        &mut self,
        name: &str,
        x: ValueId,
        routing: [ValueId; 2],
        layer: MoeLayer,
    ) -> Result<ValueId, BuildError>;

    /// Mean of (prediction - target)².
    fn mse(&mut self, name: &str, prediction: ValueId, target: ValueId) -> Result<ValueId, BuildError>;

    /// Batch norm of x `[batch, space…, channels]`, scaled and shifted by the weights `[γ, β]` if there are any. Its running
    /// statistics are the states `name.running_mean` and `name.running_var`.
    fn batch_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weights: Option<[ValueId; 2]>,
        options: BatchNormOptions,
    ) -> Result<ValueId, BuildError>;

    /// The same with running statistics `[mean, variance]` that are states already.
    fn batch_norm_of(
        &mut self,
        name: &str,
        x: ValueId,
        states: [ValueId; 2],
        weights: Option<[ValueId; 2]>,
        options: BatchNormOptions,
    ) -> Result<ValueId, BuildError>;
}

impl Layers for Builder {
    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId, BuildError> {
        let operands: Vec<_> = [x, weight].into_iter().chain(bias).collect();
        self.add_one(name, Linear { transposed: false, activation: Activation::None }, &operands)
    }

    fn unary(&mut self, name: &str, unary: Unary, x: ValueId) -> Result<ValueId, BuildError> {
        self.add_one(name, UnaryOp(unary), &[x])
    }

    fn binary(&mut self, name: &str, binary: Binary, a: ValueId, b: ValueId) -> Result<ValueId, BuildError> {
        self.add_one(name, BinaryOp(binary), &[a, b])
    }

    fn reshape(&mut self, name: &str, x: ValueId, shape: impl Into<Shape>) -> Result<ValueId, BuildError> {
        self.add_one(name, Reshape { shape: shape.into() }, &[x])
    }

    fn cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        labels: ValueId,
        ignore: i64,
    ) -> Result<ValueId, BuildError> {
        self.smooth_cross_entropy(name, [logits, labels], None, CrossEntropy::new(ignore))
    }

    fn smooth_cross_entropy(
        &mut self,
        name: &str,
        [logits, labels]: [ValueId; 2],
        weights: Option<ValueId>,
        loss: CrossEntropy,
    ) -> Result<ValueId, BuildError> {
        let count = CountLabels { ignore: loss.ignore };
        let with = |operands: &[ValueId]| operands.iter().copied().chain(weights).collect::<Vec<_>>();
        let sum = self.add_one(&format!("{name}.sum"), loss, &with(&[logits, labels]))?;
        let count = self.add_one(&format!("{name}.count"), count, &with(&[labels]))?;
        self.binary(name, Binary::Div, sum, count)
    }

    fn batch_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weights: Option<[ValueId; 2]>,
        options: BatchNormOptions,
    ) -> Result<ValueId, BuildError> {
        batch_norm(self, name, x, None, weights, options)
    }

    fn batch_norm_of(
        &mut self,
        name: &str,
        x: ValueId,
        states: [ValueId; 2],
        weights: Option<[ValueId; 2]>,
        options: BatchNormOptions,
    ) -> Result<ValueId, BuildError> {
        batch_norm(self, name, x, Some(states), weights, options)
    }

    fn dense_cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        labels: ValueId,
    ) -> Result<ValueId, BuildError> {
        let dims = self.shape(logits).dims().to_vec();
        let classes = dims.len().saturating_sub(1);
        let rows: usize = dims[..classes].iter().product();
        let over = |kind, keep| ReduceOp { kind, axes: vec![classes], keep };
        // Relative to the largest logit of a row no exponential overflows.
        let largest = self.add_one(&format!("{name}.max"), over(Reduce::Max, true), &[logits])?;
        let relative = self.binary(&format!("{name}.relative"), Binary::Sub, logits, largest)?;
        let exponentials = self.unary(&format!("{name}.exp"), Unary::Exp, relative)?;
        let sum = self.add_one(&format!("{name}.sum"), over(Reduce::Sum, true), &[exponentials])?;
        let log = self.unary(&format!("{name}.log"), Unary::Log, sum)?;
        let losses = self.binary(&format!("{name}.losses"), Binary::Sub, log, relative)?;
        let weighted = self.binary(&format!("{name}.weighted"), Binary::Mul, losses, labels)?;
        let by_row = self.add_one(&format!("{name}.rows"), over(Reduce::Sum, false), &[weighted])?;
        let all = ReduceOp { kind: Reduce::Sum, axes: (0..classes).collect(), keep: false };
        let total = self.add_one(&format!("{name}.total"), all, &[by_row])?;
        self.unary(name, Unary::MulScalar(1.0 / rows as f32), total)
    }

    fn experts(
        &mut self,
        name: &str,
        x: ValueId,
        routing: [ValueId; 2],
        layer: MoeLayer,
    ) -> Result<ValueId, BuildError> {
        experts(self, name, x, routing, layer)
    }

    fn mse(&mut self, name: &str, prediction: ValueId, target: ValueId) -> Result<ValueId, BuildError> {
        if self.shape(prediction) != self.shape(target) {
            let [prediction, target] = [prediction, target].map(|value| self.ty(value).to_string());
            let wanted = format!("it must have the shape of the prediction {prediction}");
            let source =
                OpError { slot: "target".into(), found: target, wanted, fix: "reshape one of them".into() };
            let (layer, op, source) = (name.to_string(), "mse".to_string(), Box::new(source));
            return Err(BuildError::Op { layer, op, source });
        }
        let difference = self.binary(&format!("{name}.difference"), Binary::Sub, prediction, target)?;
        let square = self.unary(&format!("{name}.square"), Unary::Square, difference)?;
        let axes = (0..self.shape(square).rank()).collect();
        self.add_one(name, ReduceOp { kind: Reduce::Mean, axes, keep: false }, &[square])
    }
}
