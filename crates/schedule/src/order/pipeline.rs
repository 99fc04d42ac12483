//! Stages of a pipeline and how many microbatches each may have under way.
//!
//! Devices that exchange tensors both ways while the model runs forward are one stage (tensor and data parallelism); a
//! stage's number is the longest way to it from the first. One forward pass, one backward pass (1F1B): stage s of n begins
//! a microbatch only while fewer than n - s are under way, and does backward tasks first. So as few activations as
//! possible are alive that still keep the later stages busy.

use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use super::first_backward;
use crate::index::Index;

pub(super) struct Pipeline {
    /// The microbatch a task belongs to: the last of those it depends on.
    pub microbatches: IdVec<TaskId, u32>,
    first_backward: TaskId,
    lanes: Vec<Flight>,
}

/// The microbatches of one device.
struct Flight {
    /// Tasks of each microbatch not yet complete.
    left: Vec<u32>,
    begun: Vec<bool>,
    under_way: usize,
    limit: usize,
}

impl Pipeline {
    /// The pipeline of a graph; none if all devices are one stage or nothing runs backward.
    pub fn find(
        tasks: &TaskGraph,
        index: &Index,
        predecessors: &IdVec<TaskId, Vec<TaskId>>,
    ) -> Option<Pipeline> {
        if index.devices.len() < 2 {
            return None;
        }
        let first_backward = first_backward(tasks)?;
        let stages = stages(&reachable(tasks, index, first_backward));
        let n_stages = 1 + stages.iter().max().copied().unwrap_or(0);
        if n_stages == 1 {
            return None;
        }
        let microbatches = microbatches(tasks, predecessors);
        let count = 1 + microbatches.iter().map(|(_, &microbatch)| microbatch).max().unwrap_or(0) as usize;
        let flight = |&stage: &usize| Flight {
            left: vec![0; count],
            begun: vec![false; count],
            under_way: 0,
            limit: n_stages - stage,
        };
        let mut lanes: Vec<Flight> = stages.iter().map(flight).collect();
        for (task, &microbatch) in microbatches.iter().filter(|(task, _)| !index.is_beside(index.lane(*task)))
        {
            lanes[index.lane(task)].left[microbatch as usize] += 1;
        }
        Some(Pipeline { microbatches, first_backward, lanes })
    }

    pub fn is_backward(&self, task: TaskId) -> bool {
        task >= self.first_backward
    }

    /// Whether the device has run a forward task of the microbatch.
    pub fn has_begun(&self, lane: usize, microbatch: u32) -> bool {
        self.lanes[lane].begun[microbatch as usize]
    }

    /// Whether the device may begin another microbatch.
    pub fn allows(&self, lane: usize) -> bool {
        self.lanes[lane].under_way < self.lanes[lane].limit
    }

    pub fn begin(&mut self, lane: usize, microbatch: u32) {
        let flight = &mut self.lanes[lane];
        flight.begun[microbatch as usize] = true;
        flight.under_way += 1;
    }

    /// A task of the microbatch has run; after the last one the microbatch is no longer under way.
    pub fn complete(&mut self, lane: usize, microbatch: u32) {
        let flight = &mut self.lanes[lane];
        let left = &mut flight.left[microbatch as usize];
        *left -= 1;
        if *left == 0 && flight.begun[microbatch as usize] {
            flight.under_way -= 1;
        }
    }
}

/// A task that joins several microbatches counts with the last of them.
fn microbatches(tasks: &TaskGraph, predecessors: &IdVec<TaskId, Vec<TaskId>>) -> IdVec<TaskId, u32> {
    let mut microbatches: IdVec<TaskId, u32> = IdVec::new();
    for (id, task) in tasks.tasks.iter() {
        let before = predecessors[id].iter().map(|&other| microbatches[other]).max().unwrap_or(0);
        microbatches.push(before.max(task.microbatch));
    }
    microbatches
}

/// For each lane a set of lanes.
struct Sets {
    words: Vec<Vec<u64>>,
}

impl Sets {
    fn contains(&self, lane: usize, other: usize) -> bool {
        self.words[lane][other / 64] >> (other % 64) & 1 == 1
    }

    fn insert(&mut self, lane: usize, other: usize) {
        self.words[lane][other / 64] |= 1 << (other % 64);
    }
}

/// The lanes that each lane's tensors reach in the forward pass of the first microbatch, itself among them. Parameters
/// do not count: one that two stages share says nothing about which comes first.
fn reachable(tasks: &TaskGraph, index: &Index, first_backward: TaskId) -> Sets {
    let lanes = index.devices.len();
    let mut sets = Sets { words: vec![vec![0; lanes.div_ceil(64)]; lanes] };
    let forward = tasks.tasks.iter().take(first_backward.index());
    for (id, task) in forward.filter(|(_, task)| task.microbatch == 0 && moves_tensors(tasks, task)) {
        let computed = task.reads.iter().filter(|&&read| !tasks.buffers[index.root(read)].role.is_fed());
        computed.for_each(|&read| sets.insert(index.home(read), index.arena(index.lane(id))));
    }
    (0..lanes).for_each(|lane| sets.insert(lane, lane));
    for middle in 0..lanes {
        let beyond = sets.words[middle].clone();
        for lane in 0..lanes {
            if sets.contains(lane, middle) {
                sets.words[lane].iter_mut().zip(&beyond).for_each(|(word, more)| *word |= more);
            }
        }
    }
    sets
}

/// Movements of single numbers, such as losses, do not make stages.
fn moves_tensors(tasks: &TaskGraph, task: &Task) -> bool {
    let is_tensor = |&buffer: &BufferId| tasks.buffers[buffer].ty.shape.elements() > 1;
    matches!(task.op, TaskOp::Receive { .. }) && task.writes.iter().any(is_tensor)
}

/// The stage of each lane: how many groups that reach each other both ways lie one after the other before it.
fn stages(reach: &Sets) -> Vec<usize> {
    let lanes = reach.words.len();
    let before = |lane: usize| (0..lanes).filter(move |&other| reach.contains(other, lane));
    // A lane has more lanes before it than any that reaches it one way, so all of those are done when it is its turn.
    let mut sequence: Vec<usize> = (0..lanes).collect();
    sequence.sort_by_key(|&lane| before(lane).count());
    let mut stages = vec![0; lanes];
    for lane in sequence {
        let one_way = before(lane).filter(|&other| !reach.contains(lane, other));
        stages[lane] = one_way.map(|other| stages[other] + 1).max().unwrap_or(0);
    }
    stages
}
