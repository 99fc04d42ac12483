//! Operators of the model: attributes, slot names, shape rules.
//!
//! `attrs` turns an operator into its text form and back; `infer` holds the shape rules.

mod attrs;
mod infer;

use crate::{DType, Shape};

/// How a parameter's elements are set before the first step, from seed, parameter and element index alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements zero.
    Zeros,
    /// All elements one.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform between minus and plus this bound.
    Uniform(f32),
}

/// A function applied to the output of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// No function.
    None,
    /// max(x, 0).
    Relu,
    /// Gaussian error linear unit, tanh approximation.
    GeluTanh,
    /// Gaussian error linear unit by the error function.
    GeluErf,
    /// x · sigmoid(x).
    Silu,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
}

/// An element-wise function of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// x.
    Identity,
    /// One of the functions a linear layer can apply too.
    Act(Activation),
    /// e^x.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// 1 / square root.
    Rsqrt,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// x if positive, else e^x - 1.
    Elu,
    /// -x.
    Neg,
    /// x².
    Square,
    /// |x|.
    Abs,
    /// x + s.
    AddScalar(f32),
    /// x - s.
    SubScalar(f32),
    /// x · s.
    MulScalar(f32),
    /// x / s.
    DivScalar(f32),
    /// x to the power s.
    PowScalar(f32),
}

/// An element-wise function of two tensors, stretched to a common shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
    /// The larger one.
    Max,
    /// The smaller one.
    Min,
}

/// What a reduction makes of the elements it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest.
    Max,
}

/// An operator of the model with its attributes. Operand slots are named by [`Op::slots`].
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A tensor fed before each step. Its name is the layer's.
    Input,
    /// A trained tensor.
    Param(Init),
    /// A tensor with one value everywhere.
    Constant(f32),
    /// Rows of a table chosen by index; with `bag`, rows chosen by the innermost index dimension are summed.
    Embedding {
        /// Sum over the innermost index dimension.
        bag: bool,
    },
    /// x · weight (+ bias), then an activation. The weight is `[out, in]`, or `[in, out]` if `transposed`.
    Linear {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// Applied to the result.
        activation: Activation,
    },
    /// Matrix product of the two innermost dimensions, batched over the others.
    Matmul {
        /// The first operand is stored transposed.
        transpose_a: bool,
        /// The second operand is stored transposed.
        transpose_b: bool,
    },
    /// An element-wise function of one tensor.
    Unary(Unary),
    /// An element-wise function of two tensors.
    Binary(Binary),
    /// Softmax along one axis.
    Softmax {
        /// The axis that sums to one.
        axis: usize,
    },
    /// Layer normalization over the innermost `axes` dimensions, optionally scaled and shifted.
    LayerNorm {
        /// How many innermost dimensions are normalized together.
        axes: usize,
        /// Added to the variance.
        eps: f32,
    },
    /// Root-mean-square normalization of the innermost dimension.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Rotary position embedding of `[batch, time, heads, dim]`, halves paired.
    Rotary {
        /// The base of the geometric row of frequencies.
        base: f32,
    },
    /// Scaled-dot-product attention on `[batch, time, heads, dim]`; keys and values may have fewer heads.
    Attention {
        /// A query sees no later key.
        causal: bool,
        /// Factor on the scores.
        scale: f32,
    },
    /// The same elements in another shape.
    Reshape(Shape),
    /// Stretched to a larger shape.
    Broadcast(Shape),
    /// Dimensions reordered: output dimension i is input dimension perm\[i\].
    Transpose(Vec<usize>),
    /// Cut along one axis.
    Split {
        /// The axis.
        axis: usize,
        /// The extents of the pieces.
        sizes: Vec<usize>,
        /// The axis is this many equal blocks, each cut in the same proportion; a piece is its part of every block.
        blocks: usize,
    },
    /// Joined along one axis: the inverse of a split.
    Concat {
        /// The axis.
        axis: usize,
        /// How many equal blocks the result has; each is joined from a part of every operand.
        blocks: usize,
    },
    /// Elements joined along some axes.
    Reduce {
        /// What becomes of them.
        kind: Reduce,
        /// The axes that disappear, ascending.
        axes: Vec<usize>,
        /// Reduced axes stay with extent 1.
        keep: bool,
    },
    /// Elements zeroed at random with this probability, the others scaled up; counter-based on the element's index.
    Dropout {
        /// The probability of zero.
        rate: f32,
    },
    /// Another element type.
    Cast(DType),
    /// Sum over rows of -log softmax(logits)\[label\], rows with the ignored label left out.
    CrossEntropy {
        /// The label that leaves a row out.
        ignore: i64,
    },
    /// How many labels are not the ignored one, as a float.
    CountLabels {
        /// The label not counted.
        ignore: i64,
    },
    /// Cuts a dimension into more blocks. Only in parallel graphs, like the next three.
    Repartition {
        /// The dimension.
        dim: usize,
        /// How many times more blocks.
        degree: usize,
    },
    /// Joins blocks of a dimension.
    Combine {
        /// The dimension.
        dim: usize,
        /// How many blocks become one.
        degree: usize,
        /// Joined anew for the backward pass, so that the whole need not be kept.
        again: bool,
    },
    /// Makes copies.
    Replicate {
        /// How many of each.
        degree: usize,
    },
    /// Adds partial sums.
    Reduction {
        /// How many become one.
        degree: usize,
    },
}

/// How many operands an operator takes, and what they are called.
pub struct Slots {
    /// Names of the operands it must have.
    pub needed: &'static [&'static str],
    /// Names of operands that may follow; all or none.
    pub optional: &'static [&'static str],
    /// Whether the last needed operand may repeat.
    pub variadic: bool,
}

impl Op {
    /// The operand slots, in order.
    pub fn slots(&self) -> Slots {
        let fixed = |needed| Slots { needed, optional: &[], variadic: false };
        match self {
            Op::Input | Op::Param(_) | Op::Constant(_) => fixed(&[]),
            Op::Embedding { .. } => fixed(&["input", "weight"]),
            Op::Linear { .. } => Slots { needed: &["input", "weight"], optional: &["bias"], variadic: false },
            Op::Matmul { .. } => fixed(&["a", "b"]),
            Op::Binary(_) => fixed(&["lhs", "rhs"]),
            Op::LayerNorm { .. } => {
                Slots { needed: &["input"], optional: &["gamma", "beta"], variadic: false }
            }
            Op::RmsNorm { .. } => fixed(&["input", "gamma"]),
            Op::Attention { .. } => fixed(&["query", "key", "value"]),
            Op::Concat { .. } => Slots { needed: &["input"], optional: &[], variadic: true },
            Op::CrossEntropy { .. } => fixed(&["logits", "labels"]),
            Op::CountLabels { .. } => fixed(&["labels"]),
            _ => fixed(&["input"]),
        }
    }

    /// The name of operand `index`.
    pub fn slot(&self, index: usize) -> String {
        let slots = self.slots();
        if slots.variadic {
            return format!("{}_{index}", slots.needed[0]);
        }
        slots
            .needed
            .iter()
            .chain(slots.optional)
            .nth(index)
            .map_or_else(|| index.to_string(), |s| s.to_string())
    }

    /// Whether this is one of the four operators that change only how a tensor is tiled.
    pub fn is_parallel(&self) -> bool {
        matches!(
            self,
            Op::Repartition { .. } | Op::Combine { .. } | Op::Replicate { .. } | Op::Reduction { .. }
        )
    }

    /// Whether the operator has no operands.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input | Op::Param(_) | Op::Constant(_))
    }
}
