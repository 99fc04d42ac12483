//! Which kernel a task becomes, and with which parameters. Sizes come from the buffers. One flat table.

use std::borrow::Cow;

use phalanx_ir::tasks::{
    BufferId, Function, Mask, Source, Step, Steps, Task, TaskGraph, TaskId, TaskOp, TaskView,
};
use phalanx_ir::text::Attrs;
use phalanx_ir::{Activation, Binary, DType, Reduce, Shape, TensorType, Unary};
use phalanx_kernels as k;
use phalanx_kernels::unary::UnaryKind;
use phalanx_program::{MAX_SLICES, RECEIVE};

use super::dropout::{Masked, Walk};
use super::{EmitError, bind};

/// A kernel, its parameter words, and the buffers it works on in the order in which it takes them.
pub struct Choice<'a> {
    pub kernel: &'static str,
    pub words: Vec<u64>,
    pub reads: Cow<'a, [BufferId]>,
    pub writes: Cow<'a, [BufferId]>,
}

impl<'a> Choice<'a> {
    /// A movement of the task's buffers, which the runtime executes.
    pub fn movement(task: &'a Task, words: Vec<u64>) -> Choice<'a> {
        Choice { kernel: RECEIVE, words, reads: (&task.reads).into(), writes: (&task.writes).into() }
    }
}

/// The kernel of a task. Movements have none.
pub fn select(tasks: &TaskGraph, id: TaskId) -> Result<Choice<'_>, EmitError> {
    let task = &tasks.tasks[id];
    if let TaskOp::Move { .. } | TaskOp::Send { .. } | TaskOp::Receive { .. } = task.op {
        return Ok(Choice::movement(task, Vec::new()));
    }
    let found = task.reads.len().max(task.writes.len());
    if found > MAX_SLICES {
        return Err(EmitError::TooMany { layer: task.layer.to_string(), found });
    }
    if let TaskOp::Call { kernel, attrs } = &task.op {
        return call(tasks, task, kernel, attrs);
    }
    let names = bind::named(task)?;
    let sizes = Sizes { tasks, task };
    let (kernel, words) = match &task.op {
        TaskOp::Dropout { mask, accumulate } => {
            let (n, accumulate, mask) = (sizes.write(0).elements(), *accumulate, sizes.mask(*mask)?);
            ("dropout", k::dropout::DropoutParams { n, accumulate, mask }.to_words())
        }
        TaskOp::Chain { steps, results } => ("chain", sizes.chain(steps, results)?.to_words()),
        _ => sizes.choose(),
    };
    bind::bind(task, names, kernel, words)
}

/// The kernel that a task of the open set names, on the task's buffers in their order.
fn call<'a>(
    tasks: &TaskGraph,
    task: &'a Task,
    name: &'static str,
    attrs: &Attrs,
) -> Result<Choice<'a>, EmitError> {
    let wrong = |reason: String| EmitError::Call { layer: task.layer.to_string(), kernel: name, reason };
    let kernel = k::table::find(name).ok_or_else(|| wrong("there is no such kernel".into()))?;
    let params = kernel.task.ok_or_else(|| wrong("it is not called by its name".into()))?;
    let words = params(&TaskView::new(tasks, task, attrs)).map_err(wrong)?;
    let slots = (kernel.arguments)(&words);
    if (slots.reads.len(), slots.writes.len()) != (task.reads.len(), task.writes.len()) {
        return Err(wrong(format!("it takes {slots:?}")));
    }
    Ok(Choice { kernel: name, words, reads: (&task.reads).into(), writes: (&task.writes).into() })
}

struct Sizes<'a> {
    tasks: &'a TaskGraph,
    task: &'a Task,
}

impl Sizes<'_> {
    fn ty(&self, buffer: BufferId) -> &TensorType {
        &self.tasks.buffers[buffer].ty
    }

    fn read(&self, slot: usize) -> &Shape {
        &self.ty(self.task.reads[slot]).shape
    }

    fn write(&self, slot: usize) -> &Shape {
        &self.ty(self.task.writes[slot]).shape
    }

    fn is_i32(&self, slot: usize) -> bool {
        self.ty(self.task.reads[slot]).dtype == DType::I32
    }

    fn choose(&self) -> (&'static str, Vec<u64>) {
        match &self.task.op {
            TaskOp::Linear { .. }
            | TaskOp::LinearGradInput { .. }
            | TaskOp::LinearGradWeight { .. }
            | TaskOp::Matmul { .. } => ("matmul", self.matmul().to_words()),
            TaskOp::ColumnSum { leaves, inner, keep, accumulate } => {
                let cols = self.write(0).elements() / if *keep { *leaves } else { 1 };
                let (outer, time) = k::rows::outer_and_time(self.read(0), self.read(0).elements() / cols);
                let (leaves, inner, keep, accumulate) = (*leaves, *inner, *keep, *accumulate);
                let params = k::column_sum::ColumnSum { outer, time, cols, leaves, inner, keep, accumulate };
                ("column_sum", params.to_words())
            }
            TaskOp::Unary { kind } => {
                let (kind, scalar) = unary(*kind);
                ("unary", k::unary::UnaryParams { n: self.write(0).elements(), kind, scalar }.to_words())
            }
            TaskOp::UnaryGrad { kind, accumulate } => {
                let (kind, scalar) = unary(*kind);
                let n = self.write(0).elements();
                let params = k::unary::UnaryGradParams { n, kind, scalar, accumulate: *accumulate };
                ("unary_grad", params.to_words())
            }
            TaskOp::Binary { kind } => {
                let params = k::binary::BinaryParams { kind: binary(*kind), broadcast: self.broadcast() };
                ("binary", params.to_words())
            }
            TaskOp::BinaryGrad { kind, side } => {
                let (kind, side, broadcast) = (binary(*kind), *side, self.broadcast());
                ("binary_grad", k::binary::BinaryGradParams { kind, side, broadcast }.to_words())
            }
            TaskOp::Reduce { kind, axes, leaves } => {
                let params = k::reduce::ReduceParams::new(reduce(*kind), *leaves, self.read(0).dims(), axes);
                ("reduce", params.to_words())
            }
            TaskOp::ReduceGrad { kind, axes, accumulate } => {
                let forward = k::reduce::ReduceParams::new(reduce(*kind), 1, self.write(0).dims(), axes);
                ("reduce_grad", k::reduce::ReduceGradParams { forward, accumulate: *accumulate }.to_words())
            }
            TaskOp::Broadcast {} => {
                let params = k::broadcast::BroadcastParams::new(self.read(0).dims(), self.write(0).dims());
                ("broadcast", params.to_words())
            }
            TaskOp::Transpose { perm } => {
                let bytes = self.ty(self.task.reads[0]).dtype.bytes();
                ("transpose", k::transpose::TransposeParams::new(bytes, self.read(0).dims(), perm).to_words())
            }
            TaskOp::Concat { axis } => ("concat", self.pieces(*axis, &self.task.reads)),
            TaskOp::Split { axis } => ("split", self.pieces(*axis, &self.task.writes)),
            TaskOp::Rotary { base, inverse, accumulate } => {
                let [batch, time, heads, dim] = four(self.read(0));
                let (first, base, inverse) = (self.origin(self.task.reads[0], 1), *base, *inverse);
                let accumulate = *accumulate;
                let params = k::rotary::Rotary { batch, time, first, heads, dim, base, inverse, accumulate };
                ("rotary", params.to_words())
            }
            TaskOp::Attention { causal, scale } => {
                ("attention", self.attention(self.write(0), *causal, *scale).to_words())
            }
            TaskOp::AttentionGrad { causal, scale } => {
                ("attention_grad", self.attention(self.read(3), *causal, *scale).to_words())
            }
            TaskOp::Embedding { .. } => {
                let (n, cols, vocab) = (self.write(0).rows(), self.write(0).last(), self.read(1).dims()[0]);
                let (bag, ids_i32) = (self.read(0).elements() / n, self.is_i32(0));
                let first = self.origin(self.task.reads[1], 0);
                ("embedding", k::embedding::Embedding { n, cols, vocab, bag, ids_i32, first }.to_words())
            }
            TaskOp::EmbeddingGrad { leaves, accumulate, .. } => {
                let (n, cols, vocab) = (self.read(1).rows(), self.read(1).last(), self.write(0).dims()[0]);
                let (bag, ids_i32) = (self.read(0).elements() / n, self.is_i32(0));
                let (leaves, accumulate) = (*leaves, *accumulate);
                let first = self.origin(self.task.writes[0], 0);
                let params =
                    k::embedding::EmbeddingGrad { n, cols, vocab, bag, ids_i32, leaves, accumulate, first };
                ("embedding_grad", params.to_words())
            }
            TaskOp::Cast {} => {
                let n = self.write(0).elements();
                let from = cast(self.ty(self.task.reads[0]).dtype);
                let to = cast(self.ty(self.task.writes[0]).dtype);
                ("cast", k::cast::CastParams { n, from, to }.to_words())
            }
            TaskOp::Fill { value } => {
                ("fill", k::fill::FillParams { n: self.write(0).elements(), value: *value }.to_words())
            }
            TaskOp::CrossEntropy { ignore, leaves } => {
                let (rows, classes) = (self.read(0).rows(), self.read(0).last());
                let (ignore_index, labels_i32, leaves) = (*ignore, self.is_i32(1), *leaves);
                let params =
                    k::cross_entropy::CrossEntropy { rows, classes, ignore_index, labels_i32, leaves };
                ("cross_entropy", params.to_words())
            }
            TaskOp::ClassMax {} => {
                let (rows, classes) = (self.read(0).rows(), self.read(0).last());
                ("class_max", k::cross_entropy::ClassMax { rows, classes }.to_words())
            }
            TaskOp::ClassSum { leaves } => {
                let (rows, classes, leaves) = (self.read(0).rows(), self.read(0).last(), *leaves);
                ("class_sum", k::cross_entropy::ClassSum { rows, classes, leaves }.to_words())
            }
            TaskOp::ClassPick {} => {
                let (rows, classes) = (self.read(0).rows(), self.read(0).last());
                let (first, labels_i32) = (self.first_class(), self.is_i32(1));
                ("class_pick", k::cross_entropy::ClassPick { rows, classes, first, labels_i32 }.to_words())
            }
            TaskOp::ClassJoin { ignore } => {
                let (rows, ignore_index, labels_i32) = (self.write(0).elements(), *ignore, self.is_i32(3));
                ("class_join", k::cross_entropy::ClassJoin { rows, ignore_index, labels_i32 }.to_words())
            }
            TaskOp::CrossEntropyGrad { ignore, accumulate } => {
                let (rows, classes) = (self.read(0).rows(), self.read(0).last());
                let (ignore_index, labels_i32, accumulate) = (*ignore, self.is_i32(1), *accumulate);
                let params = k::cross_entropy::CrossEntropyGrad {
                    rows,
                    classes,
                    ignore_index,
                    labels_i32,
                    accumulate,
                    first: self.first_class(),
                };
                ("cross_entropy_grad", params.to_words())
            }
            TaskOp::LinearCrossEntropy { transposed, bias, leaves, class_leaves, ignore } => {
                let labels = 2 + usize::from(*bias);
                let params = k::cross_entropy::LinearCrossEntropy {
                    rows: self.read(labels).elements(),
                    classes: self.write(0).last(),
                    features: self.read(0).last(),
                    transposed: *transposed,
                    bias: *bias,
                    leaves: *leaves,
                    class_leaves: *class_leaves,
                    ignore_index: *ignore,
                    labels_i32: self.is_i32(labels),
                };
                ("linear_cross_entropy", params.to_words())
            }
            TaskOp::CountLabels { ignore } => {
                let (n, ignore_index, labels_i32) = (self.read(0).elements(), *ignore, self.is_i32(0));
                ("count_labels", k::cross_entropy::CountLabels { n, ignore_index, labels_i32 }.to_words())
            }
            TaskOp::SumSquares { row_leaves, col_leaves } => {
                let (rows, cols) = (self.read(0).rows(), self.read(0).last());
                let (row_leaves, col_leaves) = (*row_leaves, *col_leaves);
                let params = k::sum_squares::SumSquares { rows, cols, row_leaves, col_leaves };
                ("sum_squares", params.to_words())
            }
            TaskOp::ClipScale { max_norm } => {
                ("clip_scale", k::sum_squares::ClipScale { max_norm: *max_norm }.to_words())
            }
            TaskOp::AdamW { beta1, beta2, eps, decay, decoupled, clip } => {
                let n = self.write(0).elements();
                let (beta1, beta2, eps, weight_decay) = (*beta1, *beta2, *eps, *decay);
                let (decoupled, clip) = (*decoupled, *clip);
                let params = k::optimizer::AdamW { n, beta1, beta2, eps, weight_decay, decoupled, clip };
                ("adamw", params.to_words())
            }
            TaskOp::Sgd { momentum, decay, nesterov, clip } => {
                let n = self.write(0).elements();
                let (momentum, weight_decay, nesterov, clip) = (*momentum, *decay, *nesterov, *clip);
                ("sgd", k::optimizer::Sgd { n, momentum, weight_decay, nesterov, clip }.to_words())
            }
            TaskOp::Chain { .. }
            | TaskOp::Call { .. }
            | TaskOp::Dropout { .. }
            | TaskOp::Move { .. }
            | TaskOp::Send { .. }
            | TaskOp::Receive { .. } => unreachable!("`select` takes these apart"),
        }
    }

    /// The mask over the tile that is written first; all others of a chain are the same tile of their tensors.
    fn mask(&self, mask: Mask) -> Result<k::dropout::Mask, EmitError> {
        let Mask { rate, seed, salt, part, parts, blocks } = mask;
        let buffer = &self.tasks.buffers[self.task.writes[0]];
        let extents = buffer.ty.shape.dims();
        let zeros = vec![0; extents.len()];
        let (origin, global) = match &buffer.tile {
            Some(tile) => (&tile.origin, tile.global.dims()),
            None => (&zeros, extents),
        };
        let walk = Masked { extents, origin, global, part, parts, blocks }.walk();
        let walk = walk.ok_or_else(|| EmitError::Dropout {
            layer: self.task.layer.to_string(),
            tile: buffer.ty.to_string(),
        })?;
        let Walk { extents, strides, start } = walk;
        Ok(k::dropout::Mask { rate, seed, salt, extents, strides, start })
    }

    /// Where the tile in `buffer` starts along dimension `dim` of its tensor.
    fn origin(&self, buffer: BufferId, dim: usize) -> usize {
        self.tasks.buffers[buffer].tile.as_ref().map_or(0, |tile| tile.origin[dim])
    }

    /// The class of the first column of the logits, operand 0.
    fn first_class(&self) -> usize {
        self.origin(self.task.reads[0], self.read(0).rank() - 1)
    }

    /// The product behind every matrix task.
    fn matmul(&self) -> k::matmul::MatmulParams {
        let plain = k::matmul::MatmulParams {
            batch: 1,
            m: 1,
            n: 1,
            k: 1,
            trans_a: false,
            trans_b: false,
            leaves: 1,
            bias: false,
            residual: false,
            activation: k::unary::Activation::None,
            save_pre: false,
            accumulate: false,
            slope: k::unary::Activation::None,
        };
        match &self.task.op {
            TaskOp::Linear { transposed, activation: act, bias, residual, save_pre, leaves } => {
                let (m, n, k) = (self.read(0).rows(), self.write(0).last(), self.read(0).last());
                let (trans_b, leaves, bias, residual) = (!transposed, *leaves, *bias, *residual);
                let (activation, save_pre) = (activation(*act), *save_pre);
                k::matmul::MatmulParams {
                    m,
                    n,
                    k,
                    trans_b,
                    leaves,
                    bias,
                    residual,
                    activation,
                    save_pre,
                    ..plain
                }
            }
            // dx = dy · weight, the weight as [out, in].
            TaskOp::LinearGradInput { transposed, leaves, slope, accumulate } => {
                let (m, n, k) = (self.read(0).rows(), self.write(0).last(), self.read(0).last());
                let (trans_b, leaves, accumulate) = (*transposed, *leaves, *accumulate);
                let slope = slope.map_or(plain.slope, activation);
                k::matmul::MatmulParams { m, n, k, trans_b, leaves, accumulate, slope, ..plain }
            }
            TaskOp::LinearGradWeight { leaves, accumulate, .. } => {
                let [m, n] = *self.write(0).dims() else {
                    unreachable!("a linear weight has two dimensions")
                };
                let (k, leaves, accumulate) = (self.read(0).rows(), *leaves, *accumulate);
                k::matmul::MatmulParams { m, n, k, trans_a: true, leaves, accumulate, ..plain }
            }
            TaskOp::Matmul { transpose_a, transpose_b, leaves, accumulate } => {
                let (a, y) = (self.read(0), self.write(0));
                let (m, n) = (y.dims()[y.rank() - 2], y.last());
                let (batch, k) = (y.elements() / (m * n), a.elements() / (y.elements() / n));
                let (trans_a, trans_b) = (*transpose_a, *transpose_b);
                let (leaves, accumulate) = (*leaves, *accumulate);
                k::matmul::MatmulParams { batch, m, n, k, trans_a, trans_b, leaves, accumulate, ..plain }
            }
            other => unreachable!("{other:?} is not a matrix task"),
        }
    }

    fn chain(&self, steps: &Steps, results: &[usize]) -> Result<k::chain::ChainParams, EmitError> {
        let reads = self.task.reads.len() - usize::from(steps.is_random());
        let number = |source: &Source| match *source {
            Source::Read(slot) => slot,
            Source::Step(step) => reads + step,
        };
        let step = |step: &Step| -> Result<_, EmitError> {
            let mut values = [0; 3];
            values.iter_mut().zip(&step.sources).for_each(|(value, source)| *value = number(source));
            Ok(k::chain::Step { function: self.function(step.function)?, values })
        };
        Ok(k::chain::ChainParams {
            n: self.write(0).elements(),
            reads,
            steps: steps.0.iter().map(step).collect::<Result<_, _>>()?,
            results: results.iter().copied().collect(),
        })
    }

    fn function(&self, function: Function) -> Result<k::chain::Function, EmitError> {
        Ok(match function {
            Function::Unary(kind) => {
                let (kind, scalar) = unary(kind);
                k::chain::Function::Unary(kind, scalar)
            }
            Function::UnaryGrad(kind) => {
                let (kind, scalar) = unary(kind);
                k::chain::Function::UnaryGrad(kind, scalar)
            }
            Function::Binary(kind) => k::chain::Function::Binary(binary(kind)),
            Function::BinaryGrad(kind, side) => k::chain::Function::BinaryGrad(binary(kind), side),
            Function::Dropout(mask) => k::chain::Function::Dropout(self.mask(mask)?),
        })
    }

    fn broadcast(&self) -> k::binary::Broadcast {
        k::binary::Broadcast::new(self.read(0).dims(), self.read(1).dims())
    }

    fn pieces(&self, axis: usize, pieces: &[BufferId]) -> Vec<u64> {
        let first = self.ty(pieces[0]);
        let outer = first.shape.dims()[..axis].iter().product();
        let inner =
            pieces.iter().map(|&piece| self.ty(piece).shape.dims()[axis..].iter().product()).collect();
        k::concat::ConcatParams { elem_bytes: first.dtype.bytes(), outer, inner }.to_words()
    }

    fn attention(&self, y: &Shape, causal: bool, scale: f32) -> k::attention::Attention {
        let [batch, q_time, heads, head_dim] = four(y);
        let (k_time, kv_heads) = (self.read(1).dims()[1], self.read(1).dims()[2]);
        k::attention::Attention { batch, heads, kv_heads, q_time, k_time, head_dim, scale, causal }
    }
}

fn four(shape: &Shape) -> [usize; 4] {
    *shape.dims().first_chunk().expect("attention and rotary are checked to have rank 4")
}

fn activation(activation: Activation) -> k::unary::Activation {
    match activation {
        Activation::None => k::unary::Activation::None,
        Activation::Relu => k::unary::Activation::Relu,
        Activation::GeluTanh => k::unary::Activation::GeluTanh,
        Activation::GeluErf => k::unary::Activation::GeluErf,
        Activation::Silu => k::unary::Activation::Silu,
        Activation::Sigmoid => k::unary::Activation::Sigmoid,
        Activation::Tanh => k::unary::Activation::Tanh,
    }
}

fn unary(unary: Unary) -> (UnaryKind, f32) {
    let scalar = unary.parts().1.unwrap_or(0.0);
    let kind = match unary {
        Unary::Identity => UnaryKind::Identity,
        Unary::Act(act) => activation(act).kind(),
        Unary::Exp => UnaryKind::Exp,
        Unary::Log => UnaryKind::Log,
        Unary::Sqrt => UnaryKind::Sqrt,
        Unary::Rsqrt => UnaryKind::Rsqrt,
        Unary::Sin => UnaryKind::Sin,
        Unary::Cos => UnaryKind::Cos,
        Unary::Elu => UnaryKind::Elu,
        Unary::Neg => UnaryKind::Neg,
        Unary::Square => UnaryKind::Square,
        Unary::Abs => UnaryKind::Abs,
        Unary::AddScalar(_) => UnaryKind::AddScalar,
        Unary::SubScalar(_) => UnaryKind::SubScalar,
        Unary::MulScalar(_) => UnaryKind::MulScalar,
        Unary::DivScalar(_) => UnaryKind::DivScalar,
        Unary::PowScalar(_) => UnaryKind::PowScalar,
    };
    (kind, scalar)
}

fn binary(binary: Binary) -> k::binary::BinaryKind {
    match binary {
        Binary::Add => k::binary::BinaryKind::Add,
        Binary::Sub => k::binary::BinaryKind::Sub,
        Binary::Mul => k::binary::BinaryKind::Mul,
        Binary::Div => k::binary::BinaryKind::Div,
        Binary::Max => k::binary::BinaryKind::Max,
        Binary::Min => k::binary::BinaryKind::Min,
    }
}

fn reduce(reduce: Reduce) -> k::reduce::ReduceKind {
    match reduce {
        Reduce::Sum => k::reduce::ReduceKind::Sum,
        Reduce::Mean => k::reduce::ReduceKind::Mean,
        Reduce::Max => k::reduce::ReduceKind::Max,
    }
}

fn cast(dtype: DType) -> k::cast::CastType {
    match dtype {
        DType::F32 => k::cast::CastType::F32,
        DType::Bf16 => k::cast::CastType::Bf16,
        DType::I32 => k::cast::CastType::I32,
        DType::I64 => k::cast::CastType::I64,
        DType::Bool => k::cast::CastType::Bool,
    }
}
