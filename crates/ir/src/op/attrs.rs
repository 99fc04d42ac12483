//! Operators to and from their text form. A flat table in two directions; tests hold them together.

use std::fmt;
use std::str::FromStr;

use super::{Activation, Binary, Init, Op, Reduce, Unary};
use crate::Shape;
use crate::text::Attrs;

/// Implements `Display` and `FromStr` of a fieldless enum from one table.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal,)* }) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $word,)* })
            }
        }
        impl FromStr for $type {
            type Err = ();
            fn from_str(word: &str) -> Result<Self, ()> {
                match word { $($word => Ok($type::$variant),)* _ => Err(()) }
            }
        }
        impl $type {
            /// Every variant.
            pub const ALL: &[Self] = &[$($type::$variant),*];
        }
    };
}

words!(Activation {
    None = "none",
    Relu = "relu",
    GeluTanh = "gelu_tanh",
    GeluErf = "gelu_erf",
    Silu = "silu",
    Sigmoid = "sigmoid",
    Tanh = "tanh",
});
words!(Binary { Add = "add", Sub = "sub", Mul = "mul", Div = "div", Max = "max", Min = "min", });
words!(Reduce { Sum = "sum", Mean = "mean", Max = "max", });

impl fmt::Display for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Init::Zeros => write!(f, "zeros"),
            Init::Ones => write!(f, "ones"),
            Init::Normal(std) => write!(f, "normal({std})"),
            Init::Uniform(bound) => write!(f, "uniform({bound})"),
        }
    }
}

impl FromStr for Init {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        let argument = |prefix: &str| {
            let inner = word.strip_prefix(prefix)?.strip_prefix('(')?.strip_suffix(')')?;
            inner.parse::<f32>().ok()
        };
        match word {
            "zeros" => Ok(Init::Zeros),
            "ones" => Ok(Init::Ones),
            _ => argument("normal")
                .map(Init::Normal)
                .or_else(|| argument("uniform").map(Init::Uniform))
                .ok_or(()),
        }
    }
}

impl Unary {
    /// The operator's name and its scalar, if it has one.
    pub fn parts(self) -> (String, Option<f32>) {
        let plain = |name: &str| (name.to_string(), None);
        match self {
            Unary::Identity => plain("identity"),
            Unary::Act(activation) => (activation.to_string(), None),
            Unary::Exp => plain("exp"),
            Unary::Log => plain("log"),
            Unary::Sqrt => plain("sqrt"),
            Unary::Rsqrt => plain("rsqrt"),
            Unary::Sin => plain("sin"),
            Unary::Cos => plain("cos"),
            Unary::Elu => plain("elu"),
            Unary::Neg => plain("neg"),
            Unary::Square => plain("square"),
            Unary::Abs => plain("abs"),
            Unary::AddScalar(s) => ("add_scalar".to_string(), Some(s)),
            Unary::SubScalar(s) => ("sub_scalar".to_string(), Some(s)),
            Unary::MulScalar(s) => ("mul_scalar".to_string(), Some(s)),
            Unary::DivScalar(s) => ("div_scalar".to_string(), Some(s)),
            Unary::PowScalar(s) => ("pow_scalar".to_string(), Some(s)),
        }
    }

    /// The function called `name`; `scalar` is asked for only if it takes one.
    pub fn from_parts<E>(name: &str, scalar: impl FnOnce() -> Result<f32, E>) -> Option<Result<Self, E>> {
        let plain = match name {
            "identity" => Unary::Identity,
            "exp" => Unary::Exp,
            "log" => Unary::Log,
            "sqrt" => Unary::Sqrt,
            "rsqrt" => Unary::Rsqrt,
            "sin" => Unary::Sin,
            "cos" => Unary::Cos,
            "elu" => Unary::Elu,
            "neg" => Unary::Neg,
            "square" => Unary::Square,
            "abs" => Unary::Abs,
            "add_scalar" => return Some(scalar().map(Unary::AddScalar)),
            "sub_scalar" => return Some(scalar().map(Unary::SubScalar)),
            "mul_scalar" => return Some(scalar().map(Unary::MulScalar)),
            "div_scalar" => return Some(scalar().map(Unary::DivScalar)),
            "pow_scalar" => return Some(scalar().map(Unary::PowScalar)),
            _ => match name.parse() {
                Ok(Activation::None) | Err(()) => return None,
                Ok(activation) => Unary::Act(activation),
            },
        };
        Some(Ok(plain))
    }
}

impl Op {
    /// The operator's name and attributes as text.
    pub fn to_text(&self) -> (String, Attrs) {
        let attrs = Attrs::new();
        let (name, attrs) = match self {
            Op::Input => ("input", attrs),
            Op::Param(init) => ("param", attrs.with("init", init)),
            Op::Constant(value) => ("constant", attrs.with("value", value)),
            Op::Embedding { bag } => ("embedding", attrs.with_unless(false, "bag", *bag)),
            Op::Linear { transposed, activation } => (
                "linear",
                attrs.with_unless(false, "transposed", *transposed).with_unless(
                    Activation::None,
                    "activation",
                    *activation,
                ),
            ),
            Op::Matmul { transpose_a, transpose_b } => (
                "matmul",
                attrs.with_unless(false, "transpose_a", *transpose_a).with_unless(
                    false,
                    "transpose_b",
                    *transpose_b,
                ),
            ),
            Op::Unary(unary) => {
                let (name, scalar) = unary.parts();
                return (name, scalar.map_or(attrs.clone(), |s| attrs.with("scalar", s)));
            }
            Op::Binary(binary) => return (binary.to_string(), attrs),
            Op::Softmax { axis } => ("softmax", attrs.with("axis", axis)),
            Op::LayerNorm { axes, eps } => {
                ("layer_norm", attrs.with_unless(1, "axes", *axes).with("eps", eps))
            }
            Op::RmsNorm { eps } => ("rms_norm", attrs.with("eps", eps)),
            Op::Rotary { base } => ("rotary", attrs.with("base", base)),
            Op::Attention { causal, scale } => {
                ("attention", attrs.with("causal", causal).with("scale", scale))
            }
            Op::Reshape(shape) => ("reshape", attrs.with_list("shape", shape.dims())),
            Op::Broadcast(shape) => ("broadcast", attrs.with_list("shape", shape.dims())),
            Op::Transpose(perm) => ("transpose", attrs.with_list("perm", perm)),
            Op::Split { axis, sizes, blocks } => {
                let attrs = attrs.with("axis", axis).with_list("sizes", sizes);
                ("split", attrs.with_unless(1, "blocks", *blocks))
            }
            Op::Concat { axis, blocks } => {
                ("concat", attrs.with("axis", axis).with_unless(1, "blocks", *blocks))
            }
            Op::Reduce { kind, axes, keep } => {
                ("reduce", attrs.with("kind", kind).with_list("axes", axes).with_unless(false, "keep", *keep))
            }
            Op::Dropout { rate } => ("dropout", attrs.with("rate", rate)),
            Op::Cast(dtype) => ("cast", attrs.with("to", dtype)),
            Op::CrossEntropy { ignore } => ("cross_entropy", attrs.with("ignore", ignore)),
            Op::CountLabels { ignore } => ("count_labels", attrs.with("ignore", ignore)),
            Op::Repartition { dim, degree } => ("repartition", attrs.with("dim", dim).with("degree", degree)),
            Op::Combine { dim, degree, again } => {
                ("combine", attrs.with("dim", dim).with("degree", degree).with_unless(false, "again", *again))
            }
            Op::Replicate { degree } => ("replicate", attrs.with("degree", degree)),
            Op::Reduction { degree } => ("reduction", attrs.with("degree", degree)),
        };
        (name.to_string(), attrs)
    }

    /// The operator that `name` and `attrs` stand for.
    pub fn from_text(name: &str, mut attrs: Attrs) -> Result<Op, String> {
        let a = &mut attrs;
        let op = match name {
            "input" => Op::Input,
            "param" => Op::Param(a.take("init")?),
            "constant" => Op::Constant(a.take("value")?),
            "embedding" => Op::Embedding { bag: a.take_or("bag", false)? },
            "linear" => Op::Linear {
                transposed: a.take_or("transposed", false)?,
                activation: a.take_or("activation", Activation::None)?,
            },
            "matmul" => Op::Matmul {
                transpose_a: a.take_or("transpose_a", false)?,
                transpose_b: a.take_or("transpose_b", false)?,
            },
            "softmax" => Op::Softmax { axis: a.take("axis")? },
            "layer_norm" => Op::LayerNorm { axes: a.take_or("axes", 1)?, eps: a.take("eps")? },
            "rms_norm" => Op::RmsNorm { eps: a.take("eps")? },
            "rotary" => Op::Rotary { base: a.take("base")? },
            "attention" => Op::Attention { causal: a.take("causal")?, scale: a.take("scale")? },
            "reshape" => Op::Reshape(Shape::new(a.take_list("shape")?)),
            "broadcast" => Op::Broadcast(Shape::new(a.take_list("shape")?)),
            "transpose" => Op::Transpose(a.take_list("perm")?),
            "split" => Op::Split {
                axis: a.take("axis")?,
                sizes: a.take_list("sizes")?,
                blocks: a.take_or("blocks", 1)?,
            },
            "concat" => Op::Concat { axis: a.take("axis")?, blocks: a.take_or("blocks", 1)? },
            "reduce" => Op::Reduce {
                kind: a.take("kind")?,
                axes: a.take_list("axes")?,
                keep: a.take_or("keep", false)?,
            },
            "dropout" => Op::Dropout { rate: a.take("rate")? },
            "cast" => Op::Cast(a.take("to")?),
            "cross_entropy" => Op::CrossEntropy { ignore: a.take("ignore")? },
            "count_labels" => Op::CountLabels { ignore: a.take("ignore")? },
            "repartition" => Op::Repartition { dim: a.take("dim")?, degree: a.take("degree")? },
            "combine" => Op::Combine {
                dim: a.take("dim")?,
                degree: a.take("degree")?,
                again: a.take_or("again", false)?,
            },
            "replicate" => Op::Replicate { degree: a.take("degree")? },
            "reduction" => Op::Reduction { degree: a.take("degree")? },
            _ => match (name.parse(), Unary::from_parts(name, || a.take("scalar"))) {
                (Ok(binary), _) => Op::Binary(binary),
                (_, Some(unary)) => Op::Unary(unary?),
                _ => return Err(format!("unknown operator `{name}`")),
            },
        };
        attrs.finish()?;
        Ok(op)
    }
}
