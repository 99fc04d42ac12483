//! Operators of tasks: what a kernel is asked to do. Sizes are not here; they follow from the buffers.
//!
//! Operators that a lowering pass looks into are typed: one table gives the type, its text form and the parser. Any other name
//! is that of a kernel, which derives its parameters from attributes and shapes and takes its operands in order. Three
//! rules say what the compiler must know of such a call:
//!
//! 1. A name that ends in `_grad` belongs to the backward pass.
//! 2. Its kernel knows `accumulate`: it then adds to its first result instead of overwriting it. So does a kernel that is its
//!    own gradient, marked by `inverse`.
//! 3. An operator with `decay` updates a parameter, and `set_state` a state: it reads all that it writes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::chain::Steps;
use super::mask::Mask;
use crate::text::Attrs;
use crate::{Activation, Binary, Precision, Unary};

macro_rules! move_kinds {
    ($($(#[$meta:meta])* $variant:ident = $word:literal,)*) => {
        /// The usual name of a movement, by its sides.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum MoveKind {$($(#[$meta])* $variant,)*}

        impl fmt::Display for MoveKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(MoveKind::$variant => $word,)* })
            }
        }

        impl FromStr for MoveKind {
            type Err = ();
            fn from_str(word: &str) -> Result<Self, ()> {
                match word { $($word => Ok(MoveKind::$variant),)* _ => Err(()) }
            }
        }
    };
}

move_kinds! {
    /// Not named yet, or none of the others.
    Any = "any",
    /// One tile to one other device, or inside one device.
    Copy = "copy",
    /// One tile to several devices.
    Broadcast = "broadcast",
    /// Parts of one tile to several devices.
    Scatter = "scatter",
    /// Several tiles into one.
    Gather = "gather",
    /// Several tiles into one, on every device.
    AllGather = "all_gather",
    /// Partial sums into one tile.
    Reduce = "reduce",
    /// Partial sums into one tile, on every device.
    AllReduce = "all_reduce",
    /// Partial sums into tiles of the sum.
    ReduceScatter = "reduce_scatter",
    /// Tiles cut one way into tiles cut another way.
    AllToAll = "all_to_all",
}

impl MoveKind {
    /// The name of a movement that adds so many partial sums, from so many different rectangles into so many, with so many
    /// written tiles in all.
    pub fn of(parts: usize, from: usize, into: usize, written: usize) -> MoveKind {
        match (parts > 1, from, into, written) {
            (true, _, 1, 1) => MoveKind::Reduce,
            (true, _, 1, _) => MoveKind::AllReduce,
            (true, ..) => MoveKind::ReduceScatter,
            (false, 1, 1, 1) => MoveKind::Copy,
            (false, 1, 1, _) => MoveKind::Broadcast,
            (false, 1, ..) => MoveKind::Scatter,
            (false, _, 1, 1) => MoveKind::Gather,
            (false, _, 1, _) => MoveKind::AllGather,
            (false, ..) => MoveKind::AllToAll,
        }
    }
}

/// A field of a task operator, as an attribute.
pub(super) trait Field: Sized {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs;
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String>;
}

macro_rules! word_fields {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn put(&self, key: &str, attrs: Attrs) -> Attrs {
                attrs.with(key, self)
            }
            fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
                attrs.take(key)
            }
        }
    )*};
}
word_fields!(usize, i64, Activation, Binary, Unary, MoveKind);

impl Field for bool {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_unless(false, key, *self)
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_or(key, false)
    }
}

impl Field for Precision {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_unless(Precision::F32, key, *self)
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_or(key, Precision::F32)
    }
}

impl Field for Option<Activation> {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        self.iter().fold(attrs, |attrs, activation| attrs.with(key, activation))
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_if(key)
    }
}

impl Field for Vec<usize> {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_list(key, self)
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_list(key)
    }
}

impl fmt::Display for Unary {
    /// The name, each number in parentheses after it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        self.written().try_for_each(|(_, scalar)| write!(f, "({scalar})"))
    }
}

impl FromStr for Unary {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        let (name, scalars) = match word.strip_suffix(')').and_then(|word| word.split_once('(')) {
            Some((name, scalars)) => (name, Some(scalars)),
            None => (word, None),
        };
        let mut scalars = scalars.into_iter().flat_map(|scalars| scalars.split(")("));
        let unary = Unary::from_parts(name, |_, default| match scalars.next() {
            Some(scalar) => scalar.parse().map_err(drop),
            None => default.ok_or(()),
        });
        match scalars.next() {
            None => unary.ok_or(())?,
            Some(_) => Err(()),
        }
    }
}

macro_rules! task_ops {
    ($($(#[$meta:meta])* $variant:ident = $name:literal { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? },)*) => {
        /// What a task computes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum TaskOp {$(
            $(#[$meta])*
            $variant { $($(#[$field_meta])* $field: $type),* },
        )*
            /// What the kernel of this name does with these attributes.
            Call {
                /// The kernel.
                kernel: &'static str,
                /// From which it derives its parameters.
                attrs: Attrs,
            },
        }

        impl TaskOp {
            /// The operator's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(TaskOp::$variant { .. } => $name,)*
                    TaskOp::Call { kernel, .. } => kernel,
                }
            }

            /// The operator's name and attributes as text.
            #[allow(unused_mut, reason = "operators without attributes")]
            pub fn to_text(&self) -> (&'static str, Attrs) {
                match self {$(
                    TaskOp::$variant { $($field),* } => {
                        let mut attrs = Attrs::new();
                        $(attrs = $field.put(stringify!($field), attrs);)*
                        ($name, attrs)
                    }
                )*
                    TaskOp::Call { kernel, attrs } => (kernel, attrs.clone()),
                }
            }

            /// The operator that `name` and `attrs` stand for.
            pub fn from_text(name: &str, mut attrs: Attrs) -> Result<TaskOp, String> {
                let op = match name {
                    $($name => TaskOp::$variant { $($field: Field::take(stringify!($field), &mut attrs)?),* },)*
                    _ => return Ok(TaskOp::Call { kernel: intern(name), attrs }),
                };
                attrs.finish()?;
                Ok(op)
            }
        }
    };
}

task_ops! {
    /// x, weight, \[bias\], \[residual\] -> y, \[pre\]: a linear layer with its epilogue.
    Linear = "linear" {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// Applied to the result.
        activation: Activation,
        /// A bias is read.
        bias: bool,
        /// A tensor like the result is read and added last.
        residual: bool,
        /// The value before the activation is written too.
        save_pre: bool,
        /// Leaves of the sum over input features.
        leaves: usize,
        /// Of the product.
        precision: Precision,
    },
    /// dy, weight, \[points\] -> dx.
    LinearGradInput = "linear_grad_input" {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// Leaves of the sum over output features.
        leaves: usize,
        /// A tensor like dx is read; dx is multiplied by the slope of this function there.
        slope: Option<Activation>,
        /// Adds to dx.
        accumulate: bool,
        /// Of the product.
        precision: Precision,
    },
    /// dy, x -> dweight: dyᵀ·x, or xᵀ·dy if the weight is stored `[in, out]`.
    LinearGradWeight = "linear_grad_weight" {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// Leaves of the sum over rows.
        leaves: usize,
        /// Adds to dweight.
        accumulate: bool,
        /// Of the product.
        precision: Precision,
    },
    /// a, b -> y: batched matrix product.
    Matmul = "matmul" {
        /// The first operand is stored transposed.
        transpose_a: bool,
        /// The second operand is stored transposed.
        transpose_b: bool,
        /// Leaves of the sum.
        leaves: usize,
        /// Adds to y.
        accumulate: bool,
        /// Of the product.
        precision: Precision,
    },
    /// x, weight, \[bias\], \[residual\] -> y, \[pre\]: a convolution, or its adjoint, with its epilogue.
    Conv = "conv" {
        /// Between windows, by dimension of space.
        stride: Vec<usize>,
        /// Between elements of a window.
        dilation: Vec<usize>,
        /// Zeros in front of each dimension.
        before: Vec<usize>,
        /// The adjoint: from windows to what they look at.
        adjoint: bool,
        /// Applied to the result.
        activation: Activation,
        /// A bias is read.
        bias: bool,
        /// A tensor like the result is read and added last.
        residual: bool,
        /// The value before the activation is written too.
        save_pre: bool,
        /// Leaves of the sum over input channels.
        leaves: usize,
        /// Of the product.
        precision: Precision,
    },
    /// dy, weight, \[points\] -> dx of a convolution.
    ConvGradInput = "conv_grad_input" {
        /// Between windows, by dimension of space.
        stride: Vec<usize>,
        /// Between elements of a window.
        dilation: Vec<usize>,
        /// Zeros in front of each dimension.
        before: Vec<usize>,
        /// Of the adjoint convolution.
        adjoint: bool,
        /// Leaves of the sum over output channels.
        leaves: usize,
        /// A tensor like dx is read; dx is multiplied by the slope of this function there.
        slope: Option<Activation>,
        /// Adds to dx.
        accumulate: bool,
        /// Of the product.
        precision: Precision,
    },
    /// dy, x -> dweight of a convolution.
    ConvGradWeight = "conv_grad_weight" {
        /// Between windows, by dimension of space.
        stride: Vec<usize>,
        /// Between elements of a window.
        dilation: Vec<usize>,
        /// Zeros in front of each dimension.
        before: Vec<usize>,
        /// Of the adjoint convolution.
        adjoint: bool,
        /// Leaves of the sum over windows.
        leaves: usize,
        /// Adds to dweight.
        accumulate: bool,
        /// Of the product.
        precision: Precision,
    },
    /// x -> sums of columns: a bias gradient. With `keep`, one sum for each leaf of the batch.
    ColumnSum = "column_sum" {
        /// Leaves of the sum over rows, along the outermost dimension.
        leaves: usize,
        /// Leaves inside each of those along the second of three dimensions.
        inner: usize,
        /// The sums of the outer leaves are kept apart.
        keep: bool,
        /// Adds to the result.
        accumulate: bool,
        /// Elements are rounded to `bf16` before they are added, as by the products that read the same tensor.
        rounded: bool,
    },
    /// x -> y.
    Unary = "unary" {
        /// The function.
        kind: Unary,
    },
    /// x, dy -> dx.
    UnaryGrad = "unary_grad" {
        /// The function.
        kind: Unary,
        /// Adds to dx.
        accumulate: bool,
        /// The slope is taken at x rounded to `bf16`.
        rounded: bool,
    },
    /// a, b -> y, stretched to a common shape.
    Binary = "binary" {
        /// The function.
        kind: Binary,
    },
    /// a, b, dy -> the gradient of one operand, still in the result's shape.
    BinaryGrad = "binary_grad" {
        /// The function.
        kind: Binary,
        /// 0 for a, 1 for b.
        side: usize,
    },
    /// tensors of one size, \[hyper\] -> tensors of that size: element-wise functions in a row.
    Chain = "chain" {
        /// The functions.
        steps: Steps,
        /// Which steps are the results, by slot.
        results: Vec<usize>,
    },
    /// x, hyper -> y, or dy, hyper -> dx: the same mask for the same step.
    Dropout = "dropout" {
        /// Which elements become zero.
        mask: Mask,
        /// Adds to the result.
        accumulate: bool,
    },
    /// x, weight, \[bias\], labels, dloss -> dlogits, negative log-likelihood of each row: a linear layer, its cross
    /// entropy and the gradient of that, without the logits.
    LinearCrossEntropy = "linear_cross_entropy" {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// A bias is read.
        bias: bool,
        /// Leaves of the sum over input features.
        leaves: usize,
        /// Leaves of the sum over classes.
        class_leaves: usize,
        /// The label that leaves a row out.
        ignore: i64,
        /// Of the product.
        precision: Precision,
    },
    /// tiles -> tiles of the same tensors: a written element is the sum, as a balanced tree over the parts, of any one
    /// copy of each part.
    Move = "move" {
        /// What it is called.
        kind: MoveKind,
    },
    /// tiles ->: they may be fetched from now on.
    Send = "send" {
        /// Which movement.
        movement: usize,
    },
    /// tiles, also of other devices -> tiles: the receiving side of a movement.
    Receive = "receive" {
        /// Which movement.
        movement: usize,
    },
}

/// What follows the sum of a forward product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpilogueFlags {
    /// Applied to the sum.
    pub activation: Activation,
    /// A tensor like the result is read and added last.
    pub residual: bool,
    /// The value before the activation is written too.
    pub save_pre: bool,
}

/// How the name of a call of the backward pass ends.
const GRADIENT: &str = "_grad";

/// The attribute that makes an operator add to its first result.
const ACCUMULATE: &str = "accumulate";

/// The attribute of a kernel that is its own gradient.
const INVERSE: &str = "inverse";

/// The attribute of updates.
const DECAY: &str = "decay";

/// The kernel that writes a state.
pub const SET_STATE: &str = "set_state";

/// The name as one that lives as long as the process; equal names are one.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

impl TaskOp {
    /// What the kernel called `kernel` does with these attributes.
    pub fn call(kernel: &'static str, attrs: Attrs) -> TaskOp {
        TaskOp::Call { kernel, attrs }
    }

    /// The attributes, if this is a call of `name`.
    pub fn attrs_of(&self, name: &str) -> Option<&Attrs> {
        match self {
            TaskOp::Call { kernel, attrs } if *kernel == name => Some(attrs),
            _ => None,
        }
    }

    /// Whether written buffer `slot` is also read.
    pub fn reads_write(&self, slot: usize) -> bool {
        let updates =
            matches!(self, TaskOp::Call { kernel, attrs } if attrs.has(DECAY) || *kernel == SET_STATE);
        updates || slot == 0 && self.accumulates() == Some(true)
    }

    /// Whether the operator adds to its first result; `None` if it cannot.
    pub fn accumulates(&self) -> Option<bool> {
        match self {
            TaskOp::Call { kernel, attrs } => {
                let can = kernel.ends_with(GRADIENT) || attrs.is(INVERSE);
                can.then(|| attrs.is(ACCUMULATE))
            }
            _ => self.clone().accumulate_mut().copied(),
        }
    }

    /// Whether the operator belongs to the backward pass, which the first of them begins.
    pub fn is_gradient(&self) -> bool {
        match self {
            TaskOp::LinearGradInput { .. }
            | TaskOp::LinearGradWeight { .. }
            | TaskOp::ConvGradInput { .. }
            | TaskOp::ConvGradWeight { .. }
            | TaskOp::UnaryGrad { .. }
            | TaskOp::BinaryGrad { .. }
            | TaskOp::LinearCrossEntropy { .. } => true,
            TaskOp::Chain { steps, .. } => steps.0.iter().any(|step| step.function.is_gradient()),
            TaskOp::Call { kernel, .. } => kernel.ends_with(GRADIENT),
            _ => false,
        }
    }

    /// This operator, adding to its first result; `None` if it cannot.
    pub fn accumulating(mut self) -> Option<TaskOp> {
        if self.accumulates()? {
            return Some(self);
        }
        if let TaskOp::Call { kernel, attrs } = self {
            return Some(TaskOp::Call { kernel, attrs: attrs.with(ACCUMULATE, true) });
        }
        *self.accumulate_mut()? = true;
        Some(self)
    }

    /// What follows the sum of a forward product; `None` of another operator.
    pub fn epilogue(&self) -> Option<EpilogueFlags> {
        match *self {
            TaskOp::Linear { activation, residual, save_pre, .. }
            | TaskOp::Conv { activation, residual, save_pre, .. } => {
                Some(EpilogueFlags { activation, residual, save_pre })
            }
            _ => None,
        }
    }

    /// Makes this follow the sum of a forward product; leaves another operator alone.
    pub fn set_epilogue(&mut self, flags: EpilogueFlags) {
        if let TaskOp::Linear { activation, residual, save_pre, .. }
        | TaskOp::Conv { activation, residual, save_pre, .. } = self
        {
            (*activation, *residual, *save_pre) = (flags.activation, flags.residual, flags.save_pre);
        }
    }

    /// The function by whose slope a gradient of a product's input is multiplied, and the product's precision; `None` of
    /// another operator.
    pub fn slope(&self) -> Option<(Option<Activation>, Precision)> {
        match *self {
            TaskOp::LinearGradInput { slope, precision, .. }
            | TaskOp::ConvGradInput { slope, precision, .. } => Some((slope, precision)),
            _ => None,
        }
    }

    /// Makes the gradient of a product's input be multiplied by the slope of `function`; leaves another operator alone.
    pub fn set_slope(&mut self, function: Activation) {
        if let TaskOp::LinearGradInput { slope, .. } | TaskOp::ConvGradInput { slope, .. } = self {
            *slope = Some(function);
        }
    }

    fn accumulate_mut(&mut self) -> Option<&mut bool> {
        match self {
            TaskOp::LinearGradInput { accumulate, .. }
            | TaskOp::LinearGradWeight { accumulate, .. }
            | TaskOp::ConvGradInput { accumulate, .. }
            | TaskOp::ConvGradWeight { accumulate, .. }
            | TaskOp::Matmul { accumulate, .. }
            | TaskOp::ColumnSum { accumulate, .. }
            | TaskOp::UnaryGrad { accumulate, .. }
            | TaskOp::Dropout { accumulate, .. } => Some(accumulate),
            _ => None,
        }
    }
}
