//! Functions of each element.

use phalanx_ir::{Activation, Binary, DType, Op, TensorType, Unary};
use phalanx_ops::{BinaryOp, Cast, UnaryOp};

use crate::Tensor;

/// Methods without arguments, one for each function.
macro_rules! functions {
    ($($(#[doc = $doc:literal])+ $name:ident = $unary:expr;)*) => {
        /// Functions of each element.
        impl Tensor {
            $($(#[doc = $doc])+
            #[track_caller]
            pub fn $name(&self) -> Tensor {
                self.unary(stringify!($name), $unary)
            })*
        }
    };
}

functions! {
    /// max(x, 0).
    relu = Unary::Act(Activation::Relu);
    /// GELU with the error function, PyTorch's default.
    gelu = Unary::Act(Activation::GeluErf);
    /// GELU with tanh in place of the error function, as GPT-2 has it.
    gelu_tanh = Unary::Act(Activation::GeluTanh);
    /// x · sigmoid(x).
    silu = Unary::Act(Activation::Silu);
    /// 1 / (1 + e^-x).
    sigmoid = Unary::Act(Activation::Sigmoid);
    /// The hyperbolic tangent.
    tanh = Unary::Act(Activation::Tanh);
    /// e^x - 1 below zero, x above.
    elu = Unary::Elu(1.0);
    /// clamp(x / 6 + 1/2, 0, 1).
    hard_sigmoid = Unary::HardSigmoid;
    /// x · hard_sigmoid(x).
    hard_swish = Unary::HardSwish;
    /// e^x.
    exp = Unary::Exp;
    /// The natural logarithm.
    log = Unary::Log;
    /// The square root.
    sqrt = Unary::Sqrt;
    /// 1 / √x.
    rsqrt = Unary::Rsqrt;
    /// The sine.
    sin = Unary::Sin;
    /// The cosine.
    cos = Unary::Cos;
    /// x².
    square = Unary::Square;
    /// The absolute value.
    abs = Unary::Abs;
    /// x itself, as a layer of its own.
    identity = Unary::Identity;
}

impl Tensor {
    #[track_caller]
    pub(crate) fn unary(&self, word: &str, unary: Unary) -> Tensor {
        Tensor::op(word, UnaryOp(unary), &[self])
    }

    #[track_caller]
    pub(crate) fn binary(&self, word: &str, kind: Binary, other: &Tensor) -> Tensor {
        Tensor::op(word, BinaryOp(kind), &[self, other])
    }

    /// x to the power of `exponent`.
    #[track_caller]
    pub fn pow(&self, exponent: f32) -> Tensor {
        self.unary("pow", Unary::PowScalar(exponent))
    }

    /// An activation by its value; `Activation::None` adds nothing.
    #[track_caller]
    pub fn activation(&self, activation: Activation) -> Tensor {
        match activation {
            Activation::None => self.clone(),
            other => self.unary(other.word(), Unary::Act(other)),
        }
    }

    /// The larger of two elements.
    #[track_caller]
    pub fn maximum(&self, other: &Tensor) -> Tensor {
        self.binary("maximum", Binary::Max, other)
    }

    /// The smaller of two elements.
    #[track_caller]
    pub fn minimum(&self, other: &Tensor) -> Tensor {
        self.binary("minimum", Binary::Min, other)
    }

    /// Each element between two numbers.
    #[track_caller]
    pub fn clamp(&self, low: f32, high: f32) -> Tensor {
        self.maximum(&self.constant(low)).minimum(&self.constant(high))
    }

    /// Another element type.
    #[track_caller]
    pub fn cast(&self, to: DType) -> Tensor {
        Tensor::op("cast", Cast { to }, &[self])
    }

    /// A number of the model that this tensor belongs to.
    #[track_caller]
    pub(crate) fn constant(&self, value: f32) -> Tensor {
        let line = std::panic::Location::caller();
        let made = self.shared.borrow_mut().add(line, |builder| {
            let leaf = builder.leaf("constant", Op::Constant(value), TensorType::f32([]));
            leaf.map(|value| vec![value]).map_err(|error| error.to_string())
        });
        self.with_id(made.first().copied())
    }
}
