//! Operators of tasks: what a kernel is asked to do. Sizes are not here; they follow from the buffers.
//!
//! One table gives the type, its text form and the parser. Gradient operators that can add to what is already in
//! their first result say so by `accumulate`; without it they overwrite. What operands are called is in `operands`.
//!
//! The set is open: any other name is that of a kernel, which derives its parameters from attributes and shapes and takes
//! its operands in order. If the name ends in `_grad`, the kernel belongs to the backward pass and knows `accumulate`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::chain::Steps;
use super::mask::Mask;
use crate::text::Attrs;
use crate::{Activation, Binary, Reduce, Unary};

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
word_fields!(usize, u64, i64, f32, Activation, Binary, Reduce, Unary, MoveKind);

impl Field for bool {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with_unless(false, key, *self)
    }
    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take_or(key, false)
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
    /// The name, with the scalar in parentheses if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, Some(scalar)) => write!(f, "{name}({scalar})"),
            (name, None) => write!(f, "{name}"),
        }
    }
}

impl FromStr for Unary {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        let (name, scalar) = match word.strip_suffix(')').and_then(|word| word.split_once('(')) {
            Some((name, scalar)) => (name, scalar.parse().map_err(drop)),
            None => (word, Err(())),
        };
        Unary::from_parts(name, || scalar).ok_or(())?
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
    },
    /// dy, x -> dweight: dyᵀ·x, or xᵀ·dy if the weight is stored `[in, out]`.
    LinearGradWeight = "linear_grad_weight" {
        /// The weight is stored `[in, out]`.
        transposed: bool,
        /// Leaves of the sum over rows.
        leaves: usize,
        /// Adds to dweight.
        accumulate: bool,
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
    /// x -> y.
    Reduce = "reduce" {
        /// What becomes of the elements.
        kind: Reduce,
        /// The axes that are joined.
        axes: Vec<usize>,
        /// Leaves of the sum along the first of them.
        leaves: usize,
    },
    /// x, y, dy -> dx.
    ReduceGrad = "reduce_grad" {
        /// What became of the elements.
        kind: Reduce,
        /// The axes that were joined.
        axes: Vec<usize>,
        /// Adds to dx.
        accumulate: bool,
    },
    /// x -> y, stretched.
    Broadcast = "broadcast" {},
    /// x -> y.
    Transpose = "transpose" {
        /// Output dimension i is input dimension perm\[i\].
        perm: Vec<usize>,
    },
    /// x… -> y.
    Concat = "concat" {
        /// The axis.
        axis: usize,
    },
    /// x -> y….
    Split = "split" {
        /// The axis.
        axis: usize,
    },
    /// x -> y, or dy -> dx with the inverse rotation.
    Rotary = "rotary" {
        /// The base of the frequencies.
        base: f32,
        /// Rotates back.
        inverse: bool,
        /// Adds to the result.
        accumulate: bool,
    },
    /// q, k, v -> y, log-sum-exp of the scores.
    Attention = "attention" {
        /// A query sees no later key.
        causal: bool,
        /// Factor on the scores.
        scale: f32,
    },
    /// q, k, v, y, log-sum-exp, dy -> dq, dk, dv.
    AttentionGrad = "attention_grad" {
        /// A query sees no later key.
        causal: bool,
        /// Factor on the scores.
        scale: f32,
    },
    /// ids, table -> y.
    Embedding = "embedding" {
        /// Sum over the innermost index dimension.
        bag: bool,
    },
    /// ids, dy -> dtable.
    EmbeddingGrad = "embedding_grad" {
        /// Sum over the innermost index dimension.
        bag: bool,
        /// Leaves of the sum over rows.
        leaves: usize,
        /// Adds to dtable.
        accumulate: bool,
    },
    /// x, hyper -> y, or dy, hyper -> dx: the same mask for the same step.
    Dropout = "dropout" {
        /// Which elements become zero.
        mask: Mask,
        /// Adds to the result.
        accumulate: bool,
    },
    /// x -> y in the element type of y.
    Cast = "cast" {},
    /// -> y.
    Fill = "fill" {
        /// The value of every element.
        value: f32,
    },
    /// logits, labels -> negative log-likelihood and log-sum-exp of each row.
    CrossEntropy = "cross_entropy" {
        /// The label that leaves a row out.
        ignore: i64,
        /// Leaves of the sum over classes.
        leaves: usize,
    },
    /// logits -> the largest of each row, as a column.
    ClassMax = "class_max" {},
    /// logits, largest of each row -> sum of exp(logit - largest).
    ClassSum = "class_sum" {
        /// Leaves of the sum over classes.
        leaves: usize,
    },
    /// logits, labels -> the label's logit, or -0 where it is not among these classes.
    ClassPick = "class_pick" {},
    /// largest, sum, picked, labels -> negative log-likelihood and log-sum-exp of each row.
    ClassJoin = "class_join" {
        /// The label that leaves a row out.
        ignore: i64,
    },
    /// logits, labels, log-sum-exp, dloss -> dlogits.
    CrossEntropyGrad = "cross_entropy_grad" {
        /// The label that leaves a row out.
        ignore: i64,
        /// Adds to dlogits.
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
    },
    /// labels -> how many count.
    CountLabels = "count_labels" {
        /// The label not counted.
        ignore: i64,
    },
    /// x -> the sum of squares of each leaf, `[row leaves, column leaves]`.
    SumSquares = "sum_squares" {
        /// Leaves along the outermost of several dimensions.
        row_leaves: usize,
        /// Leaves along the innermost dimension.
        col_leaves: usize,
    },
    /// sum of squares -> (norm, factor that clips it).
    ClipScale = "clip_scale" {
        /// The largest norm let through.
        max_norm: f32,
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
    /// gradient, hyper, \[clip\] -> parameter, first and second moment, all updated.
    AdamW = "adamw" {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
        /// Weight decay.
        decay: f32,
        /// Decay acts on the parameter, not on the gradient.
        decoupled: bool,
        /// The gradient is scaled by the clip factor.
        clip: bool,
    },
    /// gradient, hyper, \[clip\] -> parameter, \[velocity\], updated.
    Sgd = "sgd" {
        /// Decay of the velocity; zero for none.
        momentum: f32,
        /// Weight decay.
        decay: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
        /// The gradient is scaled by the clip factor.
        clip: bool,
    },
}

/// How the name of an open operator of the backward pass ends. It can add to its first result.
const GRADIENT: &str = "_grad";

/// The attribute that makes it do so.
const ACCUMULATE: &str = "accumulate";

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
    /// Whether written buffer `slot` is also read.
    pub fn reads_write(&self, slot: usize) -> bool {
        match self {
            TaskOp::AdamW { .. } | TaskOp::Sgd { .. } => true,
            _ => slot == 0 && self.accumulates() == Some(true),
        }
    }

    /// Whether the operator adds to its first result; `None` if it cannot.
    pub fn accumulates(&self) -> Option<bool> {
        if let TaskOp::Call { kernel, attrs } = self {
            return kernel.ends_with(GRADIENT).then(|| attrs.is(ACCUMULATE));
        }
        let mut copy = self.clone();
        copy.accumulate_mut().copied()
    }

    /// Whether the operator belongs to the backward pass, which the first of them begins.
    pub fn is_gradient(&self) -> bool {
        match self {
            TaskOp::LinearGradInput { .. }
            | TaskOp::LinearGradWeight { .. }
            | TaskOp::UnaryGrad { .. }
            | TaskOp::BinaryGrad { .. }
            | TaskOp::ReduceGrad { .. }
            | TaskOp::AttentionGrad { .. }
            | TaskOp::EmbeddingGrad { .. }
            | TaskOp::CrossEntropyGrad { .. }
            | TaskOp::LinearCrossEntropy { .. } => true,
            TaskOp::Chain { steps, .. } => steps.0.iter().any(|step| step.function.is_gradient()),
            TaskOp::Call { kernel, .. } => kernel.ends_with(GRADIENT),
            _ => false,
        }
    }

    /// This operator, adding to its first result; `None` if it cannot.
    pub fn accumulating(mut self) -> Option<TaskOp> {
        if let TaskOp::Call { kernel, attrs } = self {
            let is_set = attrs.is(ACCUMULATE);
            let attrs = if is_set { attrs } else { attrs.with(ACCUMULATE, true) };
            return kernel.ends_with(GRADIENT).then_some(TaskOp::Call { kernel, attrs });
        }
        *self.accumulate_mut()? = true;
        Some(self)
    }

    fn accumulate_mut(&mut self) -> Option<&mut bool> {
        match self {
            TaskOp::LinearGradInput { accumulate, .. }
            | TaskOp::LinearGradWeight { accumulate, .. }
            | TaskOp::Matmul { accumulate, .. }
            | TaskOp::ColumnSum { accumulate, .. }
            | TaskOp::UnaryGrad { accumulate, .. }
            | TaskOp::ReduceGrad { accumulate, .. }
            | TaskOp::Rotary { accumulate, .. }
            | TaskOp::EmbeddingGrad { accumulate, .. }
            | TaskOp::Dropout { accumulate, .. }
            | TaskOp::CrossEntropyGrad { accumulate, .. } => Some(accumulate),
            _ => None,
        }
    }
}
