//! Adds residuals inside the linear tasks whose result they are added to.
//!
//! Needs: a verified wide graph.
//! Gives: the same values, with no `add` of a linear result that nobody else reads and a tensor of the same shape
//! that exists before it, on the same grid of tasks. Bits stay: the sum of two numbers does not depend on their order.

use phalanx_ir::tasks::{Role, TaskId, TaskOp};
use phalanx_ir::wide::{Operand, WideGraph, WideTask};
use phalanx_ir::{Activation, Binary, Id};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, Options};

pub fn fuse_epilogues(wide: WideGraph, _options: &Options) -> Result<WideGraph, LowerError> {
    let touches = Touches::of(&wide);
    let mut list: Vec<Option<WideTask>> = wide.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for (id, task) in wide.tasks.iter() {
        let Some((linear, residual)) = residual_of(&wide, &touches, id) else { continue };
        let Some(WideTask { op: TaskOp::Linear { residual: flag, .. }, reads, writes, .. }) =
            &mut list[linear.index()]
        else {
            continue;
        };
        if *flag {
            continue;
        }
        *flag = true;
        // On the same sites the grids agree tile by tile, so the linear task's own map of the result names the tile.
        reads.push(Operand { buffer: residual.buffer, map: writes[0].map.clone() });
        writes[0].buffer = task.writes[0].buffer;
        list[id.index()] = None;
    }
    Ok(rebuild(&wide, list.into_iter().flatten().collect()))
}

/// The linear task and the residual that the add `id` joins, if they can become one task.
fn residual_of(wide: &WideGraph, touches: &Touches, id: TaskId) -> Option<(TaskId, Operand)> {
    let add = &wide.tasks[id];
    if add.op != (TaskOp::Binary { kind: Binary::Add }) {
        return None;
    }
    let result = &wide.buffers[add.writes[0].buffer];
    let candidate = |product: &Operand, residual: &Operand| {
        let root = wide.root(product.buffer);
        let [linear] = touches.writers[root][..] else { return None };
        let task = &wide.tasks[linear];
        let plain = matches!(task.op, TaskOp::Linear { activation: Activation::None, residual: false, .. });
        let alone = touches.readers[root].len() == 1 && wide.buffers[root].role == Role::Temp;
        // In another shape the rows of the sum would not be those of the product.
        let whole = task.writes[0].buffer == product.buffer;
        let [product_buffer, residual_buffer] =
            [product, residual].map(|operand| &wide.buffers[operand.buffer]);
        let same = [product_buffer, residual_buffer]
            .iter()
            .all(|buffer| buffer.ty == result.ty && buffer.sites == result.sites);
        let exists = written_before(wide, touches, residual, linear);
        (plain && alone && whole && same && exists && wide.root(residual.buffer) != root)
            .then(|| (linear, residual.clone()))
    };
    candidate(&add.reads[1], &add.reads[0]).or_else(|| candidate(&add.reads[0], &add.reads[1]))
}

/// Whether the operand holds its final value before `task` runs.
fn written_before(wide: &WideGraph, touches: &Touches, operand: &Operand, task: TaskId) -> bool {
    let root = wide.root(operand.buffer);
    let writers = &touches.writers[root];
    (wide.buffers[root].role.is_fed() || !writers.is_empty()) && writers.iter().all(|&writer| writer < task)
}
