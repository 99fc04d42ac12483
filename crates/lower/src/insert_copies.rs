//! Brings every operand to the devices that read it.
//!
//! Needs: a verified sharded graph.
//! Gives: the same values; every task finds its operands on its own devices. A copy is made just before the first task
//! that needs it and shared by all later ones that need the same; what is already there is not copied (`expand-shards`
//! drops the tiles that stay). A movement of what another movement made for it alone is one movement.

use std::collections::HashMap;
use std::sync::Arc;

use phalanx_ir::parallel::{DeviceGroup, tile_groups};
use phalanx_ir::sharded::{ShardedBuffer, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, LowerOptions};

pub fn insert_copies(mut sharded: ShardedGraph, _options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    join_movements(&mut sharded);
    let tasks = std::mem::take(&mut sharded.tasks);
    let mut copies = Copies {
        versions: sharded.buffers.ids().map(|_| 0).collect(),
        known: HashMap::new(),
        places: HashMap::new(),
        sharded,
    };
    for task in tasks {
        copies.task(task);
    }
    let mut sharded = copies.sharded;
    let list = std::mem::take(&mut sharded.tasks).into_iter().collect();
    Ok(rebuild(&sharded, list))
}

/// Lets a movement start where the movement before it started, if no other task reads what lies between.
fn join_movements(sharded: &mut ShardedGraph) {
    let touches = Touches::of(sharded);
    let mut dropped = vec![false; sharded.tasks.len()];
    for id in sharded.tasks.ids().collect::<Vec<_>>() {
        while let Some((before, source)) = step_back(sharded, &touches, id) {
            dropped[before.index()] = true;
            sharded.tasks[id].reads[0] = source;
        }
    }
    let list = std::mem::take(&mut sharded.tasks).into_iter().zip(dropped);
    sharded.tasks = list.filter(|(_, dropped)| !dropped).map(|(task, _)| task).collect();
}

/// The movement that made the operand of movement `id` for it alone, and that movement's operand.
fn step_back(
    sharded: &ShardedGraph,
    touches: &Touches,
    id: TaskId,
) -> Option<(TaskId, phalanx_ir::sharded::Operand)> {
    let is_move = |task: &ShardedTask| matches!(task.op, TaskOp::Move { .. });
    let between = sharded.tasks[id].reads.first().filter(|_| is_move(&sharded.tasks[id]))?.buffer;
    let buffer = &sharded.buffers[between];
    if buffer.view_of.is_some() || buffer.role != Role::Temp {
        return None;
    }
    let [before] = touches.writers[between][..] else { return None };
    // A gradient is not read by a task yet, but will be.
    let gradient = sharded.gradients.iter().any(|&(_, gradient)| gradient == between);
    let alone = touches.readers[between].len() == 1 && !gradient;
    if !alone || !is_move(&sharded.tasks[before]) {
        return None;
    }
    let source = sharded.tasks[before].reads[0].clone();
    let writers = &touches.writers[sharded.root(source.buffer)];
    let unchanged = writers.iter().all(|&writer| writer < before || writer > id);
    unchanged.then_some((before, source))
}

struct Copies {
    sharded: ShardedGraph,
    /// How often each buffer was written so far.
    versions: IdVec<BufferId, u32>,
    /// Copies made so far, of which version.
    known: HashMap<(BufferId, u32, Arc<[DeviceGroup]>), BufferId>,
    /// Where tasks need the tiles of an operand.
    places: HashMap<PlaceKey, Arc<[DeviceGroup]>>,
}

/// What the needed groups follow from: the tasks' groups (by address), their grid, the operand's tiling and map.
type PlaceKey =
    (*const DeviceGroup, Vec<usize>, phalanx_ir::parallel::ParallelType, phalanx_ir::parallel::TileMap);

impl Copies {
    fn task(&mut self, mut task: ShardedTask) {
        if !matches!(task.op, TaskOp::Move { .. }) {
            for slot in 0..task.reads.len() {
                task.reads[slot].buffer = self.at(&task, slot);
            }
        }
        for buffer in task.written_buffers() {
            let root = self.sharded.root(buffer);
            self.versions[root] += 1;
        }
        self.sharded.tasks.push(task);
    }

    /// The operand in slot `slot`, on the devices of the tasks.
    fn at(&mut self, task: &ShardedTask, slot: usize) -> BufferId {
        let operand = &task.reads[slot];
        let ShardedBuffer { name, ty, groups, .. } = &self.sharded.buffers[operand.buffer];
        let key = (task.groups.as_ptr(), task.extents.clone(), ty.clone(), operand.map.clone());
        let needed = self
            .places
            .entry(key)
            .or_insert_with(|| tile_groups(ty, &operand.map, &task.extents, &task.groups));
        let needed = Arc::clone(needed);
        if Arc::ptr_eq(&needed, groups)
            || groups.iter().zip(needed.iter()).all(|(has, needs)| has.covers(needs))
        {
            return operand.buffer;
        }
        let version = self.versions[self.sharded.root(operand.buffer)];
        let key = (operand.buffer, version, Arc::clone(&needed));
        if let Some(&copy) = self.known.get(&key) {
            return copy;
        }
        let (name, ty) = (name.clone(), ty.clone());
        let copy = self.sharded.buffers.push(ShardedBuffer {
            name,
            ty,
            groups: needed,
            role: Role::Temp,
            view_of: None,
        });
        self.versions.push(0);
        self.sharded.push_move(operand.buffer, copy, &task.layer, task.microbatch);
        self.known.insert(key, copy);
        copy
    }
}
