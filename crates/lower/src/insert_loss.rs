//! Starts the backward tasks.
//!
//! Needs: a sharded graph whose loss gradient is read, or is a parameter's gradient, but not written.
//! Gives: the same with a first task that writes one into it.

use std::sync::Arc;

use phalanx_ir::fill_task;
use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::BufferId;

use crate::{LowerError, LowerOptions};

pub fn insert_loss(mut sharded: ShardedGraph, _options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let Some(loss) = sharded.loss else { return Ok(sharded) };
    if let Some(seed) = unwritten(&sharded) {
        let (extents, map) = sharded.buffers[seed].ty.grid();
        let groups = Arc::clone(&sharded.buffers[seed].groups);
        let (layer, writes) = (sharded.buffers[loss].name.clone(), vec![Operand { buffer: seed, map }]);
        let op = fill_task(1.0);
        let task = ShardedTask { op, reads: Vec::new(), writes, extents, groups, layer, microbatch: 0 };
        let rest = std::mem::take(&mut sharded.tasks);
        sharded.tasks = std::iter::once(task).chain(rest).collect();
    }
    Ok(sharded)
}

/// The first temporary that is read, by a task or as a gradient, before anything writes it.
fn unwritten(sharded: &ShardedGraph) -> Option<BufferId> {
    let mut written: Vec<bool> = sharded.buffers.iter().map(|(_, buffer)| buffer.role.is_fed()).collect();
    let index = |buffer| phalanx_ir::Id::index(sharded.root(buffer));
    for (_, task) in sharded.tasks.iter() {
        if let Some(seed) = task.read_buffers().find(|&buffer| !written[index(buffer)]) {
            return Some(sharded.root(seed));
        }
        task.written_buffers().for_each(|buffer| written[index(buffer)] = true);
    }
    let roots = sharded.gradients.iter().map(|&(_, gradient)| sharded.root(gradient));
    roots.into_iter().find(|&root| !written[phalanx_ir::Id::index(root)])
}
