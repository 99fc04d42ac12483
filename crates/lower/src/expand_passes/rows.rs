//! Sums over rows for gradients of biases and norm weights.
//!
//! Where time is cut, a device keeps its sums apart for each leaf of the batch; these are added over the cuts of time
//! first and over the batch's leaves last, which is the order of one device.

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::TileMap;
use phalanx_ir::tasks::{BufferId, TaskOp};
use phalanx_ir::wide::Operand;
use phalanx_ir::{Reduce, TensorType};

use super::Expander;
use super::leaves::RowLeaves;

/// How the gradient of a vector is summed over the rows of `[batch, time, columns]`.
pub(super) struct RowSum {
    pub leaves: RowLeaves,
    /// Time is cut: the sums of the batch's leaves are kept apart at first.
    pub keep: bool,
}

impl Expander<'_> {
    /// How to sum over the rows of result 0 of the layer at hand: all dimensions but the innermost `columns`.
    pub(super) fn row_sum(&mut self, columns: usize) -> RowSum {
        let ty = self.graph.ty(self.output(0)).clone();
        let rows = &ty.dims()[..ty.dims().len() - columns];
        if columns > 1 {
            let batch = self.flat_leaves(rows);
            return RowSum { leaves: RowLeaves { batch, time: 1, whole: batch }, keep: false };
        }
        let leaves = self.batch_time_leaves(rows);
        RowSum { leaves, keep: matches!(rows, [_, time] if time.degree > 1) }
    }

    /// A buffer for the sums that go into the gradient of operand `slot`, a vector of columns.
    pub(super) fn sums(&mut self, slot: usize, sum: &RowSum) -> Operand {
        if !sum.keep {
            return self.grad(slot);
        }
        let value = self.operands()[slot];
        let name = format!("{}.grad.leaves", self.name(value));
        let columns = self.graph.ty(value).global().shape.elements();
        let y = self.rule.results[0].clone();
        let columns_axes = self.rule.operands[slot].dims[0].clone();
        let map =
            TileMap { sum: y.dims[1].clone(), copy: Vec::new(), dims: vec![y.dims[0].clone(), columns_axes] };
        self.temp(&name, &TensorType::f32([sum.leaves.whole, columns]), map)
    }

    /// Gives the gradient of operand `slot` from its sums.
    pub(super) fn give_sums(&mut self, slot: usize, sums: Operand, sum: &RowSum) {
        let value: ValueId = self.operands()[slot];
        let gradient: BufferId = match sum.keep {
            false => sums.buffer,
            true => {
                let over_time = TileMap { sum: Vec::new(), ..sums.map.clone() };
                let added = self.moved(sums.buffer, over_time);
                let name = format!("{}.grad", self.name(value));
                let global = self.graph.ty(value).dual().global();
                let [batch, columns] = &sums.map.dims[..] else { unreachable!("sums are leaves by columns") };
                let map = TileMap { sum: batch.clone(), copy: Vec::new(), dims: vec![columns.clone()] };
                let total = self.temp(&name, &global, map);
                let op = TaskOp::Reduce { kind: Reduce::Sum, axes: vec![0], leaves: sum.leaves.batch };
                self.emit(op, vec![added], vec![total.clone()]);
                total.buffer
            }
        };
        self.give(value, gradient);
    }

    /// The gradient of a vector `slot` that was added to every row: sums of the columns of `dy`.
    pub(super) fn column_sum(&mut self, slot: usize, dy: Operand) {
        if !self.wanted[self.operands()[slot]] {
            return;
        }
        let sum = self.row_sum(1);
        let RowLeaves { batch, time, .. } = sum.leaves;
        let op = TaskOp::ColumnSum { leaves: batch, inner: time, keep: sum.keep, accumulate: false };
        let sums = self.sums(slot, &sum);
        self.emit(op, vec![dy], vec![sums.clone()]);
        self.give_sums(slot, sums, &sum);
    }
}
