//! Lets devices that all need a sum each compute a part of it.
//!
//! Needs: a sharded graph in which every task has its operands on its own devices.
//! Gives: the same values. A large sum that more than two devices get whole becomes two movements: each device sums one
//! block, then all gather the blocks. Each then receives the tensor twice instead of once for every partial sum. The
//! bits stay: an element is still the same tree of the same parts.

use std::sync::Arc;

use phalanx_ir::parallel::{Coord, DeviceGroup, DeviceId, ParallelType};
use phalanx_ir::sharded::{ShardedBuffer, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskOp};

use crate::{LowerError, LowerOptions};

/// Sums of fewer bytes are not worth a second movement.
const LARGE: usize = 64 << 10;

pub fn spread_sums(mut sharded: ShardedGraph, _options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    for task in std::mem::take(&mut sharded.tasks) {
        match blocks(&sharded, &task) {
            None => _ = sharded.tasks.push(task),
            Some(buffer) => {
                let (from, to) = (task.reads[0].buffer, task.writes[0].buffer);
                let between = sharded.buffers.push(buffer);
                sharded.push_move(from, between, &task.layer, task.microbatch);
                sharded.push_move(between, to, &task.layer, task.microbatch);
            }
        }
    }
    Ok(sharded)
}

/// The blocks of a large sum, one on each device that needs all of it.
fn blocks(sharded: &ShardedGraph, task: &ShardedTask) -> Option<ShardedBuffer> {
    let TaskOp::Move { .. } = task.op else { return None };
    let (from, to): (BufferId, BufferId) = (task.reads[0].buffer, task.writes[0].buffer);
    let ShardedBuffer { name, ty, groups, .. } = &sharded.buffers[to];
    let sums = sharded.buffers[from].ty.sum_degree();
    if sums <= 2 || ty.sum_degree() > 1 || ty.tile().bytes() < LARGE {
        return None;
    }
    let holders = holders(ty, groups);
    let count = holders.first().map(Vec::len).filter(|&count| count > 2)?;
    let tile = ty.tile();
    let dim = tile.shape.dims().iter().position(|extent| extent.is_multiple_of(count))?;
    if holders.iter().any(|devices| devices.len() != count) {
        return None;
    }
    let mut degrees: Vec<usize> = ty.dims().iter().map(|dim| dim.degree).collect();
    degrees[dim] *= count;
    let cut = ParallelType::tiled(&ty.global(), &degrees, 1, 1)?;
    let group = |index: usize| {
        let mut coord = cut.coord(index);
        let part = coord.dims[dim] % count;
        coord.dims[dim] /= count;
        DeviceGroup::one(holders[ty.index(&coord)][part])
    };
    let groups: Arc<[DeviceGroup]> = (0..cut.tiles()).map(group).collect();
    Some(ShardedBuffer { name: name.clone(), ty: cut, groups, role: Role::Temp, view_of: None })
}

/// For every tile, copies taken together, the devices that hold it.
fn holders(ty: &ParallelType, groups: &[DeviceGroup]) -> Vec<Vec<DeviceId>> {
    let tiles = ty.tiles() / ty.copy_degree();
    let devices = |tile: usize| {
        let copies = (0..ty.copy_degree()).flat_map(move |copy| {
            let Coord { sum, dims, .. } = ty.coord(tile);
            groups[ty.index(&Coord { sum, copy, dims })].devices().iter().copied()
        });
        copies.collect()
    };
    (0..tiles).map(devices).collect()
}
