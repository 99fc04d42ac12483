//! Names movements and puts small ones into buckets.
//!
//! Needs: a task graph with movements.
//! Gives: every movement with its usual name; small movements of one kind between the same devices as one, as late as the
//! first task that needs one of them allows. One larger movement costs less than many small ones.

use std::collections::{BTreeSet, HashMap};

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, MoveKind, Task, TaskGraph, TaskOp};

use crate::{BucketSizes, Options};

pub fn fuse_movements(mut tasks: TaskGraph, options: &Options) -> TaskGraph {
    let list = std::mem::take(&mut tasks.tasks);
    let mut buckets = Buckets {
        graph: tasks,
        sizes: options.buckets,
        buckets: Vec::new(),
        open: HashMap::new(),
        holds: HashMap::new(),
    };
    for mut task in list {
        if let TaskOp::Move { kind } = &mut task.op {
            *kind = movement_kind(&buckets.graph, &task.reads, &task.writes);
        }
        buckets.take(task);
    }
    buckets.close_all();
    buckets.graph
}

/// The usual name of a movement; of a bucket, that of what it moves first, since all of it is alike.
pub fn movement_kind(graph: &TaskGraph, reads: &[BufferId], writes: &[BufferId]) -> MoveKind {
    let tile = |buffer: BufferId| graph.buffers[buffer].tile.as_deref();
    let tensor = |buffer: BufferId| tile(buffer).map(|tile| tile.tensor);
    let first = writes.first().and_then(|&buffer| tensor(buffer));
    let of_first = |buffers: &[BufferId]| -> Vec<BufferId> {
        buffers.iter().copied().filter(|&buffer| tensor(buffer) == first).collect()
    };
    let (reads, writes) = (of_first(reads), of_first(writes));
    let distinct = |buffers: &[BufferId]| {
        buffers.iter().map(|&buffer| graph.buffers[buffer].rect()).collect::<BTreeSet<_>>().len()
    };
    let parts = reads.iter().filter_map(|&buffer| Some(tile(buffer)?.part)).collect::<BTreeSet<_>>().len();
    match (parts > 1, distinct(&reads), distinct(&writes), writes.len()) {
        (true, _, 1, 1) => MoveKind::Reduce,
        (true, _, 1, _) => MoveKind::AllReduce,
        (true, ..) => MoveKind::ReduceScatter,
        (false, 1, 1, 1) => MoveKind::Copy,
        (false, 1, 1, _) => MoveKind::Broadcast,
        (false, 1, ..) => MoveKind::Scatter,
        (false, _, 1, 1) => MoveKind::Gather,
        (false, _, 1, _) => MoveKind::AllGather,
        (false, ..) => MoveKind::AllToAll,
    }
}

/// Kind, round, sources' devices, targets' devices.
type Key = (MoveKind, u32, Vec<DeviceId>, Vec<DeviceId>);

/// Small movements that will be one, not placed yet.
struct Bucket {
    key: Key,
    task: Task,
    /// The tensors it moves. A tensor is in a bucket only once: another movement of it may mean other partial sums.
    tensors: BTreeSet<u32>,
    bytes: usize,
}

/// What an open bucket does with some bytes.
#[derive(Clone, Copy)]
struct Hold {
    bucket: usize,
    writes: bool,
}

struct Buckets {
    graph: TaskGraph,
    sizes: BucketSizes,
    /// All buckets in the order they were opened; none where one was closed.
    buckets: Vec<Option<Bucket>>,
    open: HashMap<Key, usize>,
    /// Which open buckets touch a buffer's bytes.
    holds: HashMap<BufferId, Vec<Hold>>,
}

impl Buckets {
    /// Places a task behind the buckets it conflicts with, or puts it into one.
    fn take(&mut self, task: Task) {
        let mut conflicts = BTreeSet::new();
        for (buffers, writes) in [(&task.reads, false), (&task.writes, true)] {
            for &buffer in buffers {
                let holds = self.holds.get(&self.graph.root(buffer)).into_iter().flatten();
                conflicts.extend(holds.filter(|hold| writes || hold.writes).map(|hold| hold.bucket));
            }
        }
        conflicts.into_iter().for_each(|bucket| self.close(bucket));
        match self.small(&task) {
            Some((key, bytes)) => self.join(task, key, bytes),
            None => _ = self.graph.tasks.push(task),
        }
    }

    /// The key and bytes of a small movement.
    fn small(&self, task: &Task) -> Option<(Key, usize)> {
        let TaskOp::Move { kind } = task.op else { return None };
        let devices = |buffers: &[BufferId]| {
            let mut devices: Vec<_> =
                buffers.iter().map(|&buffer| self.graph.buffers[buffer].device).collect();
            devices.sort_unstable();
            devices.dedup();
            devices
        };
        let (from, to) = (devices(&task.reads), devices(&task.writes));
        let bytes = |buffers: &[BufferId]| {
            buffers.iter().map(|&buffer| self.graph.buffers[buffer].ty.bytes()).sum::<usize>()
        };
        let bytes = bytes(&task.reads) / from.len() + bytes(&task.writes) / to.len();
        (bytes <= self.sizes.small).then_some(((kind, task.microbatch, from, to), bytes))
    }

    fn join(&mut self, task: Task, key: Key, bytes: usize) {
        let tensor = |&buffer: &BufferId| self.graph.buffers[buffer].tile.as_ref().map(|tile| tile.tensor);
        let tensors: BTreeSet<u32> = task.writes.iter().filter_map(tensor).collect();
        let full = self.sizes.full;
        if let Some(&open) = self.open.get(&key) {
            let fits = |bucket: &Bucket| bucket.bytes + bytes <= full && bucket.tensors.is_disjoint(&tensors);
            if !self.buckets[open].as_ref().is_some_and(fits) {
                self.close(open);
            }
        }
        let number = *self.open.entry(key.clone()).or_insert(self.buckets.len());
        for (buffers, writes) in [(&task.reads, false), (&task.writes, true)] {
            for &buffer in buffers {
                let hold = Hold { bucket: number, writes };
                self.holds.entry(self.graph.root(buffer)).or_default().push(hold);
            }
        }
        match self.buckets.get_mut(number) {
            Some(Some(bucket)) => {
                bucket.task.reads.extend(task.reads);
                bucket.task.writes.extend(task.writes);
                bucket.tensors.extend(tensors);
                bucket.bytes += bytes;
            }
            _ => self.buckets.push(Some(Bucket { key, task, tensors, bytes })),
        }
    }

    /// Places a bucket.
    fn close(&mut self, number: usize) {
        let Some(Bucket { key, mut task, .. }) = self.buckets[number].take() else { return };
        for &buffer in task.reads.iter().chain(&task.writes) {
            self.holds.remove(&self.graph.root(buffer)).into_iter().flatten().for_each(|hold| {
                // Others may read the same bytes.
                if hold.bucket != number {
                    self.holds.entry(self.graph.root(buffer)).or_default().push(hold);
                }
            });
        }
        self.open.remove(&key);
        task.reads.sort_unstable();
        task.reads.dedup();
        self.graph.tasks.push(task);
    }

    fn close_all(&mut self) {
        (0..self.buckets.len()).for_each(|number| self.close(number));
    }
}
