//! Which tasks of other lanes a task waits for: those it depends on, and those that still use the bytes it takes over.
//!
//! A task that first writes a buffer over the bytes of an earlier one comes after everything that touched the earlier one.
//! On its own lane that is so by the order; other lanes touch an arena only by fetching from it. What the waits kept and
//! the lane orders imply is left out, so no wait can be spared.

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
    if index.devices.len() > 1 {
        let fetches = Fetches::new(tasks, index, order);
        for (lives, layout) in memory.0.iter().zip(memory.1) {
            for (new, old) in takeovers(lives, layout) {
                if let Owner::Buffer(old) = old {
                    waits[fetches.first(new)].extend(fetches.of(old));
                }
            }
        }
        reduce(index, order, &mut waits);
    }
    waits
}

/// Who fetches each buffer to another device, in one array, and who writes it first.
struct Fetches {
    starts: Vec<u32>,
    tasks: Vec<TaskId>,
    first: Vec<Option<TaskId>>,
}

impl Fetches {
    fn new(tasks: &TaskGraph, index: &Index, order: &Order) -> Self {
        let mut starts = vec![0u32; tasks.buffers.len() + 1];
        let mut first = vec![None; tasks.buffers.len()];
        let each = |f: &mut dyn FnMut(TaskId, BufferId)| {
            for &id in &order.tasks {
                let remote = tasks.tasks[id].reads.iter().filter(|&&read| index.home(read) != index.lane(id));
                remote.for_each(|&read| f(id, index.root(read)));
            }
        };
        each(&mut |_, root| starts[root.index() + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut fetches = vec![TaskId::from_index(0); next[tasks.buffers.len()] as usize];
        each(&mut |id, root| {
            fetches[next[root.index()] as usize] = id;
            next[root.index()] += 1;
        });
        for &id in &order.tasks {
            for &write in &tasks.tasks[id].writes {
                first[index.root(write).index()].get_or_insert(id);
            }
        }
        Fetches { starts, tasks: fetches, first }
    }

    fn of(&self, root: BufferId) -> &[TaskId] {
        &self.tasks[self.starts[root.index()] as usize..self.starts[root.index() + 1] as usize]
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
    let mut clocks = Clocks::new(index.devices.len(), waiters);
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
    let mut lengths = vec![0; index.devices.len()];
    for &task in &order.tasks {
        let lane = index.lane(task);
        spots[task.index()] = Spot { lane: lane as u32, position: lengths[lane] };
        lengths[lane] += 1;
    }
    spots
}
