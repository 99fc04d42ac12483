//! Tasks of one layer: those of operators are made by the operators, in terms of [`LayerTasks`]; parallel operators are
//! movements.

use std::sync::Arc;

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::{Dim, Microbatch, ParallelType, TileMap, TilingRule};
use phalanx_ir::sharded::{Operand, ShardedTask};
use phalanx_ir::tasks::{BufferId, Mask, Role, TaskOp};
use phalanx_ir::{LayerTasks, Op, Precision, RowLeaves, TensorType, fill_task};

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
            Op::Param(_) | Op::State(_) => self.leaf(result, Role::Param),
            Op::Table(_) => self.leaf(result, Role::Table),
            Op::Constant(value) => {
                let y = self.result(0);
                self.emit(fill_task(*value), Vec::new(), vec![y]);
            }
            Op::Apply(operator) => operator.forward(self),
            _ => self.movement(result),
        }
    }

    /// Emits the backward tasks of the layer at hand, if a gradient reached one of its results.
    pub(super) fn backward(&mut self) {
        let layer = self.graph.layers()[self.layer].clone();
        if layer.op.is_leaf() {
            return;
        }
        let gradients: Vec<_> = layer.results.iter().map(|&result| self.gradient(result)).collect();
        if gradients.iter().all(Option::is_none) {
            return;
        }
        match (&layer.op, gradients[0]) {
            (Op::Apply(operator), _) => {
                let dy = |(slot, buffer): (usize, &Option<BufferId>)| {
                    buffer.map(|buffer| Operand { buffer, map: self.rule.results[slot].dual() })
                };
                let dy: Vec<_> = gradients.iter().enumerate().map(dy).collect();
                operator.backward(self, &dy);
            }
            (_, Some(gradient)) => self.movement_grad(gradient),
            _ => {}
        }
    }

    fn leaf(&mut self, value: ValueId, role: Role) {
        let (name, ty) = (self.name(value).to_string(), self.graph.ty(value).clone());
        let groups = self.label().groups.clone();
        self.buffers[value] = Some(self.push_buffer(&name, ty, groups, role, None));
    }

    fn movement(&mut self, result: ValueId) {
        let (name, ty) = (self.name(result).to_string(), self.graph.ty(result).clone());
        let (groups, microbatch) = (self.label().groups.clone(), self.label().due);
        let from = self.buf(self.graph.layers()[self.layer].operands[0]);
        let buffer = self.push_buffer(&name, ty, groups, Role::Temp, None);
        self.sharded.push_move(from, buffer, &name, microbatch);
        self.buffers[result] = Some(buffer);
    }

    /// The gradient of a parallel operator is a movement too: it gives the same value the dual tiling.
    fn movement_grad(&mut self, dy: BufferId) {
        let x = self.graph.layers()[self.layer].operands[0];
        if self.wanted[x] {
            self.check_blocks();
            let dx = self.value_gradient(x, self.sharded.buffers[dy].ty.sum_degree());
            let (layer, microbatch) = (self.graph.layer_name(self.layer).to_string(), self.label().due);
            self.sharded.push_move(dy, dx, &layer, microbatch);
            self.give_value(x, dx);
        }
    }
}

impl LayerTasks for Expander<'_> {
    fn layer(&self) -> &str {
        self.graph.layer_name(self.layer)
    }

    fn rule(&self) -> Arc<TilingRule> {
        Arc::clone(&self.rule)
    }

    fn operand(&self, slot: usize) -> (&str, &ParallelType) {
        let value = self.graph.layers()[self.layer].operands[slot];
        (self.name(value), self.graph.ty(value))
    }

    fn output(&self, slot: usize) -> (&str, &ParallelType) {
        let value = self.graph.layers()[self.layer].results[slot];
        (self.name(value), self.graph.ty(value))
    }

    fn buffer(&self, buffer: BufferId) -> &ParallelType {
        &self.sharded.buffers[buffer].ty
    }

    fn wants(&self, slot: usize) -> bool {
        self.wanted[self.graph.layers()[self.layer].operands[slot]]
    }

    fn has_backward(&self) -> bool {
        self.graph.layers()[self.layer].results.iter().any(|&result| self.wanted[result])
    }

    fn read(&self, slot: usize) -> Operand {
        let value = self.graph.layers()[self.layer].operands[slot];
        Operand { buffer: self.buf(value), map: self.rule.operands[slot].clone() }
    }

    fn read_again(&mut self, slot: usize) -> Operand {
        let value = self.graph.layers()[self.layer].operands[slot];
        match self.joined_again(value) {
            Some(buffer) => Operand { buffer, map: self.rule.operands[slot].clone() },
            None => self.read(slot),
        }
    }

    fn read_result(&self, slot: usize) -> Operand {
        let value = self.graph.layers()[self.layer].results[slot];
        Operand { buffer: self.buf(value), map: self.rule.results[slot].clone() }
    }

    fn saved(&self, index: usize) -> BufferId {
        self.saved[self.layer][index]
    }

    fn hyper(&mut self) -> Operand {
        let buffer = super::hyper(&mut self.sharded, || {
            self.graph.layers().iter().flat_map(|(_, layer)| layer.label.groups.iter())
        });
        Operand { buffer, map: TileMap { dims: vec![Vec::new()], ..TileMap::default() } }
    }

    fn result(&mut self, slot: usize) -> Operand {
        let value = self.graph.layers()[self.layer].results[slot];
        let (name, global) = (self.name(value).to_string(), self.graph.ty(value).global());
        let operand = self.temp(&name, &global, self.rule.results[slot].clone());
        self.buffers[value] = Some(operand.buffer);
        operand
    }

    fn alias(&mut self) {
        let result = self.graph.layers()[self.layer].results[0];
        let buffer = self.read(0).buffer;
        self.buffers[result] = Some(self.view(buffer, self.graph.ty(result).clone()));
    }

    fn save(&mut self, what: &str, global: &TensorType, map: TileMap) -> Operand {
        let name = format!("{}.{what}", self.graph.layer_name(self.layer));
        let operand = self.temp(&name, global, map);
        self.saved[self.layer].push(operand.buffer);
        operand
    }

    fn temp(&mut self, name: &str, global: &TensorType, map: TileMap) -> Operand {
        let ty = map
            .tiling(global, &self.rule.extents)
            .expect("degrees of operands divide what follows from them");
        let groups = self.groups_of(&ty, &map);
        let buffer = self.push_buffer(name, ty, groups, Role::Temp, None);
        Operand { buffer, map }
    }

    fn view(&mut self, buffer: BufferId, ty: ParallelType) -> BufferId {
        self.view_of(buffer, ty)
    }

    fn moved(&mut self, from: BufferId, map: TileMap) -> Operand {
        let (name, global) =
            (self.sharded.buffers[from].name.clone(), self.sharded.buffers[from].ty.global());
        let to = self.temp(&name, &global, map);
        let (layer, microbatch) = (self.graph.layer_name(self.layer).to_string(), self.label().due);
        self.sharded.push_move(from, to.buffer, &layer, microbatch);
        to
    }

    fn emit(&mut self, op: TaskOp, reads: Vec<Operand>, writes: Vec<Operand>) {
        let layer = self.graph.layer_name(self.layer).to_string();
        let (extents, groups) = (self.rule.extents.clone(), Arc::clone(&self.label().groups));
        let microbatch = self.label().due;
        self.sharded.tasks.push(ShardedTask { op, reads, writes, extents, groups, layer, microbatch });
    }

    fn give(&mut self, slot: usize, buffer: BufferId) {
        self.give_value(self.graph.layers()[self.layer].operands[slot], buffer);
    }

    fn precision(&self) -> Precision {
        self.options.precision
    }

    fn feature_leaves(&mut self, dim: Dim) -> usize {
        self.leaves_of_features(dim)
    }

    fn flat_leaves(&mut self, rows: &[Dim]) -> usize {
        self.leaves_of_rows(rows)
    }

    fn batch_time_leaves(&mut self, rows: &[Dim]) -> RowLeaves {
        self.leaves_of_batch_and_time(rows)
    }

    fn leaves_along(&mut self, ty: &ParallelType, axes: &[usize], batch: Option<usize>) -> usize {
        self.leaves_of_axes(ty, axes, batch)
    }

    fn operand_batch(&self, slot: usize) -> Option<usize> {
        self.batches[self.graph.layers()[self.layer].operands[slot]]
    }

    fn result_batch(&self) -> Option<usize> {
        self.batches[self.graph.layers()[self.layer].results[0]]
    }

    /// The mask depends on the layer's name and the element's index in the batch.
    fn mask(&self, rate: f32) -> Mask {
        let name = self.graph.layer_name(self.layer);
        let part = self.label().microbatch;
        let base = part.and_then(|part| name.strip_suffix(&format!(".mb{}", part.index))).unwrap_or(name);
        // A result that lies differently in the end has its layer's name only then.
        let base = base.strip_suffix(COMPUTED).unwrap_or(base);
        let Microbatch { index, count, blocks } =
            part.unwrap_or(Microbatch { index: 0, count: 1, blocks: 1 });
        let [part, parts, blocks] = [index, count, blocks].map(|number| number as usize);
        let axis = if parts > 1 { self.result_batch().unwrap_or(0) } else { 0 };
        Mask { rate, seed: self.options.seed, salt: mask_salt(base), part, parts, blocks, axis }
    }
}

/// What plans append to the name of a result that is still to be laid out.
const COMPUTED: &str = ".computed";

/// What tells the random numbers of a layer from those of others: a fixed number for its name, by FNV-1a.
pub fn mask_salt(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
