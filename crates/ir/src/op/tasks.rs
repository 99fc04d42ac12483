//! What an operator makes its tasks with: the buffers and sums of one layer, which the pass `expand_passes` of `lower`
//! offers.
//!
//! Sums over rows, for gradients of biases and of weights of norms: where time is cut, a device keeps its sums apart for
//! each leaf of the batch; these are added over the cuts of time first and over the batch's leaves last, which is the
//! order of one device. Rows of `[batch, time, heads]` have sums for each head of each leaf of the batch; heads are added
//! as a tree inside the batch's leaf.
//!
//! The batch need not be the outermost dimension. Sums over it are trees over its leaves all the same: what is summed is
//! turned first, such that the batch is outermost.

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
    /// Leaves of a sum over some dimensions, along the first of them; the others must be whole. `batch` is the dimension of
    /// the batch, if there is one.
    fn leaves_along(&mut self, ty: &ParallelType, axes: &[usize], batch: Option<usize>) -> usize;
    /// The dimension of operand `slot` along which samples lie, if there is one.
    fn operand_batch(&self, slot: usize) -> Option<usize>;
    /// The dimension of result 0 along which samples lie, if there is one.
    fn result_batch(&self) -> Option<usize>;
    /// Which elements a dropout of this rate makes zero.
    fn mask(&self, rate: f32) -> Mask;
}

/// How the rows of a tile are summed: a tree over blocks of the batch, in each a tree over heads, in each a tree over
/// blocks of time.
#[derive(Clone, Copy)]
pub struct RowLeaves {
    /// Leaves along the batch, in this tile.
    pub batch: usize,
    /// Leaves along time, in this tile.
    pub time: usize,
    /// Leaves along heads, in this tile; none if the rows have no third dimension.
    pub heads: Option<usize>,
    /// Leaves along the batch, in the whole microbatch.
    pub whole: usize,
}

/// How the gradient of a vector is summed over the rows of `[batch, time, columns]` or `[batch, time, heads, columns]`.
pub struct RowSum {
    /// The tree of the sum.
    pub leaves: RowLeaves,
    /// Time is cut, or there are heads: the sums of the batch's leaves are kept apart at first.
    pub keep: bool,
    /// Heads in a tile, each with sums of its own at first.
    pub heads: usize,
}

impl RowSum {
    /// Adds the attributes that a kernel needs for this sum.
    pub fn put(&self, attrs: Attrs) -> Attrs {
        let attrs = attrs.with("leaves", self.leaves.batch).with("inner", self.leaves.time);
        attrs.with_unless(false, "keep", self.keep).with_unless(1, "heads", self.heads)
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

    /// The dimension of the batch among the rows of result 0, which are all but its innermost `columns`; the outermost if
    /// there is none.
    pub fn batch_row(&self, columns: usize) -> usize {
        let rows = self.output(0).1.dims().len() - columns;
        self.result_batch().filter(|&batch| batch < rows).unwrap_or(0)
    }

    /// `operand` with dimension `batch` outermost.
    pub fn batch_first(&mut self, operand: Operand, batch: usize) -> Operand {
        if batch == 0 {
            return operand;
        }
        let from = self.buffer(operand.buffer).global();
        let perm: Vec<usize> = front(&(0..from.shape.rank()).collect::<Vec<_>>(), batch);
        let global = TensorType::new(from.dtype, Shape::new(front(from.shape.dims(), batch)));
        let map = TileMap { dims: front(&operand.map.dims, batch), ..operand.map.clone() };
        let to = self.temp(&format!("{}.turned", self.layer()), &global, map);
        self.emit(transpose_task(&perm), vec![operand], vec![to.clone()]);
        to
    }

    /// The rows of result 0: all dimensions but the innermost `columns`, the batch outermost.
    fn rows(&self, columns: usize) -> Vec<Dim> {
        let dims = self.output(0).1.dims();
        front(&dims[..dims.len() - columns], self.batch_row(columns))
    }

    /// How to sum over the rows of result 0 as one list, of which only the batch is cut.
    pub fn flat_row_sum(&mut self, columns: usize) -> RowSum {
        let rows = self.rows(columns);
        let batch = self.flat_leaves(&rows);
        let leaves = RowLeaves { batch, time: 1, heads: None, whole: batch };
        RowSum { leaves, keep: false, heads: 1 }
    }

    /// How to sum over the rows of result 0: all dimensions but the innermost `columns`, the batch outermost.
    pub fn row_sum(&mut self, columns: usize) -> RowSum {
        if columns > 1 {
            return self.flat_row_sum(columns);
        }
        let rows = self.rows(columns);
        let leaves = self.batch_time_leaves(&rows);
        let heads = leaves.heads.map_or(1, |_| rows[2].size / rows[2].degree);
        let keep = leaves.heads.is_some() || matches!(rows[..], [_, time] if time.degree > 1);
        RowSum { leaves, keep, heads }
    }

    /// A buffer for the sums that go into the gradient of operand `slot`, a vector of columns.
    pub fn sums(&mut self, slot: usize, sum: &RowSum) -> Operand {
        if !sum.keep {
            return self.grad(slot);
        }
        let (name, ty) = self.operand(slot);
        let (name, columns) = (format!("{name}.grad.leaves"), ty.global().shape.elements());
        let (rule, batch, ty) = (self.rule(), self.batch_row(1), self.output(0).1);
        let (axes, extents) = (front(&rule.results[0].dims, batch), front(ty.global().shape.dims(), batch));
        let (mut shape, mut dims) = (vec![sum.leaves.whole], vec![axes[0].clone()]);
        if sum.leaves.heads.is_some() {
            shape.push(extents[2]);
            dims.push(axes[2].clone());
        }
        shape.push(columns);
        dims.push(rule.operands[slot].dims[0].clone());
        let map = TileMap { sum: axes[1].clone(), copy: Vec::new(), dims };
        self.temp(&name, &TensorType::f32(Shape::new(shape)), map)
    }

    /// Gives the gradient of operand `slot` from its sums.
    pub fn give_sums(&mut self, slot: usize, sums: Operand, sum: &RowSum) {
        if !sum.keep {
            return self.give(slot, sums.buffer);
        }
        let mut sums = self.added(sums);
        let (name, ty) = self.operand(slot);
        let (name, global) = (format!("{name}.grad"), ty.dual().global());
        if let Some(leaves) = sum.leaves.heads {
            let [batch, heads, columns] = &sums.map.dims[..] else { unreachable!("there are heads") };
            let dims = vec![batch.clone(), columns.clone()];
            let map = TileMap { sum: heads.clone(), copy: Vec::new(), dims };
            let shape = [sum.leaves.whole, global.shape.elements()];
            let joined = self.temp(&format!("{name}.leaves"), &TensorType::f32(shape), map);
            self.emit(reduce_task(Reduce::Sum, &[1], leaves), vec![sums], vec![joined.clone()]);
            sums = self.added(joined);
        }
        let [batch, columns] = &sums.map.dims[..] else { unreachable!("sums are leaves by columns") };
        let map = TileMap { sum: batch.clone(), copy: Vec::new(), dims: vec![columns.clone()] };
        let total = self.temp(&name, &global, map);
        let op = reduce_task(Reduce::Sum, &[0], sum.leaves.batch);
        self.emit(op, vec![sums], vec![total.clone()]);
        self.give(slot, total.buffer);
    }

    /// The sum of partial sums, where they are.
    fn added(&mut self, sums: Operand) -> Operand {
        match sums.map.sum.is_empty() {
            true => sums,
            false => self.moved(sums.buffer, TileMap { sum: Vec::new(), ..sums.map }),
        }
    }

    /// The gradient of a vector `slot` that was added to every row: sums of the columns of `dy`, its batch outermost. A
    /// column sum is a product with ones, so it reads `dy` as products do.
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

    /// The backward task of a norm: it gives the gradients of input and weights. What it reads by rows has the batch
    /// outermost.
    pub fn norm_grad(&mut self, columns: usize, reads: Vec<Operand>, op: impl Fn(&RowSum) -> TaskOp) {
        let sum = self.row_sum(columns);
        self.norm_grad_by(sum, columns, reads, op);
    }

    /// The same with another order of the sums over rows.
    pub fn norm_grad_by(
        &mut self,
        sum: RowSum,
        columns: usize,
        reads: Vec<Operand>,
        op: impl Fn(&RowSum) -> TaskOp,
    ) {
        let batch = self.batch_row(columns);
        let given = self.grad(0);
        let dx = match batch {
            0 => given.clone(),
            _ => {
                let global = self.buffer(given.buffer).global();
                let global = TensorType::f32(Shape::new(front(global.shape.dims(), batch)));
                let map = TileMap { dims: front(&given.map.dims, batch), ..given.map.clone() };
                self.temp(&format!("{}.turned", self.layer()), &global, map)
            }
        };
        let sums: Vec<_> = (1..self.rule().operands.len()).map(|slot| self.sums(slot, &sum)).collect();
        let writes = std::iter::once(dx.clone()).chain(sums.iter().cloned()).collect();
        self.emit(op(&sum), reads, writes);
        if batch > 0 {
            self.emit(transpose_task(&back(given.map.dims.len(), batch)), vec![dx], vec![given.clone()]);
        }
        self.give(0, given.buffer);
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
            let batch = self.batch_row(1);
            let full = self.batch_first(full, batch);
            self.column_sum(slot, full);
        } else {
            let batch = self.result_batch();
            let (full, op) = self.sum_task(Reduce::Sum, full, &axes, batch);
            self.single(slot, op, vec![full]);
        }
    }

    /// The task that joins elements of `x` along `axes`, and what it reads: x, or x with the batch outermost if it is one of
    /// several dimensions that are joined.
    pub fn sum_task(
        &mut self,
        kind: Reduce,
        x: Operand,
        axes: &[usize],
        batch: Option<usize>,
    ) -> (Operand, TaskOp) {
        let ty = self.buffer(x.buffer).clone();
        let Some(turned) = batch.filter(|batch| axes.iter().skip(1).any(|axis| axis == batch)) else {
            let leaves = self.leaves_along(&ty, axes, batch);
            return (x, reduce_task(kind, axes, leaves));
        };
        let x = self.batch_first(x, turned);
        let place = |&axis: &usize| if axis == turned { 0 } else { axis + usize::from(axis < turned) };
        let mut axes: Vec<usize> = axes.iter().map(place).collect();
        axes.sort_unstable();
        let ty = self.buffer(x.buffer).clone();
        let leaves = self.leaves_along(&ty, &axes, Some(0));
        (x, reduce_task(kind, &axes, leaves))
    }
}

/// The list with element `at` first.
fn front<T: Clone>(list: &[T], at: usize) -> Vec<T> {
    let mut list = list.to_vec();
    if at > 0 {
        list[..=at].rotate_right(1);
    }
    list
}

/// The permutation that puts the outermost of `rank` dimensions at place `at`.
fn back(rank: usize, at: usize) -> Vec<usize> {
    (1..=at).chain([0]).chain(at + 1..rank).collect()
}

/// The task whose output dimension i is input dimension `perm[i]`.
fn transpose_task(perm: &[usize]) -> TaskOp {
    TaskOp::call("transpose", Attrs::new().with_list("perm", perm))
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
