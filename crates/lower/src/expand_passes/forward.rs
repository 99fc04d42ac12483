//! Forward tasks of one layer, operator by operator.

use phalanx_ir::graph::ValueId;
use phalanx_ir::tasks::{BufferId, Role, TaskOp};
use phalanx_ir::{Activation, Op, Reduce, Shape, TensorType, Unary};

use super::Expander;

impl Expander<'_> {
    /// Emits the forward tasks of the layer at hand.
    pub(super) fn forward(&mut self) {
        if self.packed.skipped.contains(&self.layer) {
            return;
        }
        let layer = self.graph.layers()[self.layer].clone();
        let reads = |this: &Self| layer.operands.iter().map(|&value| this.buf(value)).collect::<Vec<_>>();
        let result = layer.results[0];
        match &layer.op {
            Op::Input => self.leaf(result, Role::Input),
            Op::Param(_) => self.leaf(result, Role::Param),
            Op::Reshape(_) => self.alias(result, layer.operands[0]),
            Op::Unary(Unary::Identity) => self.alias(result, layer.operands[0]),
            Op::Linear { transposed, activation } => self.linear(*transposed, *activation),
            Op::LayerNorm { axes, eps } => {
                let affine = layer.operands.len() == 3;
                self.norm(TaskOp::LayerNorm { axes: *axes, eps: *eps, affine }, *axes, &["mean", "rstd"]);
            }
            Op::RmsNorm { eps } => self.norm(TaskOp::RmsNorm { eps: *eps }, 1, &["rstd"]),
            Op::Attention { causal, scale } => self.attention(*causal, *scale),
            Op::CrossEntropy { ignore } => self.cross_entropy(*ignore),
            Op::Dropout { rate } => {
                let op = self.dropout(*rate);
                let hyper = self.hyper();
                let reads = [reads(self)[0], hyper];
                let y = self.result(result);
                self.emit(op, &reads, &[y]);
            }
            op => {
                let op = self.plain(op);
                let reads = reads(self);
                let writes: Vec<_> = layer.results.iter().map(|&value| self.result(value)).collect();
                self.emit(op, &reads, &writes);
            }
        }
    }

    /// The task operator of an operator that becomes one task and keeps nothing.
    fn plain(&self, op: &Op) -> TaskOp {
        let operands = &self.graph.layers()[self.layer].operands;
        match op {
            Op::Constant(value) => TaskOp::Fill { value: *value },
            Op::Embedding { bag } => TaskOp::Embedding { bag: *bag },
            Op::Matmul { transpose_a, transpose_b } => {
                let a = self.shape(operands[0]);
                let inner = if *transpose_a { a.dims()[a.rank() - 2] } else { a.last() };
                TaskOp::Matmul {
                    transpose_a: *transpose_a,
                    transpose_b: *transpose_b,
                    leaves: self.feature_leaves(inner),
                    accumulate: false,
                }
            }
            Op::Unary(kind) => TaskOp::Unary { kind: *kind },
            Op::Binary(kind) => TaskOp::Binary { kind: *kind },
            Op::Softmax { axis } => TaskOp::Softmax { axis: *axis },
            Op::Rotary { base } => TaskOp::Rotary { base: *base, inverse: false, accumulate: false },
            Op::Broadcast(_) => TaskOp::Broadcast {},
            Op::Transpose(perm) => TaskOp::Transpose { perm: perm.clone() },
            Op::Split { axis, .. } => TaskOp::Split { axis: *axis },
            Op::Concat { axis } => TaskOp::Concat { axis: *axis },
            Op::Reduce { kind, axes, .. } => {
                let leaves = self.leaves_along(&self.shape(operands[0]), axes);
                TaskOp::Reduce { kind: *kind, axes: axes.clone(), leaves }
            }
            Op::Cast(_) => TaskOp::Cast {},
            Op::CountLabels { ignore } => TaskOp::CountLabels { ignore: *ignore },
            other => unreachable!("{other:?} has its own lowering"),
        }
    }

    fn leaf(&mut self, value: ValueId, role: Role) {
        let name = self.graph.values()[value].name.clone();
        let buffer = self.new_buffer(&name, self.ty(value), role, None);
        self.buffers[value] = Some(buffer);
    }

    /// A new buffer for a result.
    fn result(&mut self, value: ValueId) -> BufferId {
        let name = self.graph.values()[value].name.clone();
        let buffer = self.temp(&name, self.ty(value));
        self.buffers[value] = Some(buffer);
        buffer
    }

    fn alias(&mut self, result: ValueId, operand: ValueId) {
        let buffer = self.buf(operand);
        self.buffers[result] = Some(self.view(buffer, self.ty(result)));
    }

    /// A buffer kept for the backward tasks.
    fn save(&mut self, what: &str, ty: TensorType) -> BufferId {
        let name = format!("{}.{what}", self.graph.layer_name(self.layer));
        let buffer = self.temp(&name, ty);
        self.saved[self.layer].push(buffer);
        buffer
    }

    fn linear(&mut self, transposed: bool, activation: Activation) {
        let layer = self.graph.layers()[self.layer].clone();
        let reads: Vec<_> = layer.operands.iter().map(|&value| self.buf(value)).collect();
        let save_pre = activation != Activation::None && self.wanted[layer.results[0]];
        let op = TaskOp::Linear {
            transposed,
            activation,
            bias: layer.operands.len() == 3,
            residual: false,
            save_pre,
            leaves: self.feature_leaves(self.shape(layer.operands[0]).last()),
        };
        let mut writes = vec![self.result(layer.results[0])];
        if save_pre {
            writes.push(self.save("pre", self.ty(layer.results[0])));
        }
        self.emit(op, &reads, &writes);
    }

    fn norm(&mut self, op: TaskOp, axes: usize, statistics: &[&str]) {
        let layer = self.graph.layers()[self.layer].clone();
        let reads: Vec<_> = layer.operands.iter().map(|&value| self.buf(value)).collect();
        let shape = self.shape(layer.results[0]);
        let rows: usize = shape.dims()[..shape.rank() - axes].iter().product();
        let mut writes = vec![self.result(layer.results[0])];
        writes.extend(statistics.iter().map(|what| self.save(what, TensorType::f32([rows]))));
        self.emit(op, &reads, &writes);
    }

    fn attention(&mut self, causal: bool, scale: f32) {
        let layer = self.graph.layers()[self.layer].clone();
        let source = self.packed.source.get(&self.layer).copied();
        let reads: Vec<_> = match source {
            Some(source) => vec![self.buf(source)],
            None => layer.operands.iter().map(|&value| self.buf(value)).collect(),
        };
        let y = self.result(layer.results[0]);
        let dims = self.shape(layer.results[0]);
        let [batch, time, heads, _] = *dims.dims() else {
            unreachable!("attention is checked to have rank 4")
        };
        let lse = self.save("lse", TensorType::f32([batch, heads, time]));
        self.emit(TaskOp::Attention { causal, scale, packed: source.is_some() }, &reads, &[y, lse]);
    }

    fn cross_entropy(&mut self, ignore: i64) {
        let layer = self.graph.layers()[self.layer].clone();
        let reads: Vec<_> = layer.operands.iter().map(|&value| self.buf(value)).collect();
        let rows = self.shape(layer.operands[1]).elements();
        let lse = self.save("lse", TensorType::f32([rows]));
        let nll = self.temp(&format!("{}.rows", self.graph.layer_name(self.layer)), TensorType::f32([rows]));
        self.emit(TaskOp::CrossEntropy { ignore }, &reads, &[nll, lse]);
        let sum = self.result(layer.results[0]);
        let leaves = self.batch_leaves(rows);
        self.emit(TaskOp::Reduce { kind: Reduce::Sum, axes: vec![0], leaves }, &[nll], &[sum]);
    }

    /// The dropout of the layer at hand: the mask depends on the layer's name and the element's index in the batch.
    pub(super) fn dropout(&self, rate: f32) -> TaskOp {
        let elements = self.shape(self.graph.layers()[self.layer].results[0]).elements() as u64;
        let (base, offset) = match self.part_of() {
            Some(base) => (base, u64::from(self.microbatch()) * elements),
            None => (self.graph.layer_name(self.layer), 0),
        };
        TaskOp::Dropout { rate, seed: self.options.seed, salt: hash(base), offset, accumulate: false }
    }
}

/// FNV-1a: a fixed number for a name.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The shape `axes` leave of `shape` when they are joined.
pub(super) fn reduction_axes(from: &Shape, to: &Shape) -> Vec<usize> {
    let missing = from.rank() - to.rank();
    (0..from.rank())
        .filter(|&axis| axis < missing || (to.dims()[axis - missing] == 1 && from.dims()[axis] != 1))
        .collect()
}
