//! Forward tasks of one layer, operator by operator.

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::{Microbatch, ParallelType, TileMap};
use phalanx_ir::tasks::{BufferId, Mask, Role, TaskOp};
use phalanx_ir::wide::Operand;
use phalanx_ir::{Activation, Op, Shape, TensorType, Unary};

use super::Expander;

impl Expander<'_> {
    /// Emits the forward tasks of the layer at hand.
    pub(super) fn forward(&mut self) {
        let layer = &self.graph.layers()[self.layer];
        let (op, result) = (layer.op.clone(), layer.results[0]);
        let partial = |&value: &ValueId| self.graph.ty(value).sum_degree() > 1;
        let mut slots = layer.operands.iter().chain(&layer.results);
        if !op.is_parallel() && (self.wanted[result] || slots.any(partial)) {
            self.check_exact();
        }
        match &op {
            Op::Input => self.leaf(result, Role::Input),
            Op::Param(_) => self.leaf(result, Role::Param),
            Op::Reshape(_) | Op::Unary(Unary::Identity) => self.alias(result),
            Op::Linear { transposed, activation } => self.linear(*transposed, *activation),
            Op::LayerNorm { axes, eps } => {
                let affine = self.rule.operands.len() == 3;
                self.norm(TaskOp::LayerNorm { axes: *axes, eps: *eps, affine }, *axes, &["mean", "rstd"]);
            }
            Op::RmsNorm { eps } => self.norm(TaskOp::RmsNorm { eps: *eps }, 1, &["rstd"]),
            Op::Attention { causal, scale } => self.attention(*causal, *scale),
            Op::CrossEntropy { ignore } => self.cross_entropy(*ignore),
            Op::Split { axis, blocks, .. } => self.split(*axis, *blocks),
            Op::Concat { axis, blocks } => self.concat(*axis, *blocks),
            Op::Dropout { rate } => {
                let (op, x, hyper) = (self.dropout(*rate), self.read(0), self.hyper());
                let y = self.result(0);
                self.emit(op, vec![x, hyper], vec![y]);
            }
            op if op.is_parallel() => self.movement(result),
            op => {
                let op = self.plain(op);
                let (reads, y) = (self.reads(), self.result(0));
                self.emit(op, reads, vec![y]);
            }
        }
    }

    /// The task operator of an operator that becomes one task and keeps nothing.
    fn plain(&mut self, op: &Op) -> TaskOp {
        let ty = |this: &Self| this.graph.ty(this.operands()[0]).clone();
        match op {
            Op::Constant(value) => TaskOp::Fill { value: *value },
            Op::Embedding { bag } => TaskOp::Embedding { bag: *bag },
            Op::Matmul { transpose_a, transpose_b } => {
                let a = ty(self);
                let inner = a.dims()[a.dims().len() - if *transpose_a { 2 } else { 1 }];
                let (transpose_a, transpose_b) = (*transpose_a, *transpose_b);
                let leaves = self.feature_leaves(inner);
                TaskOp::Matmul { transpose_a, transpose_b, leaves, accumulate: false }
            }
            Op::Unary(kind) => TaskOp::Unary { kind: *kind },
            Op::Binary(kind) => TaskOp::Binary { kind: *kind },
            Op::Softmax { axis } => TaskOp::Softmax { axis: *axis },
            Op::Rotary { base } => TaskOp::Rotary { base: *base, inverse: false, accumulate: false },
            Op::Broadcast(_) => TaskOp::Broadcast {},
            Op::Transpose(perm) => TaskOp::Transpose { perm: perm.clone() },
            Op::Reduce { kind, axes, .. } => {
                let leaves = self.leaves_along(&ty(self), axes);
                TaskOp::Reduce { kind: *kind, axes: axes.clone(), leaves }
            }
            Op::Cast(_) => TaskOp::Cast {},
            Op::CountLabels { ignore } => TaskOp::CountLabels { ignore: *ignore },
            other => unreachable!("{other:?} has its own lowering"),
        }
    }

    fn leaf(&mut self, value: ValueId, role: Role) {
        let (name, ty) = (self.name(value).to_string(), self.graph.ty(value).clone());
        let sites = self.label().sites.clone();
        self.buffers[value] = Some(self.push_buffer(&name, ty, sites, role, None));
    }

    fn alias(&mut self, result: ValueId) {
        let buffer = self.read(0).buffer;
        self.buffers[result] = Some(self.view(buffer, self.graph.ty(result).clone()));
    }

    fn movement(&mut self, result: ValueId) {
        let (name, ty) = (self.name(result).to_string(), self.graph.ty(result).clone());
        let (sites, round) = (self.label().sites.clone(), self.label().round);
        let from = self.buf(self.operands()[0]);
        let buffer = self.push_buffer(&name, ty, sites, Role::Temp, None);
        self.wide.push_move(from, buffer, &name, round);
        self.buffers[result] = Some(buffer);
    }

    fn linear(&mut self, transposed: bool, activation: Activation) {
        let result = self.output(0);
        let save_pre = activation != Activation::None && self.wanted[result];
        let inner = *self.graph.ty(self.operands()[0]).dims().last().expect("a linear input has features");
        let op = TaskOp::Linear {
            transposed,
            activation,
            bias: self.rule.operands.len() == 3,
            residual: false,
            save_pre,
            leaves: self.feature_leaves(inner),
        };
        let (reads, mut writes) = (self.reads(), vec![self.result(0)]);
        if save_pre {
            let (global, map) = (self.graph.ty(result).global(), self.rule.results[0].clone());
            writes.push(self.save("pre", &global, map));
        }
        self.emit(op, reads, writes);
    }

    fn norm(&mut self, op: TaskOp, axes: usize, statistics: &[&str]) {
        let shape = self.graph.ty(self.output(0)).global().shape;
        let lead = shape.rank() - axes;
        let rows = TensorType::f32(Shape::new(&shape.dims()[..lead]));
        let mut map = self.rule.results[0].clone();
        map.dims.truncate(lead);
        let (reads, mut writes) = (self.reads(), vec![self.result(0)]);
        writes.extend(statistics.iter().map(|what| self.save(what, &rows, map.clone())));
        self.emit(op, reads, writes);
    }

    fn attention(&mut self, causal: bool, scale: f32) {
        let shape = self.graph.ty(self.output(0)).global().shape;
        let [batch, time, heads, _] = *shape.dims() else {
            unreachable!("attention is checked to have rank 4")
        };
        let TileMap { sum, copy, dims } = self.rule.results[0].clone();
        let map = TileMap { sum, copy, dims: [0, 2, 1].map(|dim| dims[dim].clone()).to_vec() };
        let (reads, y) = (self.reads(), self.result(0));
        let lse = self.save("lse", &TensorType::f32([batch, heads, time]), map);
        self.emit(TaskOp::Attention { causal, scale }, reads, vec![y, lse]);
    }

    fn split(&mut self, axis: usize, blocks: usize) {
        let (x, count) = (self.read(0), self.rule.results.len());
        let pieces: Vec<_> = (0..count).map(|slot| self.result(slot)).collect();
        self.emit_pieces(true, axis, blocks, x, pieces);
    }

    fn concat(&mut self, axis: usize, blocks: usize) {
        let (pieces, y) = (self.reads(), self.result(0));
        self.emit_pieces(false, axis, blocks, y, pieces);
    }

    /// A split of `whole` into `pieces`, or their join. With several blocks in a tile the axis is seen as two: the blocks
    /// and what is in one.
    pub(super) fn emit_pieces(
        &mut self,
        split: bool,
        axis: usize,
        blocks: usize,
        whole: Operand,
        pieces: Vec<Operand>,
    ) {
        let blocks = blocks / self.wide.buffers[whole.buffer].ty.degree(axis);
        let (mut at, mut all) = (axis, vec![whole]);
        all.extend(pieces);
        if blocks > 1 {
            at += 1;
            all = all.into_iter().map(|operand| self.in_blocks(operand, axis, blocks)).collect();
        }
        let pieces = all.split_off(1);
        match split {
            true => self.emit(TaskOp::Split { axis: at }, all, pieces),
            false => self.emit(TaskOp::Concat { axis: at }, pieces, all),
        }
    }

    /// A view in which `axis` is cut into blocks and the rest; the tiles' cut is between blocks.
    fn in_blocks(&mut self, operand: Operand, axis: usize, blocks: usize) -> Operand {
        let ty = self.wide.buffers[operand.buffer].ty.clone();
        let degrees: Vec<usize> = ty.dims().iter().map(|dim| dim.degree).collect();
        let mut sizes: Vec<usize> = ty.dims().iter().map(|dim| dim.size).collect();
        let whole = blocks * degrees[axis];
        sizes.splice(axis..=axis, [whole, sizes[axis] / whole]);
        let mut cut = degrees;
        cut.insert(axis + 1, 1);
        let global = TensorType::new(ty.dtype(), Shape::new(sizes));
        let ty = ParallelType::tiled(&global, &cut, ty.sum_degree(), ty.copy_degree());
        let mut map = operand.map;
        map.dims.insert(axis + 1, Vec::new());
        let buffer: BufferId = self.view(operand.buffer, ty.expect("blocks lie between the cuts"));
        Operand { buffer, map }
    }

    /// The dropout of the layer at hand: the mask depends on the layer's name and the element's index in the batch.
    pub(super) fn dropout(&self, rate: f32) -> TaskOp {
        let name = self.graph.layer_name(self.layer);
        let part = self.label().part;
        let base = part.and_then(|part| name.strip_suffix(&format!(".mb{}", part.index))).unwrap_or(name);
        // A result that lies differently in the end has its layer's name only then.
        let base = base.strip_suffix(COMPUTED).unwrap_or(base);
        let Microbatch { index, count, blocks } =
            part.unwrap_or(Microbatch { index: 0, count: 1, blocks: 1 });
        let [part, parts, blocks] = [index, count, blocks].map(|number| number as usize);
        let mask = Mask { rate, seed: self.options.seed, salt: hash(base), part, parts, blocks };
        TaskOp::Dropout { mask, accumulate: false }
    }
}

/// What plans append to the name of a result that is still to be laid out.
const COMPUTED: &str = ".computed";

/// FNV-1a: a fixed number for a name.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
