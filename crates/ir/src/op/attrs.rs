//! Operators and their attributes to and from text. The attributes of an operator are named once, by
//! [`attributes!`](crate::attributes), which gives both directions.

use std::fmt;
use std::str::FromStr;

use super::{
    Activation, Binary, CompareKind, Init, Op, Operators, Pooling, Reduce, Resampling, ScaleFactors, Unary,
};
use crate::tasks::Mask;
use crate::text::Attrs;
use crate::{DType, Precision, Shape};

/// A field of an operator that has a text form.
pub trait Attribute: Sized {
    /// Adds it under `key`.
    fn put(&self, key: &str, attrs: Attrs) -> Attrs;
    /// Takes it from under `key`.
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String>;
}

macro_rules! word_attributes {
    ($($type:ty),*) => {$(
        impl Attribute for $type {
            fn put(&self, key: &str, attrs: Attrs) -> Attrs {
                attrs.with(key, self)
            }
            fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
                attrs.take(key)
            }
        }
    )*};
}
word_attributes!(
    usize,
    u64,
    i64,
    f32,
    f64,
    bool,
    DType,
    Activation,
    Binary,
    CompareKind,
    Resampling,
    Pooling,
    Precision,
    Reduce,
    ScaleFactors,
    Unary,
    Mask
);

/// Absent if there is none; a field of this type has the default `None`.
impl Attribute for Option<i64> {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        self.iter().fold(attrs, |attrs, value| attrs.with(key, value))
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take(key).map(Some)
    }
}

impl Attribute for Vec<usize> {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_list(key, self)
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_list(key)
    }
}

impl Attribute for Shape {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_list(key, self.dims())
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_list(key).map(Shape::new)
    }
}

/// Writes the name and the text of an [`Operator`](crate::Operator) whose fields are its attributes, in the order of the
/// text. A field with a default is left out of the text where it has it. Operands, if it has not just one, are named in
/// parentheses.
///
/// ```text
/// attributes!("split": axis, sizes, blocks = 1);
/// attributes!("gather" (input, index): axis);
/// ```
#[macro_export]
macro_rules! attributes {
    ($name:literal ($($slot:ident),*): $($rest:tt)*) => {
        $crate::attributes!($name: $($rest)*);
        fn slots(&self) -> $crate::Slots {
            $crate::Slots::exactly(&[$(stringify!($slot)),*])
        }
    };
    ($name:literal: $($field:ident $(= $default:expr)?),* $(,)?) => {
        fn names() -> Vec<&'static str> {
            vec![$name]
        }
        fn name(&self) -> &'static str {
            $name
        }
        fn attrs(&self) -> $crate::text::Attrs {
            let attrs = $crate::text::Attrs::new();
            $(let attrs = $crate::attributes!(@put &self.$field, stringify!($field), attrs $(, $default)?);)*
            attrs
        }
        fn parse(_name: &str, attrs: &mut $crate::text::Attrs) -> Result<Self, String> {
            let _ = &attrs;
            Ok(Self { $($field: $crate::attributes!(@take stringify!($field), attrs $(, $default)?)),* })
        }
    };
    (@put $value:expr, $key:expr, $attrs:expr) => { $crate::Attribute::put($value, $key, $attrs) };
    (@put $value:expr, $key:expr, $attrs:expr, $default:expr) => {
        if *$value == $default { $attrs } else { $crate::Attribute::put($value, $key, $attrs) }
    };
    (@take $key:expr, $attrs:expr) => { $crate::Attribute::take($key, $attrs)? };
    (@take $key:expr, $attrs:expr, $default:expr) => {
        if $attrs.has($key) { $crate::Attribute::take($key, $attrs)? } else { $default }
    };
}

/// Implements `Display` and `FromStr` of a fieldless enum from one table.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal,)* }) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
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

            /// The variant's name in texts.
            pub fn word(self) -> &'static str {
                match self { $($type::$variant => $word,)* }
            }
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
words!(CompareKind {
    Eq = "eq",
    Ne = "ne",
    Lt = "lt",
    Le = "le",
    Gt = "gt",
    Ge = "ge",
    And = "and",
    Or = "or",
});
words!(Reduce { Sum = "sum", Mean = "mean", Max = "max", });

impl fmt::Display for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Init::Zeros => write!(f, "zeros"),
            Init::Ones => write!(f, "ones"),
            Init::Constant(value) => write!(f, "constant({value})"),
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
                .or_else(|| argument("constant").map(Init::Constant))
                .ok_or(()),
        }
    }
}

impl Unary {
    /// The operator's name.
    pub fn word(self) -> &'static str {
        match self {
            Unary::Identity => "identity",
            Unary::Act(activation) => activation.word(),
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Elu(_) => "elu",
            Unary::Neg => "neg",
            Unary::Square => "square",
            Unary::Abs => "abs",
            Unary::AddScalar(_) => "add_scalar",
            Unary::SubScalar(_) => "sub_scalar",
            Unary::MulScalar(_) => "mul_scalar",
            Unary::DivScalar(_) => "div_scalar",
            Unary::PowScalar(_) => "pow_scalar",
            Unary::Clamp(..) => "clamp",
            Unary::LeakyRelu(_) => "leaky_relu",
            Unary::Softplus(..) => "softplus",
            Unary::HardSwish => "hard_swish",
            Unary::HardSigmoid => "hard_sigmoid",
            Unary::Erf => "erf",
        }
    }

    /// What texts call its numbers.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Unary::AddScalar(_) | Unary::SubScalar(_) | Unary::MulScalar(_) => &["scalar"],
            Unary::DivScalar(_) | Unary::PowScalar(_) => &["scalar"],
            Unary::Elu(_) => &["alpha"],
            Unary::Clamp(..) => &["low", "high"],
            Unary::LeakyRelu(_) => &["slope"],
            Unary::Softplus(..) => &["beta", "threshold"],
            _ => &[],
        }
    }

    /// Its numbers, as many as it has keys; zeros after them.
    pub fn scalars(self) -> [f32; 2] {
        match self {
            Unary::AddScalar(s) | Unary::SubScalar(s) | Unary::MulScalar(s) => [s, 0.0],
            Unary::DivScalar(s) | Unary::PowScalar(s) | Unary::Elu(s) | Unary::LeakyRelu(s) => [s, 0.0],
            Unary::Clamp(low, high) => [low, high],
            Unary::Softplus(beta, threshold) => [beta, threshold],
            _ => [0.0; 2],
        }
    }

    /// The same function with these numbers.
    pub fn with_scalars(self, [s, t]: [f32; 2]) -> Unary {
        match self {
            Unary::AddScalar(_) => Unary::AddScalar(s),
            Unary::SubScalar(_) => Unary::SubScalar(s),
            Unary::MulScalar(_) => Unary::MulScalar(s),
            Unary::DivScalar(_) => Unary::DivScalar(s),
            Unary::PowScalar(_) => Unary::PowScalar(s),
            Unary::Elu(_) => Unary::Elu(s),
            Unary::LeakyRelu(_) => Unary::LeakyRelu(s),
            Unary::Clamp(..) => Unary::Clamp(s, t),
            Unary::Softplus(..) => Unary::Softplus(s, t),
            plain => plain,
        }
    }

    /// Its numbers as texts have them, by key; none if they are what a text without them means.
    pub fn written(self) -> impl Iterator<Item = (&'static str, f32)> {
        let keys = if self == Unary::Elu(1.0) { &[] } else { self.keys() };
        keys.iter().copied().zip(self.scalars())
    }

    /// Every function, those with numbers with this one; a second number is larger by 2.
    pub fn all(scalar: f32) -> Vec<Unary> {
        use Unary::*;
        let plain =
            [Identity, Exp, Log, Sqrt, Rsqrt, Sin, Cos, Neg, Square, Abs, HardSwish, HardSigmoid, Erf];
        let scalars = [AddScalar, SubScalar, MulScalar, DivScalar, PowScalar, Elu, LeakyRelu];
        let pairs = [Clamp, Softplus].map(|function| function(scalar, scalar + 2.0));
        let activations = Activation::ALL.iter().filter(|&&activation| activation != Activation::None);
        let scalars = scalars.map(|function| function(scalar)).into_iter();
        let activations = activations.map(|&activation| Act(activation));
        plain.into_iter().chain(scalars).chain(pairs).chain(activations).collect()
    }

    /// The function called `name`; `scalar` is asked for each of its numbers, by key and with what it is if a text lacks it.
    pub fn from_parts<E>(
        name: &str,
        mut scalar: impl FnMut(&'static str, Option<f32>) -> Result<f32, E>,
    ) -> Option<Result<Self, E>> {
        let unary = Unary::all(0.0).into_iter().find(|unary| unary.word() == name)?;
        let default = matches!(unary, Unary::Elu(_)).then_some(1.0);
        let mut scalars = [0.0; 2];
        for (place, key) in scalars.iter_mut().zip(unary.keys()) {
            match scalar(key, default) {
                Ok(found) => *place = found,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(unary.with_scalars(scalars)))
    }
}

/// The name of tables. Their elements are read after their type.
pub(crate) const TABLE: &str = "table";

impl Op {
    /// The operator's name and attributes as text.
    pub fn to_text(&self) -> (&'static str, Attrs) {
        let attrs = Attrs::new();
        match self {
            Op::Input => ("input", attrs),
            Op::Param(init) => ("param", attrs.with("init", init)),
            Op::State(init) => ("state", attrs.with("init", init)),
            Op::Constant(value) => ("constant", attrs.with("value", value)),
            Op::Table(table) => (TABLE, table.attrs()),
            Op::Apply(operator) => (operator.name(), operator.attrs()),
            Op::Repartition { dim, degree } => ("repartition", attrs.with("dim", dim).with("degree", degree)),
            Op::Combine { dim, degree, regather } => (
                "combine",
                attrs.with("dim", dim).with("degree", degree).with_unless(false, "regather", *regather),
            ),
            Op::Replicate { degree } => ("replicate", attrs.with("degree", degree)),
            Op::Reduction { degree } => ("reduction", attrs.with("degree", degree)),
        }
    }

    /// The operator that `name` and `attrs` stand for; `operators` are those of the open set. Tables are read by
    /// the graph's parser, which knows the type of their elements.
    pub fn from_text(name: &str, mut attrs: Attrs, operators: &Operators) -> Result<Op, String> {
        let a = &mut attrs;
        let op = match name {
            "input" => Op::Input,
            "param" => Op::Param(a.take("init")?),
            "state" => Op::State(a.take("init")?),
            "constant" => Op::Constant(a.take("value")?),
            "repartition" => Op::Repartition { dim: a.take("dim")?, degree: a.take("degree")? },
            "combine" => Op::Combine {
                dim: a.take("dim")?,
                degree: a.take("degree")?,
                // The name was `again` up to version 0.1.
                regather: a.take_or("regather", false)? | a.take_or("again", false)?,
            },
            "replicate" => Op::Replicate { degree: a.take("degree")? },
            "reduction" => Op::Reduction { degree: a.take("degree")? },
            _ => operators.parse(name, a)?,
        };
        attrs.finish()?;
        Ok(op)
    }
}

impl PartialEq for Op {
    fn eq(&self, other: &Op) -> bool {
        self.to_text() == other.to_text()
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, attrs) = self.to_text();
        write!(f, "{name}{attrs}")
    }
}
