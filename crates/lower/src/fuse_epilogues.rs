//! Adds residuals inside the linear tasks and convolutions whose result they are added to.
//!
//! Needs: a verified sharded graph.
//! Gives: the same values, with no `add` of such a result that no other task reads and a tensor of the same shape
//! that exists before it, on the same grid of tasks. Bits stay: the sum of two numbers does not depend on their order.

use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{EpilogueFlags, Role, TaskId, TaskOp};
use phalanx_ir::{Activation, Binary, Id};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, LowerOptions};

pub fn fuse_epilogues(sharded: ShardedGraph, _options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let touches = Touches::of(&sharded);
    let mut list: Vec<Option<ShardedTask>> =
        sharded.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for (id, task) in sharded.tasks.iter() {
        let Some((product, residual)) = residual_of(&sharded, &touches, id) else { continue };
        let Some(ShardedTask { op, reads, writes, .. }) = &mut list[product.index()] else { continue };
        let Some(flags) = op.epilogue().filter(|flags| !flags.residual) else { continue };
        op.set_epilogue(EpilogueFlags { residual: true, ..flags });
        // On the same groups the grids agree tile by tile, so the product's own map of the result names the tile.
        reads.push(Operand { buffer: residual.buffer, map: writes[0].map.clone() });
        writes[0].buffer = task.writes[0].buffer;
        list[id.index()] = None;
    }
    Ok(rebuild(&sharded, list.into_iter().flatten().collect()))
}

/// The product and the residual that the add `id` joins, if they can become one task.
fn residual_of(sharded: &ShardedGraph, touches: &Touches, id: TaskId) -> Option<(TaskId, Operand)> {
    let add = &sharded.tasks[id];
    if add.op != (TaskOp::Binary { kind: Binary::Add }) {
        return None;
    }
    let result = &sharded.buffers[add.writes[0].buffer];
    let candidate = |product: &Operand, residual: &Operand| {
        let root = sharded.root(product.buffer);
        let [writer] = touches.writers[root][..] else { return None };
        let task = &sharded.tasks[writer];
        let is_plain = |flags: EpilogueFlags| flags.activation == Activation::None && !flags.residual;
        let plain = task.op.epilogue().is_some_and(is_plain);
        let alone = touches.readers[root].len() == 1 && sharded.buffers[root].role == Role::Temp;
        // In another shape the rows of the sum would not be those of the product.
        let whole = task.writes[0].buffer == product.buffer;
        let [product_buffer, residual_buffer] =
            [product, residual].map(|operand| &sharded.buffers[operand.buffer]);
        let same = [product_buffer, residual_buffer]
            .iter()
            .all(|buffer| buffer.ty == result.ty && buffer.groups == result.groups);
        let exists = written_before(sharded, touches, residual, writer);
        (plain && alone && whole && same && exists && sharded.root(residual.buffer) != root)
            .then(|| (writer, residual.clone()))
    };
    candidate(&add.reads[1], &add.reads[0]).or_else(|| candidate(&add.reads[0], &add.reads[1]))
}

/// Whether the operand holds its final value before `task` runs.
fn written_before(sharded: &ShardedGraph, touches: &Touches, operand: &Operand, task: TaskId) -> bool {
    let root = sharded.root(operand.buffer);
    let writers = &touches.writers[root];
    (sharded.buffers[root].role.is_fed() || !writers.is_empty())
        && writers.iter().all(|&writer| writer < task)
}
