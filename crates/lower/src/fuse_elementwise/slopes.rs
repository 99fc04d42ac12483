//! Lets the linear task that computes a gradient multiply it by the slope of the activation it goes through.

use phalanx_ir::tasks::{Role, TaskId, TaskOp};
use phalanx_ir::wide::{Operand, WideGraph, WideTask};
use phalanx_ir::{Activation, Id, Unary};

use crate::rewrite::{Touches, rebuild};

pub fn fuse(wide: &WideGraph) -> WideGraph {
    let touches = Touches::of(wide);
    let mut list: Vec<Option<WideTask>> = wide.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for (id, task) in wide.tasks.iter() {
        let Some(Product { task: product, slope, points }) = product_of(wide, &touches, id) else { continue };
        let Some(fused) = &mut list[product.index()] else { continue };
        if let TaskOp::LinearGradInput { slope: field, .. } = &mut fused.op {
            *field = Some(slope);
            fused.reads.push(points);
            fused.writes[0].buffer = task.writes[0].buffer;
            list[id.index()] = None;
        }
    }
    rebuild(wide, list.into_iter().flatten().collect())
}

/// A product that can take in the gradient of an activation.
struct Product {
    task: TaskId,
    slope: Activation,
    /// Where the slope is taken, as the product's tasks read it.
    points: Operand,
}

/// The product whose result the gradient `id` of an activation alone reads.
fn product_of(wide: &WideGraph, touches: &Touches, id: TaskId) -> Option<Product> {
    let task = &wide.tasks[id];
    let TaskOp::UnaryGrad { kind: Unary::Act(slope), accumulate: false } = task.op else { return None };
    let ([points, dy], result) = (task.reads.first_chunk()?, &task.writes[0]);
    let [product] = touches.writers[wide.root(dy.buffer)][..] else { return None };
    let linear = &wide.tasks[product];
    let plain = matches!(linear.op, TaskOp::LinearGradInput { slope: None, accumulate: false, .. });
    let [between, after] = [dy, result].map(|operand| &wide.buffers[operand.buffer]);
    let alone = touches.readers[wide.root(dy.buffer)] == [id]
        && touches.writers[wide.root(result.buffer)] == [id]
        && between.role == Role::Temp;
    let alike = linear.writes[0].buffer == dy.buffer
        && result.map == dy.map
        && (&between.ty, &between.sites) == (&after.ty, &after.sites);
    let exists = touches.writers[wide.root(points.buffer)].iter().all(|&writer| writer < product);
    // The points are those of the value, whose tiling is dual to its gradient's.
    let dual = points.map == dy.map.dual() && wide.buffers[points.buffer].ty == between.ty.dual();
    (plain && alone && alike && exists && dual).then(|| {
        let map = linear.writes[0].map.dual();
        Product { task: product, slope, points: Operand { buffer: points.buffer, map } }
    })
}
