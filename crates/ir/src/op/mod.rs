//! Operators of the model.
//!
//! A few kinds are part of the language: leaves and the four parallel operators. All others are
//! objects that implement [`Operator`]; those of this project are in the crate `ops`, and the set is open.

mod attrs;
mod cuts;
mod infer;
mod operator;
mod rope;
mod space;
mod tasks;

use std::sync::Arc;

use crate::Table;

pub use attrs::Attribute;
pub(crate) use attrs::TABLE;
pub use cuts::{Cuts, Dims, each};
pub use infer::Operands;
pub use operator::{Apart, IndexBound, Operator, Operators, Part, Slots};
pub use rope::RopeScaling;
pub use space::{ConvAxis, MAX_SPACE, PoolAxis, Pooling, Resampling, ResizeAxis, ScaleFactors, Space, space};
pub use tasks::{LayerTasks, RowLeaves, RowSum, fill_task, reduce_task};

/// How the elements of a parameter or state are set before the first step, from seed, tensor and element index alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements zero.
    Zeros,
    /// All elements one.
    Ones,
    /// All elements this number.
    Constant(f32),
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
    /// x if positive, else α (e^x - 1).
    Elu(f32),
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
    /// x limited to a..b; b if a is greater. The slope is 0 from the bounds on.
    Clamp(f32, f32),
    /// x if positive, else s · x.
    LeakyRelu(f32),
    /// ln(1 + e^βx) / β, and x where βx exceeds θ.
    Softplus(f32, f32),
    /// x · HardSigmoid(x). The slope at -3 is 0, that at 3 is 1.
    HardSwish,
    /// (x + 3) / 6 limited to 0..1. The slope is 0 from the bounds on.
    HardSigmoid,
    /// The error function.
    Erf,
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

/// A comparison of two elements, or a function of two truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareKind {
    /// a = b.
    Eq,
    /// a ≠ b; true if one is NaN.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
    /// Both are true.
    And,
    /// One or both are true.
    Or,
}

impl CompareKind {
    /// Whether it takes truth values.
    pub fn is_logical(self) -> bool {
        matches!(self, CompareKind::And | CompareKind::Or)
    }

    /// Whether it holds; true is what differs from the default.
    #[inline(always)]
    pub fn holds<T: PartialOrd + Default>(self, a: T, b: T) -> bool {
        match self {
            CompareKind::Eq => a == b,
            CompareKind::Ne => a != b,
            CompareKind::Lt => a < b,
            CompareKind::Le => a <= b,
            CompareKind::Gt => a > b,
            CompareKind::Ge => a >= b,
            CompareKind::And => a != T::default() && b != T::default(),
            CompareKind::Or => a != T::default() || b != T::default(),
        }
    }
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

/// What a layer computes.
#[derive(Clone)]
pub enum Op {
    /// A tensor fed before each step. Its name is the layer's.
    Input,
    /// A trained tensor.
    Param(Init),
    /// A tensor kept between steps and not trained: an update of the graph writes it at the end of a step.
    State(Init),
    /// A tensor with one value everywhere.
    Constant(f32),
    /// A tensor with these elements.
    Table(Table),
    /// An operator of the open set.
    Apply(Arc<dyn Operator>),
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
        regather: bool,
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

impl<O: Operator> From<O> for Op {
    fn from(operator: O) -> Self {
        Op::Apply(Arc::new(operator))
    }
}

impl Op {
    /// The operator of the open set that this is.
    pub fn operator(&self) -> Option<&dyn Operator> {
        match self {
            Op::Apply(operator) => Some(&**operator),
            _ => None,
        }
    }

    /// The operator as an `O`, if it is one.
    pub fn get<O: Operator>(&self) -> Option<&O> {
        let any: &dyn std::any::Any = self.operator()?;
        any.downcast_ref()
    }

    /// The operand slots, in order.
    pub fn slots(&self) -> Slots {
        match self {
            Op::Apply(operator) => operator.slots(),
            _ if self.is_leaf() => Slots::exactly(&[]),
            _ => Slots::exactly(&["input"]),
        }
    }

    /// The name of operand `index`.
    pub fn slot(&self, index: usize) -> String {
        self.slots().name(index)
    }

    /// Whether this is one of the four operators that change only how a tensor is tiled.
    pub fn is_parallel(&self) -> bool {
        !self.is_leaf() && self.operator().is_none()
    }

    /// Whether this is a leaf of the language: it has no operands, and its type is given.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input | Op::Param(_) | Op::State(_) | Op::Constant(_) | Op::Table(_))
    }

    /// Whether the operator has no operands: a leaf, or one of the open set that takes none. It may be tiled in any way.
    pub fn is_source(&self) -> bool {
        self.is_leaf() || self.operator().is_some_and(|operator| operator.slots().needed.is_empty())
    }

    /// Whether the host sets the tensor before the first step and it then lives across steps: parameters and states.
    pub fn is_weight(&self) -> bool {
        matches!(self, Op::Param(_) | Op::State(_))
    }
}
