//! Backward tasks of one layer, operator by operator. A gradient is computed only for operands that want one.

use phalanx_ir::graph::ValueId;
use phalanx_ir::tasks::{BufferId, TaskOp};
use phalanx_ir::{Activation, Binary, Op, Reduce, TensorType, Unary};

use super::Expander;
use super::forward::reduction_axes;

impl Expander<'_> {
    /// Emits the backward tasks of the layer at hand, if a gradient reached one of its results.
    pub(super) fn backward(&mut self) {
        let layer = self.graph.layers()[self.layer].clone();
        let is_param = matches!(layer.op, Op::Param(_));
        if is_param || self.packed.skipped.contains(&self.layer) {
            return;
        }
        let gradients: Vec<_> = layer.results.iter().map(|&result| self.gradient(result)).collect();
        if let Op::Split { axis, .. } = layer.op {
            return self.split_grad(axis, &gradients);
        }
        let Some(dy) = gradients[0] else { return };
        let x = layer.operands.first().copied();
        match (&layer.op, x) {
            (Op::Reshape(_) | Op::Cast(_) | Op::Unary(Unary::Identity), Some(x)) => self.give(x, dy),
            (Op::Unary(kind), Some(x)) => {
                let op = TaskOp::UnaryGrad { kind: *kind, accumulate: false };
                self.single(x, op, &[self.buf(x), dy]);
            }
            (Op::Linear { transposed, activation }, _) => self.linear_grad(*transposed, *activation, dy),
            (Op::Matmul { transpose_a, transpose_b }, _) => self.matmul_grad(*transpose_a, *transpose_b, dy),
            (Op::Binary(kind), _) => self.binary_grad(*kind, dy),
            (Op::Embedding { bag }, _) => self.embedding_grad(*bag, dy),
            (Op::Softmax { axis }, Some(x)) => {
                let op = TaskOp::SoftmaxGrad { axis: *axis, accumulate: false };
                self.single(x, op, &[self.buf(layer.results[0]), dy]);
            }
            (Op::LayerNorm { axes, .. }, _) => self.layer_norm_grad(*axes, dy),
            (Op::RmsNorm { .. }, _) => self.rms_norm_grad(dy),
            (Op::Rotary { base }, Some(x)) => {
                self.single(x, TaskOp::Rotary { base: *base, inverse: true, accumulate: false }, &[dy]);
            }
            (Op::Attention { causal, scale }, _) => self.attention_grad(*causal, *scale, dy),
            (Op::Broadcast(_), Some(x)) => {
                let dx = self.unstretch(x, dy);
                self.give(x, dx);
            }
            (Op::Transpose(perm), Some(x)) => {
                let mut inverse = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
                self.single(x, TaskOp::Transpose { perm: inverse }, &[dy]);
            }
            (Op::Concat { axis }, _) => self.concat_grad(*axis, dy),
            (Op::Reduce { kind, axes, .. }, Some(x)) => self.reduce_grad(*kind, axes, x, dy),
            (Op::Dropout { rate }, Some(x)) => {
                let (op, hyper) = (self.dropout(*rate), self.hyper());
                self.single(x, op, &[dy, hyper]);
            }
            (Op::CrossEntropy { ignore }, Some(x)) => {
                let reads = [self.buf(x), self.buf(layer.operands[1]), self.saved[self.layer][0], dy];
                self.single(x, TaskOp::CrossEntropyGrad { ignore: *ignore, accumulate: false }, &reads);
            }
            _ => {}
        }
    }

    /// One task that gives the gradient of `x`.
    fn single(&mut self, x: ValueId, op: TaskOp, reads: &[BufferId]) {
        if self.wanted[x] {
            let dx = self.grad_buffer(x);
            self.emit(op, reads, &[dx]);
            self.give(x, dx);
        }
    }

    fn operands(&self) -> Vec<ValueId> {
        self.graph.layers()[self.layer].operands.clone()
    }

    fn output(&self) -> ValueId {
        self.graph.layers()[self.layer].results[0]
    }

    fn linear_grad(&mut self, transposed: bool, activation: Activation, dy: BufferId) {
        let operands = self.operands();
        let (x, weight) = (operands[0], operands[1]);
        let shape = self.shape(self.output());
        let dy = match activation {
            Activation::None => dy,
            _ => {
                let before = self.temp(
                    &format!("{}.pre.grad", self.graph.layer_name(self.layer)),
                    TensorType::f32(shape.clone()),
                );
                let op = TaskOp::UnaryGrad { kind: Unary::Act(activation), accumulate: false };
                self.emit(op, &[self.saved[self.layer][0], dy], &[before]);
                before
            }
        };
        let rows = self.batch_leaves(shape.rows());
        let features = self.feature_leaves(shape.last());
        let op = TaskOp::LinearGradInput { transposed, leaves: features, accumulate: false };
        self.single(x, op, &[dy, self.buf(weight)]);
        let op = TaskOp::LinearGradWeight { transposed, leaves: rows, accumulate: false };
        let (x, dy_first) = (self.buf(x), !transposed);
        self.single(weight, op, &if dy_first { [dy, x] } else { [x, dy] });
        if let Some(&bias) = operands.get(2) {
            self.single(bias, TaskOp::ColumnSum { leaves: rows, accumulate: false }, &[dy]);
        }
    }

    /// For y = op(a)·op(b): da is dy·op(b)ᵀ and db is op(a)ᵀ·dy, transposed if the operand is stored so.
    fn matmul_grad(&mut self, transpose_a: bool, transpose_b: bool, dy: BufferId) {
        let [a, b] = self.operands()[..] else { unreachable!("a matmul has two operands") };
        let (a_buf, b_buf) = (self.buf(a), self.buf(b));
        let shape = self.shape(self.output());
        let (m, n) = (shape.dims()[shape.rank() - 2], shape.last());
        let matmul = |transpose_a, transpose_b, leaves| TaskOp::Matmul {
            transpose_a,
            transpose_b,
            leaves,
            accumulate: false,
        };
        let over_n = self.feature_leaves(n);
        match transpose_a {
            false => self.single(a, matmul(false, !transpose_b, over_n), &[dy, b_buf]),
            true => self.single(a, matmul(transpose_b, true, over_n), &[b_buf, dy]),
        }
        let over_m = self.feature_leaves(m);
        match transpose_b {
            false => self.single(b, matmul(!transpose_a, false, over_m), &[a_buf, dy]),
            true => self.single(b, matmul(true, transpose_a, over_m), &[dy, a_buf]),
        }
    }

    fn binary_grad(&mut self, kind: Binary, dy: BufferId) {
        let operands = self.operands();
        let shape = self.shape(self.output());
        for side in 0..2 {
            let operand = operands[side];
            if !self.wanted[operand] {
                continue;
            }
            let full = match (kind, side) {
                (Binary::Add, _) | (Binary::Sub, 0) => dy,
                _ => {
                    let name = format!("{}.grad{side}", self.graph.layer_name(self.layer));
                    let full = self.temp(&name, TensorType::f32(shape.clone()));
                    let (op, reads) = match kind {
                        Binary::Sub => (TaskOp::Unary { kind: Unary::Neg }, vec![dy]),
                        _ => {
                            let (a, b) = (self.buf(operands[0]), self.buf(operands[1]));
                            // The gradient of a numerator does not look at it; naming the denominator twice keeps
                            // it from waiting for the numerator.
                            let same = self.ty(operands[0]) == self.ty(operands[1]);
                            let a = if kind == Binary::Div && side == 0 && same { b } else { a };
                            (TaskOp::BinaryGrad { kind, side }, vec![a, b, dy])
                        }
                    };
                    self.emit(op, &reads, &[full]);
                    full
                }
            };
            let gradient = self.unstretch(operand, full);
            self.give(operand, gradient);
        }
    }

    /// Sums the gradient of a stretched `value` back to the value's own shape.
    fn unstretch(&mut self, value: ValueId, full: BufferId) -> BufferId {
        let from = self.tasks.buffers[full].ty.shape.clone();
        let axes = reduction_axes(&from, &self.shape(value));
        if axes.is_empty() {
            return full;
        }
        let leaves = self.leaves_along(&from, &axes);
        let sum = self.grad_buffer(value);
        self.emit(TaskOp::Reduce { kind: Reduce::Sum, axes, leaves }, &[full], &[sum]);
        sum
    }

    fn embedding_grad(&mut self, bag: bool, dy: BufferId) {
        let operands = self.operands();
        let rows = self.shape(self.output()).rows();
        let op = TaskOp::EmbeddingGrad { bag, leaves: self.batch_leaves(rows), accumulate: false };
        self.single(operands[1], op, &[self.buf(operands[0]), dy]);
    }

    fn layer_norm_grad(&mut self, axes: usize, dy: BufferId) {
        let operands = self.operands();
        let saved = self.saved[self.layer].clone();
        let affine = operands.len() == 3;
        let rows = self.tasks.buffers[saved[0]].ty.shape.elements();
        let op = TaskOp::LayerNormGrad { axes, affine, leaves: self.batch_leaves(rows), accumulate: false };
        let mut reads = vec![self.buf(operands[0])];
        reads.extend(operands.get(1).map(|&gamma| self.buf(gamma)));
        reads.extend([saved[0], saved[1], dy]);
        self.joint(op, &reads, &operands);
    }

    fn rms_norm_grad(&mut self, dy: BufferId) {
        let operands = self.operands();
        let rstd = self.saved[self.layer][0];
        let rows = self.tasks.buffers[rstd].ty.shape.elements();
        let op = TaskOp::RmsNormGrad { leaves: self.batch_leaves(rows), accumulate: false };
        let reads = [self.buf(operands[0]), self.buf(operands[1]), rstd, dy];
        self.joint(op, &reads, &operands);
    }

    fn attention_grad(&mut self, causal: bool, scale: f32, dy: BufferId) {
        let source = self.packed.source.get(&self.layer).copied();
        let operands = source.map_or_else(|| self.operands(), |source| vec![source]);
        let mut reads: Vec<_> = operands.iter().map(|&value| self.buf(value)).collect();
        reads.extend([self.buf(self.output()), self.saved[self.layer][0], dy]);
        self.joint(TaskOp::AttentionGrad { causal, scale, packed: source.is_some() }, &reads, &operands);
    }

    /// One task that gives the gradients of all `operands`.
    fn joint(&mut self, op: TaskOp, reads: &[BufferId], operands: &[ValueId]) {
        let writes: Vec<_> = operands.iter().map(|&value| self.grad_buffer(value)).collect();
        self.emit(op, reads, &writes);
        for (&value, &gradient) in operands.iter().zip(&writes) {
            self.give(value, gradient);
        }
    }

    fn split_grad(&mut self, axis: usize, gradients: &[Option<BufferId>]) {
        let (x, results) = (self.operands()[0], self.graph.layers()[self.layer].results.clone());
        if !self.wanted[x] || gradients.iter().all(Option::is_none) {
            return;
        }
        let parts: Vec<_> = results
            .iter()
            .zip(gradients)
            .map(|(&result, gradient)| {
                gradient.unwrap_or_else(|| {
                    let zeros = self.grad_buffer(result);
                    self.emit(TaskOp::Fill { value: 0.0 }, &[], &[zeros]);
                    zeros
                })
            })
            .collect();
        self.single(x, TaskOp::Concat { axis }, &parts);
    }

    fn concat_grad(&mut self, axis: usize, dy: BufferId) {
        let operands = self.operands();
        self.joint(TaskOp::Split { axis }, &[dy], &operands);
    }

    fn reduce_grad(&mut self, kind: Reduce, axes: &[usize], x: ValueId, dy: BufferId) {
        let op = TaskOp::ReduceGrad { kind, axes: axes.to_vec(), accumulate: false };
        let reads = match kind {
            Reduce::Max => [self.buf(x), self.buf(self.output()), dy],
            // A sum's gradient does not look at the values; naming dy keeps them from living longer.
            Reduce::Sum | Reduce::Mean => [dy, dy, dy],
        };
        self.single(x, op, &reads);
    }
}
