//! Lets the linear task or convolution that computes a gradient multiply it by the slope of the activation it goes through.

use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{Role, TaskId, TaskOp};
use phalanx_ir::{Activation, Id, Unary};

use crate::rewrite::{Touches, rebuild};

pub fn fuse(sharded: &ShardedGraph) -> ShardedGraph {
    let touches = Touches::of(sharded);
    let mut list: Vec<Option<ShardedTask>> =
        sharded.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for (id, task) in sharded.tasks.iter() {
        let Some(Product { task: product, slope, points }) = product_of(sharded, &touches, id) else {
            continue;
        };
        let Some(fused) = &mut list[product.index()] else { continue };
        fused.op.set_slope(slope);
        fused.reads.push(points);
        fused.writes[0].buffer = task.writes[0].buffer;
        list[id.index()] = None;
    }
    rebuild(sharded, list.into_iter().flatten().collect())
}

/// A product that can take in the gradient of an activation.
struct Product {
    task: TaskId,
    slope: Activation,
    /// Where the slope is taken, as the product's tasks read it.
    points: Operand,
}

/// The product whose result the gradient `id` of an activation alone reads.
fn product_of(sharded: &ShardedGraph, touches: &Touches, id: TaskId) -> Option<Product> {
    let task = &sharded.tasks[id];
    let TaskOp::UnaryGrad { kind: Unary::Act(slope), accumulate: false, rounded } = task.op else {
        return None;
    };
    let ([points, dy], result) = (task.reads.first_chunk()?, &task.writes[0]);
    let [product] = touches.writers[sharded.root(dy.buffer)][..] else { return None };
    let gradient = &sharded.tasks[product];
    let (None, precision) = gradient.op.slope()? else { return None };
    if gradient.op.accumulates() == Some(true) {
        return None;
    }
    let [between, after] = [dy, result].map(|operand| &sharded.buffers[operand.buffer]);
    let alone = touches.readers[sharded.root(dy.buffer)] == [id]
        && touches.writers[sharded.root(result.buffer)] == [id]
        && between.role == Role::Temp;
    let alike = gradient.writes[0].buffer == dy.buffer
        && result.map == dy.map
        && (&between.ty, &between.groups) == (&after.ty, &after.groups);
    let exists = touches.writers[sharded.root(points.buffer)].iter().all(|&writer| writer < product);
    // The points are those of the value, whose tiling is dual to its gradient's.
    let dual = points.map == dy.map.dual() && sharded.buffers[points.buffer].ty == between.ty.dual();
    // A product whose operands are rounded takes slopes at rounded points.
    (precision.rounds() == rounded && alone && alike && exists && dual).then(|| {
        let map = gradient.writes[0].map.dual();
        Product { task: product, slope, points: Operand { buffer: points.buffer, map } }
    })
}
