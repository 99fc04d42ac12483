//! Starts the backward tasks.
//!
//! Needs: a wide graph whose loss gradient is read, or is a parameter's gradient, but not written.
//! Gives: the same with a first task that writes one into it.

use std::sync::Arc;

use phalanx_ir::fill_task;
use phalanx_ir::tasks::BufferId;
use phalanx_ir::wide::{Operand, WideGraph, WideTask};

use crate::{LowerError, Options};

pub fn insert_loss(mut wide: WideGraph, _options: &Options) -> Result<WideGraph, LowerError> {
    let Some(loss) = wide.loss else { return Ok(wide) };
    if let Some(seed) = unwritten(&wide) {
        let (extents, map) = wide.buffers[seed].ty.grid();
        let sites = Arc::clone(&wide.buffers[seed].sites);
        let (layer, writes) = (wide.buffers[loss].name.clone(), vec![Operand { buffer: seed, map }]);
        let op = fill_task(1.0);
        let task = WideTask { op, reads: Vec::new(), writes, extents, sites, layer, round: 0 };
        let rest = std::mem::take(&mut wide.tasks);
        wide.tasks = std::iter::once(task).chain(rest).collect();
    }
    Ok(wide)
}

/// The first temporary that is read, by a task or as a gradient, before anything writes it.
fn unwritten(wide: &WideGraph) -> Option<BufferId> {
    let mut written: Vec<bool> = wide.buffers.iter().map(|(_, buffer)| buffer.role.is_fed()).collect();
    let index = |buffer| phalanx_ir::Id::index(wide.root(buffer));
    for (_, task) in wide.tasks.iter() {
        if let Some(seed) = task.read_buffers().find(|&buffer| !written[index(buffer)]) {
            return Some(wide.root(seed));
        }
        task.written_buffers().for_each(|buffer| written[index(buffer)] = true);
    }
    let roots = wide.gradients.iter().map(|&(_, gradient)| wide.root(gradient));
    roots.into_iter().find(|&root| !written[phalanx_ir::Id::index(root)])
}
