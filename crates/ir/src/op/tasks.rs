//! What an operator makes its tasks with: the buffers and sums of one layer, which the pass `expand_passes` of `lower`
//! offers.
//!
//! Sums over rows, for gradients of biases and of weights of norms: where time is cut, a device keeps its sums apart for
//! each leaf of the batch; these are added over the cuts of time first and over the batch's leaves last, which is the
//! order of one device.

use std::sync::Arc;

use crate::parallel::{Dim, ParallelType, TileMap, TilingRule};
use crate::sharded::Operand;
use crate::tasks::{BufferId, Mask, TaskOp};
use crate::text::Attrs;
use crate::{Precision, Reduce, Shape, TensorType};

/// The layer whose tasks are made.
pub trait LayerTasks {
    /// The layer's name.
    fn layer(&self) -> &str;
    /// Its grid of tasks, and what each uses.
    fn rule(&self) -> Arc<TilingRule>;
    /// The name and type of operand `slot`.
    fn operand(&self, slot: usize) -> (&str, &ParallelType);
    /// The name and type of result `slot`.
    fn output(&self, slot: usize) -> (&str, &ParallelType);
    /// The type of a buffer.
    fn buffer(&self, buffer: BufferId) -> &ParallelType;
    /// Whether a gradient of operand `slot` is of use.
    fn wants(&self, slot: usize) -> bool;
    /// Whether there will be backward tasks.
    fn has_backward(&self) -> bool;

    /// Operand `slot` as the forward tasks read it.
    fn read(&self, slot: usize) -> Operand;
    /// Operand `slot` as the backward tasks read it.
    fn read_again(&mut self, slot: usize) -> Operand;
    /// Result `slot` as the backward tasks read it.
    fn read_result(&self, slot: usize) -> Operand;
    /// What the forward tasks saved, in the order in which they did.
    fn saved(&self, index: usize) -> BufferId;
    /// The scalars the host feeds with every step.
    fn hyper(&mut self) -> Operand;

    /// A new buffer for result `slot`.
    fn result(&mut self, slot: usize) -> Operand;
    /// Makes result 0 a view of operand 0.
    fn alias(&mut self);
    /// A new buffer kept for the backward tasks, called after the layer and `what`.
    fn save(&mut self, what: &str, global: &TensorType, map: TileMap) -> Operand;
    /// A new buffer called `name` that the tasks write by `map`.
    fn temp(&mut self, name: &str, global: &TensorType, map: TileMap) -> Operand;
    /// The bytes of `buffer`, tile by tile, with the type `ty`.
    fn view(&mut self, buffer: BufferId, ty: ParallelType) -> BufferId;
    /// The value of `from` in a new buffer that the tasks read by `map`.
    fn moved(&mut self, from: BufferId, map: TileMap) -> Operand;
    /// Adds a task.
    fn emit(&mut self, op: TaskOp, reads: Vec<Operand>, writes: Vec<Operand>);
    /// Records `buffer` as a gradient of operand `slot`.
    fn give(&mut self, slot: usize, buffer: BufferId);

    /// What matrix products are computed in.
    fn precision(&self) -> Precision;
    /// Leaves of a sum over one feature dimension.
    fn feature_leaves(&mut self, dim: Dim) -> usize;
    /// Leaves of a sum over all elements of some outermost dimensions, as one list.
    fn flat_leaves(&mut self, rows: &[Dim]) -> usize;
    /// Leaves of a sum over `rows`, the outermost dimensions of a tensor: of batch and time both may be cut.
    fn batch_time_leaves(&mut self, rows: &[Dim]) -> RowLeaves;
    /// Leaves of a sum over some dimensions, along the first of them; the others must be whole.
    fn leaves_along(&mut self, ty: &ParallelType, axes: &[usize]) -> usize;
    /// Which elements a dropout of this rate makes zero.
    fn mask(&self, rate: f32) -> Mask;
}

/// How the rows of a tile are summed: a tree over blocks of the batch, in each a tree over blocks of time.
#[derive(Clone, Copy)]
pub struct RowLeaves {
    /// Leaves along the batch, in this tile.
    pub batch: usize,
    /// Leaves along time, in this tile.
    pub time: usize,
    /// Leaves along the batch, in the whole microbatch.
    pub whole: usize,
}

/// How the gradient of a vector is summed over the rows of `[batch, time, columns]`.
pub struct RowSum {
    /// The tree of the sum.
    pub leaves: RowLeaves,
    /// Time is cut: the sums of the batch's leaves are kept apart at first.
    pub keep: bool,
}

impl RowSum {
    /// Adds the attributes that a kernel needs for this sum.
    pub fn put(&self, attrs: Attrs) -> Attrs {
        let attrs = attrs.with("leaves", self.leaves.batch).with("inner", self.leaves.time);
        attrs.with_unless(false, "keep", self.keep)
    }
}

impl dyn LayerTasks + '_ {
    /// All operands as the forward tasks read them.
    pub fn reads(&self) -> Vec<Operand> {
        (0..self.rule().operands.len()).map(|slot| self.read(slot)).collect()
    }

    /// One forward task that reads all operands and writes result 0.
    pub fn plain(&mut self, op: TaskOp) {
        let (reads, y) = (self.reads(), self.result(0));
        self.emit(op, reads, vec![y]);
    }

    /// What the forward tasks saved, as the backward tasks read it.
    pub fn kept(&self, index: usize, map: TileMap) -> Operand {
        Operand { buffer: self.saved(index), map }
    }

    /// A new buffer for the gradient of operand `slot`.
    pub fn grad(&mut self, slot: usize) -> Operand {
        let (name, ty) = self.operand(slot);
        let (name, global) = (format!("{name}.grad"), ty.dual().global());
        self.temp(&name, &global, self.rule().operands[slot].dual())
    }

    /// One task that gives the gradient of operand `slot`, if it is of use.
    pub fn single(&mut self, slot: usize, op: TaskOp, reads: Vec<Operand>) {
        if self.wants(slot) {
            let dx = self.grad(slot);
            self.emit(op, reads, vec![dx.clone()]);
            self.give(slot, dx.buffer);
        }
    }

    /// One task that gives the gradients of all operands.
    pub fn joint(&mut self, op: TaskOp, reads: Vec<Operand>) {
        let writes: Vec<_> = (0..self.rule().operands.len()).map(|slot| self.grad(slot)).collect();
        self.emit(op, reads, writes.clone());
        writes.iter().enumerate().for_each(|(slot, gradient)| self.give(slot, gradient.buffer));
    }

    /// Leaves of a sum over all rows of a tensor `[rows…, columns]`, as one list of rows.
    pub fn row_leaves(&mut self, ty: &ParallelType) -> usize {
        let (_, rows) = ty.dims().split_last().expect("rows have columns");
        self.flat_leaves(rows)
    }

    /// How to sum over the rows of result 0: all dimensions but the innermost `columns`.
    pub fn row_sum(&mut self, columns: usize) -> RowSum {
        let ty = self.output(0).1.clone();
        let rows = &ty.dims()[..ty.dims().len() - columns];
        if columns > 1 {
            let batch = self.flat_leaves(rows);
            return RowSum { leaves: RowLeaves { batch, time: 1, whole: batch }, keep: false };
        }
        let leaves = self.batch_time_leaves(rows);
        RowSum { leaves, keep: matches!(rows, [_, time] if time.degree > 1) }
    }

    /// A buffer for the sums that go into the gradient of operand `slot`, a vector of columns.
    pub fn sums(&mut self, slot: usize, sum: &RowSum) -> Operand {
        if !sum.keep {
            return self.grad(slot);
        }
        let (name, ty) = self.operand(slot);
        let (name, columns) = (format!("{name}.grad.leaves"), ty.global().shape.elements());
        let rule = self.rule();
        let y = &rule.results[0];
        let columns_axes = rule.operands[slot].dims[0].clone();
        let map =
            TileMap { sum: y.dims[1].clone(), copy: Vec::new(), dims: vec![y.dims[0].clone(), columns_axes] };
        self.temp(&name, &TensorType::f32([sum.leaves.whole, columns]), map)
    }

    /// Gives the gradient of operand `slot` from its sums.
    pub fn give_sums(&mut self, slot: usize, sums: Operand, sum: &RowSum) {
        if !sum.keep {
            return self.give(slot, sums.buffer);
        }
        let over_time = TileMap { sum: Vec::new(), ..sums.map.clone() };
        let added = self.moved(sums.buffer, over_time);
        let (name, ty) = self.operand(slot);
        let (name, global) = (format!("{name}.grad"), ty.dual().global());
        let [batch, columns] = &sums.map.dims[..] else { unreachable!("sums are leaves by columns") };
        let map = TileMap { sum: batch.clone(), copy: Vec::new(), dims: vec![columns.clone()] };
        let total = self.temp(&name, &global, map);
        let op = reduce_task(Reduce::Sum, &[0], sum.leaves.batch);
        self.emit(op, vec![added], vec![total.clone()]);
        self.give(slot, total.buffer);
    }

    /// The gradient of a vector `slot` that was added to every row: sums of the columns of `dy`. A column sum is a product
    /// with ones, so it reads `dy` as products do.
    pub fn column_sum(&mut self, slot: usize, dy: Operand) {
        if !self.wants(slot) {
            return;
        }
        let sum = self.row_sum(1);
        let RowLeaves { batch, time, .. } = sum.leaves;
        let (keep, rounded) = (sum.keep, self.precision().rounds());
        let op = TaskOp::ColumnSum { leaves: batch, inner: time, keep, accumulate: false, rounded };
        let sums = self.sums(slot, &sum);
        self.emit(op, vec![dy], vec![sums.clone()]);
        self.give_sums(slot, sums, &sum);
    }

    /// The map of one number for each row of result 0, all dimensions but the innermost `columns`.
    pub fn row_map(&self, columns: usize) -> TileMap {
        let mut map = self.rule().results[0].clone();
        map.dims.truncate(map.dims.len() - columns);
        map
    }

    /// The forward task of a norm over the innermost `columns` dimensions; `statistics` are saved, one number a row.
    pub fn norm(&mut self, op: TaskOp, columns: usize, statistics: &[&str]) {
        let shape = self.output(0).1.global().shape;
        let rows = TensorType::f32(Shape::new(&shape.dims()[..shape.rank() - columns]));
        let map = self.row_map(columns);
        let (reads, mut writes) = (self.reads(), vec![self.result(0)]);
        writes.extend(statistics.iter().map(|what| self.save(what, &rows, map.clone())));
        self.emit(op, reads, writes);
    }

    /// The backward task of a norm: it gives the gradients of input and weights.
    pub fn norm_grad(&mut self, columns: usize, reads: Vec<Operand>, op: impl Fn(&RowSum) -> TaskOp) {
        let sum = self.row_sum(columns);
        let dx = self.grad(0);
        let sums: Vec<_> = (1..self.rule().operands.len()).map(|slot| self.sums(slot, &sum)).collect();
        let writes = std::iter::once(dx.clone()).chain(sums.iter().cloned()).collect();
        self.emit(op(&sum), reads, writes);
        self.give(0, dx.buffer);
        for (slot, sums) in (1..).zip(sums).filter(|(slot, _)| self.wants(*slot)).collect::<Vec<_>>() {
            self.give_sums(slot, sums, &sum);
        }
    }

    /// A new buffer for the gradient of a stretched operand, still in the result's shape and cut like `dy`.
    pub fn stretched_grad(&mut self, slot: usize, dy: &Operand) -> Operand {
        let (name, shape) = (format!("{}.grad{slot}", self.layer()), self.output(0).1.global().shape);
        self.temp(&name, &TensorType::f32(shape), dy.map.clone())
    }

    /// Sums the gradient of a stretched operand, still in the result's shape, back to the operand's own shape.
    pub fn unstretch(&mut self, slot: usize, full: Operand) {
        let (from, to) = (self.buffer(full.buffer).clone(), self.operand(slot).1.global().shape);
        let axes = stretched(&from.global().shape, &to);
        let all_rows = axes.len() + 1 == from.dims().len() && !axes.contains(&axes.len()) && to.rank() == 1;
        if axes.is_empty() {
            self.give(slot, full.buffer);
        } else if all_rows {
            self.column_sum(slot, full);
        } else {
            let leaves = self.leaves_along(&from, &axes);
            self.single(slot, reduce_task(Reduce::Sum, &axes, leaves), vec![full]);
        }
    }
}

/// The task that writes `value` everywhere.
pub fn fill_task(value: f32) -> TaskOp {
    TaskOp::call("fill", Attrs::new().with("value", value))
}

/// The task that joins elements along `axes`; their sum has so many leaves along the first of these.
pub fn reduce_task(kind: Reduce, axes: &[usize], leaves: usize) -> TaskOp {
    let attrs = Attrs::new().with("kind", kind).with_list("axes", axes).with("leaves", leaves);
    TaskOp::call("reduce", attrs)
}

/// The axes of `from` along which a tensor of shape `to` was stretched.
fn stretched(from: &Shape, to: &Shape) -> Vec<usize> {
    let missing = from.rank() - to.rank();
    (0..from.rank())
        .filter(|&axis| axis < missing || (to.dims()[axis - missing] == 1 && from.dims()[axis] != 1))
        .collect()
}
