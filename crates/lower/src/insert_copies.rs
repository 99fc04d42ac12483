//! Brings every operand to the devices that read it.
//!
//! Needs: a verified wide graph.
//! Gives: the same values; every task finds its operands on its own devices. A copy is made just before the first task
//! that needs it and shared by all later ones that need the same; what is already there is not copied (`expand-shards`
//! drops the tiles that stay). A movement of what another movement made for it alone is one movement.

use std::collections::HashMap;
use std::sync::Arc;

use phalanx_ir::parallel::{Site, tile_sites};
use phalanx_ir::tasks::{BufferId, Role, TaskId, TaskOp};
use phalanx_ir::wide::{WideBuffer, WideGraph, WideTask};
use phalanx_ir::{Id, IdVec};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, Options};

pub fn insert_copies(mut wide: WideGraph, _options: &Options) -> Result<WideGraph, LowerError> {
    join_movements(&mut wide);
    let tasks = std::mem::take(&mut wide.tasks);
    let mut copies = Copies {
        versions: wide.buffers.ids().map(|_| 0).collect(),
        known: HashMap::new(),
        places: HashMap::new(),
        wide,
    };
    for task in tasks {
        copies.task(task);
    }
    let mut wide = copies.wide;
    let list = std::mem::take(&mut wide.tasks).into_iter().collect();
    Ok(rebuild(&wide, list))
}

/// Lets a movement start where the movement before it started, if nobody else reads what lies between.
fn join_movements(wide: &mut WideGraph) {
    let touches = Touches::of(wide);
    let mut dropped = vec![false; wide.tasks.len()];
    for id in wide.tasks.ids().collect::<Vec<_>>() {
        while let Some((before, source)) = step_back(wide, &touches, id) {
            dropped[before.index()] = true;
            wide.tasks[id].reads[0] = source;
        }
    }
    let list = std::mem::take(&mut wide.tasks).into_iter().zip(dropped);
    wide.tasks = list.filter(|(_, dropped)| !dropped).map(|(task, _)| task).collect();
}

/// The movement that made the operand of movement `id` for it alone, and that movement's operand.
fn step_back(wide: &WideGraph, touches: &Touches, id: TaskId) -> Option<(TaskId, phalanx_ir::wide::Operand)> {
    let is_move = |task: &WideTask| matches!(task.op, TaskOp::Move { .. });
    let between = wide.tasks[id].reads.first().filter(|_| is_move(&wide.tasks[id]))?.buffer;
    let buffer = &wide.buffers[between];
    if buffer.view_of.is_some() || buffer.role != Role::Temp {
        return None;
    }
    let [before] = touches.writers[between][..] else { return None };
    // A gradient is not read by a task yet, but will be.
    let gradient = wide.gradients.iter().any(|&(_, gradient)| gradient == between);
    let alone = touches.readers[between].len() == 1 && !gradient;
    if !alone || !is_move(&wide.tasks[before]) {
        return None;
    }
    let source = wide.tasks[before].reads[0].clone();
    let writers = &touches.writers[wide.root(source.buffer)];
    let unchanged = writers.iter().all(|&writer| writer < before || writer > id);
    unchanged.then_some((before, source))
}

struct Copies {
    wide: WideGraph,
    /// How often each buffer was written so far.
    versions: IdVec<BufferId, u32>,
    /// Copies made so far, of which version.
    known: HashMap<(BufferId, u32, Arc<[Site]>), BufferId>,
    /// Where tasks need the tiles of an operand.
    places: HashMap<PlaceKey, Arc<[Site]>>,
}

/// What the needed sites follow from: the tasks' sites (by address), their grid, the operand's tiling and map.
type PlaceKey = (*const Site, Vec<usize>, phalanx_ir::parallel::ParallelType, phalanx_ir::parallel::TileMap);

impl Copies {
    fn task(&mut self, mut task: WideTask) {
        if !matches!(task.op, TaskOp::Move { .. }) {
            for slot in 0..task.reads.len() {
                task.reads[slot].buffer = self.at(&task, slot);
            }
        }
        for buffer in task.written_buffers() {
            let root = self.wide.root(buffer);
            self.versions[root] += 1;
        }
        self.wide.tasks.push(task);
    }

    /// The operand in slot `slot`, on the devices of the tasks.
    fn at(&mut self, task: &WideTask, slot: usize) -> BufferId {
        let operand = &task.reads[slot];
        let WideBuffer { name, ty, sites, .. } = &self.wide.buffers[operand.buffer];
        let key = (task.sites.as_ptr(), task.extents.clone(), ty.clone(), operand.map.clone());
        let needed = self
            .places
            .entry(key)
            .or_insert_with(|| tile_sites(ty, &operand.map, &task.extents, &task.sites));
        let needed = Arc::clone(needed);
        if Arc::ptr_eq(&needed, sites)
            || sites.iter().zip(needed.iter()).all(|(has, needs)| has.covers(needs))
        {
            return operand.buffer;
        }
        let version = self.versions[self.wide.root(operand.buffer)];
        let key = (operand.buffer, version, Arc::clone(&needed));
        if let Some(&copy) = self.known.get(&key) {
            return copy;
        }
        let (name, ty) = (name.clone(), ty.clone());
        let copy =
            self.wide.buffers.push(WideBuffer { name, ty, sites: needed, role: Role::Temp, view_of: None });
        self.versions.push(0);
        self.wide.push_move(operand.buffer, copy, &task.layer, task.round);
        self.known.insert(key, copy);
        copy
    }
}
