//! Which tasks of other lanes a task waits for: those it depends on, and those that still use the bytes it takes over.
//!
//! A task that first writes a buffer over the bytes of an earlier one comes after everything that touched the earlier one.
//! Inside a lane that is so by the order. Waits that those kept and the lane orders imply are left out, so none can be
//! spared.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use crate::Owner;
use crate::arena::{Layout, Lives};
use crate::clocks::{Clocks, Spot};
use crate::index::Index;
use crate::order::Order;

/// The least waits that keep `predecessors` and the layouts right.
pub(crate) fn waits(
    tasks: &TaskGraph,
    index: &Index,
    order: &Order,
    predecessors: IdVec<TaskId, Vec<TaskId>>,
    memory: (&[Lives], &[Layout]),
) -> IdVec<TaskId, Vec<TaskId>> {
    let mut waits = predecessors;
    for task in tasks.tasks.ids() {
        waits[task].retain(|&other| index.lane(other) != index.lane(task));
    }
    if index.n_lanes() > 1 {
        let uses = Uses::new(tasks, index, order);
        for (arena, (lives, layout)) in memory.0.iter().zip(memory.1).enumerate() {
            for (new, old) in takeovers(lives, layout) {
                let first = uses.first(new);
                let lane = index.lane(first);
                let mut wait = |other: TaskId| {
                    if index.lane(other) != lane {
                        waits[first].push(other);
                    }
                };
                match old {
                    Owner::Workspace(task) => wait(task),
                    Owner::Buffer(old) => {
                        uses.by_guests(old).iter().for_each(|&guest| wait(guest));
                        uses.last_at_home(old).filter(|_| lane != arena).into_iter().for_each(wait);
                    }
                }
            }
        }
        reduce(index, order, &mut waits);
    }
    waits
}

/// The tasks that use each buffer. *Guests* are tasks of another lane than the one that computes on the buffer's device.
struct Uses {
    starts: Vec<u32>,
    guests: Vec<TaskId>,
    first: Vec<Option<TaskId>>,
    last_at_home: Vec<Option<TaskId>>,
}

impl Uses {
    fn new(tasks: &TaskGraph, index: &Index, order: &Order) -> Self {
        let mut starts = vec![0u32; tasks.buffers.len() + 1];
        let mut first = vec![None; tasks.buffers.len()];
        let mut last_at_home = vec![None; tasks.buffers.len()];
        let each = |f: &mut dyn FnMut(TaskId, BufferId)| {
            for &id in &order.tasks {
                let operands = tasks.tasks[id].reads.iter().chain(&tasks.tasks[id].writes);
                let remote = operands.filter(|&&buffer| index.home(buffer) != index.lane(id));
                remote.for_each(|&buffer| f(id, index.root(buffer)));
            }
        };
        each(&mut |_, root| starts[root.index() + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut guests = vec![TaskId::from_index(0); next[tasks.buffers.len()] as usize];
        each(&mut |id, root| {
            guests[next[root.index()] as usize] = id;
            next[root.index()] += 1;
        });
        for &id in &order.tasks {
            let task = &tasks.tasks[id];
            for &write in &task.writes {
                first[index.root(write).index()].get_or_insert(id);
            }
            for &buffer in task.reads.iter().chain(&task.writes) {
                if index.home(buffer) == index.lane(id) {
                    last_at_home[index.root(buffer).index()] = Some(id);
                }
            }
        }
        Uses { starts, guests, first, last_at_home }
    }

    fn by_guests(&self, root: BufferId) -> &[TaskId] {
        &self.guests[self.starts[root.index()] as usize..self.starts[root.index() + 1] as usize]
    }

    fn last_at_home(&self, root: BufferId) -> Option<TaskId> {
        self.last_at_home[root.index()]
    }

    /// The task that takes the bytes of `owner` into use.
    fn first(&self, owner: Owner) -> TaskId {
        match owner {
            Owner::Workspace(task) => task,
            Owner::Buffer(buffer) => {
                self.first[buffer.index()].expect("a buffer on used bytes is written before it is read")
            }
        }
    }
}

/// Pairs of owners, the second of which had some of the bytes of the first directly before.
fn takeovers(lives: &Lives, layout: &Layout) -> Vec<(Owner, Owner)> {
    let mut sequence: Vec<usize> =
        (0..lives.spans.len()).filter(|&index| lives.spans[index].bytes > 0).collect();
    sequence.sort_by_key(|&index| lives.spans[index].first);
    let mut used: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut found = Vec::new();
    for index in sequence {
        let from = layout.offsets[index];
        let to = from + lives.spans[index].bytes;
        while let Some((&start, &(end, old))) = used.range(..to).next_back()
            && end > from
        {
            found.push((lives.owners[index], lives.owners[old]));
            used.remove(&start);
            if end > to {
                used.insert(to, (end, old));
            }
            if start < from {
                used.insert(start, (from, old));
            }
        }
        used.insert(from, (to, index));
    }
    found
}

/// Leaves out every wait that the others and the lane orders imply.
fn reduce(index: &Index, order: &Order, waits: &mut IdVec<TaskId, Vec<TaskId>>) {
    let spots = spots(index, order);
    let mut positions = vec![0u32; waits.len()];
    order.tasks.iter().enumerate().for_each(|(at, task)| positions[task.index()] = at as u32);
    let mut waiters = vec![0; waits.len()];
    for &task in &order.tasks {
        let list = &mut waits[task];
        // The latest first: what it implies comes before it in the order.
        list.sort_unstable_by_key(|other| Reverse(positions[other.index()]));
        list.dedup();
        list.iter().for_each(|other| waiters[other.index()] += 1);
    }
    let mut clocks = Clocks::new(index.n_lanes(), waiters);
    for &task in &order.tasks {
        let lane = index.lane(task);
        let list = &mut waits[task];
        list.retain(|&other| {
            let spot = spots[other.index()];
            let is_needed = !clocks.knows(lane, spot);
            clocks.wait(lane, other, spot);
            is_needed
        });
        list.sort_unstable();
        list.shrink_to_fit();
        clocks.complete(lane, task);
    }
}

fn spots(index: &Index, order: &Order) -> Vec<Spot> {
    let mut spots = vec![Spot { lane: 0, position: 0 }; order.tasks.len()];
    let mut lengths = vec![0; index.n_lanes()];
    for &task in &order.tasks {
        let lane = index.lane(task);
        spots[task.index()] = Spot { lane: lane as u32, position: lengths[lane] };
        lengths[lane] += 1;
    }
    spots
}
