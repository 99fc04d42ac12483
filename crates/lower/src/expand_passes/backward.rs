//! Backward tasks of one layer, operator by operator. A gradient is computed only for operands that want one.

use phalanx_ir::parallel::{ParallelType, TileMap};
use phalanx_ir::tasks::{BufferId, TaskOp};
use phalanx_ir::wide::Operand;
use phalanx_ir::{Activation, Binary, Op, Reduce, Shape, TensorType, Unary};

use super::Expander;
use super::leaves::RowLeaves;

impl Expander<'_> {
    /// Emits the backward tasks of the layer at hand, if a gradient reached one of its results.
    pub(super) fn backward(&mut self) {
        let layer = self.graph.layers()[self.layer].clone();
        if matches!(layer.op, Op::Param(_)) {
            return;
        }
        let gradients: Vec<_> = layer.results.iter().map(|&result| self.gradient(result)).collect();
        if let Op::Split { axis, blocks, .. } = layer.op {
            return self.split_grad(axis, blocks, &gradients);
        }
        let Some(gradient) = gradients[0] else { return };
        if layer.op.is_parallel() {
            return self.movement_grad(gradient);
        }
        if layer.op.is_leaf() {
            return;
        }
        let dy = self.dy(0, gradient);
        match &layer.op {
            Op::Reshape(_) | Op::Cast(_) | Op::Unary(Unary::Identity) => {
                self.give(layer.operands[0], gradient)
            }
            Op::Unary(kind) => {
                let x = self.read_again(0);
                self.single(0, TaskOp::UnaryGrad { kind: *kind, accumulate: false }, vec![x, dy]);
            }
            Op::Linear { transposed, activation } => self.linear_grad(*transposed, *activation, dy),
            Op::Matmul { transpose_a, transpose_b } => self.matmul_grad(*transpose_a, *transpose_b, dy),
            Op::Binary(kind) => self.binary_grad(*kind, dy),
            Op::Embedding { bag } => self.embedding_grad(*bag, dy),
            Op::Softmax { axis } => {
                let y = self.read_result();
                self.single(0, TaskOp::SoftmaxGrad { axis: *axis, accumulate: false }, vec![y, dy]);
            }
            Op::LayerNorm { axes, .. } => self.layer_norm_grad(*axes, dy),
            Op::RmsNorm { .. } => self.rms_norm_grad(dy),
            Op::Rotary { base } => {
                let op = TaskOp::Rotary { base: *base, inverse: true, accumulate: false };
                self.single(0, op, vec![dy]);
            }
            Op::Attention { causal, scale } => self.attention_grad(*causal, *scale, dy),
            Op::Broadcast(_) => self.unstretch(0, dy),
            Op::Transpose(perm) => {
                let mut inverse = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
                self.single(0, TaskOp::Transpose { perm: inverse }, vec![dy]);
            }
            Op::Concat { axis, blocks } => self.concat_grad(*axis, *blocks, dy),
            Op::Reduce { kind, axes, .. } => self.reduce_grad(*kind, axes, dy),
            Op::Dropout { rate } => {
                let (op, hyper) = (self.dropout(*rate), self.hyper());
                self.single(0, op, vec![dy, hyper]);
            }
            Op::CrossEntropy { ignore } => {
                let lse = self.kept(0, self.rule.operands[1].clone());
                let reads = vec![self.read_again(0), self.read(1), lse, dy];
                self.single(0, TaskOp::CrossEntropyGrad { ignore: *ignore, accumulate: false }, reads);
            }
            _ => {}
        }
    }

    /// The gradient of a parallel operator is a movement too: it gives the same value the dual tiling.
    fn movement_grad(&mut self, dy: BufferId) {
        let x = self.operands()[0];
        if self.wanted[x] {
            self.check_blocks();
            let dx = self.value_gradient(x, self.wide.buffers[dy].ty.sum_degree());
            let (layer, round) = (self.graph.layer_name(self.layer).to_string(), self.label().round);
            self.wide.push_move(dy, dx, &layer, round);
            self.give(x, dx);
        }
    }

    /// What the forward tasks saved, as the backward tasks read it.
    fn kept(&self, index: usize, map: TileMap) -> Operand {
        Operand { buffer: self.saved[self.layer][index], map }
    }

    /// One task that gives the gradient of operand `slot`.
    fn single(&mut self, slot: usize, op: TaskOp, reads: Vec<Operand>) {
        let x = self.operands()[slot];
        if self.wanted[x] {
            let dx = self.grad(slot);
            self.emit(op, reads, vec![dx.clone()]);
            self.give(x, dx.buffer);
        }
    }

    fn linear_grad(&mut self, transposed: bool, activation: Activation, dy: Operand) {
        let ty = self.graph.ty(self.output(0)).clone();
        let dy = match activation {
            Activation::None => dy,
            _ => {
                let name = format!("{}.pre.grad", self.graph.layer_name(self.layer));
                let before = self.temp(&name, &ty.dual().global(), dy.map.clone());
                let op = TaskOp::UnaryGrad { kind: Unary::Act(activation), accumulate: false };
                let pre = self.kept(0, self.rule.results[0].clone());
                self.emit(op, vec![pre, dy], vec![before.clone()]);
                before
            }
        };
        let operands = self.operands();
        if self.wanted[operands[0]] {
            let leaves = self.feature_leaves(*ty.dims().last().expect("a linear result has features"));
            let weight = self.read_again(1);
            let op = TaskOp::LinearGradInput { transposed, leaves, slope: None, accumulate: false };
            self.single(0, op, vec![dy.clone(), weight]);
        }
        if self.wanted[operands[1]] {
            let leaves = self.row_leaves(&ty);
            let x = self.read_again(0);
            let op = TaskOp::LinearGradWeight { transposed, leaves, accumulate: false };
            self.single(1, op, vec![dy.clone(), x]);
        }
        match operands.get(2) {
            // A sum over one row would turn -0 into 0, which the gradient of an addition does not.
            Some(&bias) if ty.dims().len() == 1 => self.give(bias, dy.buffer),
            Some(_) => self.column_sum(2, dy),
            None => {}
        }
    }

    /// For y = op(a)·op(b): da is dy·op(b)ᵀ and db is op(a)ᵀ·dy, transposed if the operand is stored so.
    fn matmul_grad(&mut self, transpose_a: bool, transpose_b: bool, dy: Operand) {
        let [a, b] = [self.read_again(0), self.read_again(1)];
        let ty = self.graph.ty(self.output(0)).clone();
        let [m, n] = [2, 1].map(|back| ty.dims()[ty.dims().len() - back]);
        let matmul = |transpose_a, transpose_b, leaves| TaskOp::Matmul {
            transpose_a,
            transpose_b,
            leaves,
            accumulate: false,
        };
        let over_n = self.feature_leaves(n);
        match transpose_a {
            false => self.single(0, matmul(false, !transpose_b, over_n), vec![dy.clone(), b]),
            true => self.single(0, matmul(transpose_b, true, over_n), vec![b, dy.clone()]),
        }
        let over_m = self.feature_leaves(m);
        match transpose_b {
            false => self.single(1, matmul(!transpose_a, false, over_m), vec![a, dy]),
            true => self.single(1, matmul(true, transpose_a, over_m), vec![dy, a]),
        }
    }

    fn binary_grad(&mut self, kind: Binary, dy: Operand) {
        let operands = self.operands();
        let shape = self.graph.ty(self.output(0)).global().shape;
        for side in 0..2 {
            if !self.wanted[operands[side]] {
                continue;
            }
            let full = match (kind, side) {
                (Binary::Add, _) | (Binary::Sub, 0) => dy.clone(),
                _ => {
                    let name = format!("{}.grad{side}", self.graph.layer_name(self.layer));
                    let full = self.temp(&name, &TensorType::f32(shape.clone()), dy.map.clone());
                    let (op, reads) = match kind {
                        Binary::Sub => (TaskOp::Unary { kind: Unary::Neg }, vec![dy.clone()]),
                        _ => {
                            let (a, b) = (self.read_again(0), self.read_again(1));
                            // The gradient of a numerator does not look at it; naming the denominator twice keeps
                            // it from waiting for the numerator.
                            let same = self.graph.ty(operands[0]) == self.graph.ty(operands[1]);
                            let a = if kind == Binary::Div && side == 0 && same { b.clone() } else { a };
                            (TaskOp::BinaryGrad { kind, side }, vec![a, b, dy.clone()])
                        }
                    };
                    self.emit(op, reads, vec![full.clone()]);
                    full
                }
            };
            self.unstretch(side, full);
        }
    }

    /// Sums the gradient of a stretched operand, still in the result's shape, back to the operand's own shape.
    fn unstretch(&mut self, slot: usize, full: Operand) {
        let value = self.operands()[slot];
        let (from, to) = (self.wide.buffers[full.buffer].ty.clone(), self.graph.ty(value).global().shape);
        let axes = stretched(&from.global().shape, &to);
        let all_rows = axes.len() + 1 == from.dims().len() && !axes.contains(&axes.len()) && to.rank() == 1;
        if axes.is_empty() {
            self.give(value, full.buffer);
        } else if all_rows {
            self.column_sum(slot, full);
        } else {
            let leaves = self.leaves_along(&from, &axes);
            self.single(slot, TaskOp::Reduce { kind: Reduce::Sum, axes, leaves }, vec![full]);
        }
    }

    fn embedding_grad(&mut self, bag: bool, dy: Operand) {
        let ty: ParallelType = self.graph.ty(self.output(0)).clone();
        let op = TaskOp::EmbeddingGrad { bag, leaves: self.row_leaves(&ty), accumulate: false };
        self.single(1, op, vec![self.read(0), dy]);
    }

    fn layer_norm_grad(&mut self, axes: usize, dy: Operand) {
        let affine = self.rule.operands.len() == 3;
        let mut reads = vec![self.read_again(0)];
        if affine {
            reads.push(self.read_again(1));
        }
        let rows = self.statistics(axes);
        reads.extend([self.kept(0, rows.clone()), self.kept(1, rows), dy]);
        self.norm_grad(axes, reads, |sum, RowLeaves { batch, time, .. }| TaskOp::LayerNormGrad {
            axes,
            affine,
            leaves: batch,
            inner: time,
            keep: sum,
            accumulate: false,
        });
    }

    fn rms_norm_grad(&mut self, dy: Operand) {
        let reads = vec![self.read_again(0), self.read_again(1), self.kept(0, self.statistics(1)), dy];
        self.norm_grad(1, reads, |keep, RowLeaves { batch, time, .. }| TaskOp::RmsNormGrad {
            leaves: batch,
            inner: time,
            keep,
            accumulate: false,
        });
    }

    /// The map of a norm's statistics: one number a row.
    fn statistics(&self, axes: usize) -> TileMap {
        let mut map = self.rule.results[0].clone();
        map.dims.truncate(map.dims.len() - axes);
        map
    }

    /// One task that gives the gradients of a norm's input and weights.
    fn norm_grad(&mut self, axes: usize, reads: Vec<Operand>, op: impl Fn(bool, RowLeaves) -> TaskOp) {
        let sum = self.row_sum(axes);
        let dx = self.grad(0);
        let sums: Vec<_> = (1..self.rule.operands.len()).map(|slot| self.sums(slot, &sum)).collect();
        let writes = std::iter::once(dx.clone()).chain(sums.iter().cloned()).collect();
        self.emit(op(sum.keep, sum.leaves), reads, writes);
        self.give(self.operands()[0], dx.buffer);
        for (index, sums) in sums.into_iter().enumerate() {
            self.give_sums(index + 1, sums, &sum);
        }
    }

    fn attention_grad(&mut self, causal: bool, scale: f32, dy: Operand) {
        let mut reads: Vec<_> = (0..3).map(|slot| self.read_again(slot)).collect();
        let TileMap { sum, copy, dims } = self.rule.results[0].clone();
        let lse = TileMap { sum, copy, dims: [0, 2, 1].map(|dim| dims[dim].clone()).to_vec() };
        reads.extend([self.read_result(), self.kept(0, lse), dy]);
        self.joint(TaskOp::AttentionGrad { causal, scale }, reads);
    }

    /// One task that gives the gradients of all operands.
    fn joint(&mut self, op: TaskOp, reads: Vec<Operand>) {
        let writes: Vec<_> = (0..self.rule.operands.len()).map(|slot| self.grad(slot)).collect();
        self.emit(op, reads, writes.clone());
        for (value, gradient) in self.operands().into_iter().zip(writes) {
            self.give(value, gradient.buffer);
        }
    }

    fn split_grad(&mut self, axis: usize, blocks: usize, gradients: &[Option<BufferId>]) {
        let x = self.operands()[0];
        if !self.wanted[x] || gradients.iter().all(Option::is_none) {
            return;
        }
        let mut parts = Vec::new();
        for (slot, gradient) in gradients.iter().enumerate() {
            parts.push(match gradient {
                Some(buffer) => self.dy(slot, *buffer),
                None => {
                    let result = self.output(slot);
                    let (name, ty) = (format!("{}.grad", self.name(result)), self.graph.ty(result).dual());
                    let zeros = self.temp(&name, &ty.global(), self.rule.results[slot].dual());
                    self.emit(TaskOp::Fill { value: 0.0 }, Vec::new(), vec![zeros.clone()]);
                    zeros
                }
            });
        }
        let dx = self.grad(0);
        self.emit_pieces(false, axis, blocks, dx.clone(), parts);
        self.give(x, dx.buffer);
    }

    fn concat_grad(&mut self, axis: usize, blocks: usize, dy: Operand) {
        let parts: Vec<_> = (0..self.rule.operands.len()).map(|slot| self.grad(slot)).collect();
        self.emit_pieces(true, axis, blocks, dy, parts.clone());
        for (value, part) in self.operands().into_iter().zip(parts) {
            self.give(value, part.buffer);
        }
    }

    fn reduce_grad(&mut self, kind: Reduce, axes: &[usize], dy: Operand) {
        let op = TaskOp::ReduceGrad { kind, axes: axes.to_vec(), accumulate: false };
        let reads = match kind {
            Reduce::Max => vec![self.read_again(0), self.read_result(), dy],
            // A sum's gradient does not look at the values; naming dy keeps them from living longer.
            Reduce::Sum | Reduce::Mean => vec![dy.clone(), dy.clone(), dy],
        };
        self.single(0, op, reads);
    }
}

/// The axes of `from` along which a tensor of shape `to` was stretched.
fn stretched(from: &Shape, to: &Shape) -> Vec<usize> {
    let missing = from.rank() - to.rank();
    (0..from.rank())
        .filter(|&axis| axis < missing || (to.dims()[axis - missing] == 1 && from.dims()[axis] != 1))
        .collect()
}
