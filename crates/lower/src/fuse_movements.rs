//! Names movements and puts small ones into buckets.
//!
//! Needs: a task graph with movements.
//! Gives: every movement with its usual name; small movements of one kind between the same devices as one, as late as the
//! first task that needs one of them allows; if wanted, movements of parameters that nothing has written yet as one with
//! an earlier movement. One larger movement costs less than many small ones.

use std::collections::{BTreeSet, HashMap, HashSet};

use phalanx_ir::Id;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, MoveKind, Role, Task, TaskGraph, TaskId, TaskOp};

use crate::{BucketSizes, LowerOptions};

pub fn fuse_movements(tasks: TaskGraph, options: &LowerOptions) -> TaskGraph {
    fuse_in_teams(tasks, &HashMap::new(), options)
}

/// The same where devices stand for others: movements are between the same devices if they have the same number.
pub fn fuse_in_teams(
    mut tasks: TaskGraph,
    teams: &HashMap<TaskId, u32>,
    options: &LowerOptions,
) -> TaskGraph {
    let list = std::mem::take(&mut tasks.tasks);
    let mut buckets = Buckets {
        graph: tasks,
        sizes: options.buckets,
        buckets: Vec::new(),
        open: HashMap::new(),
        holds: HashMap::new(),
        early: HashMap::new(),
        written: HashSet::new(),
    };
    for (number, mut task) in list.into_iter().enumerate() {
        if let TaskOp::Move { kind } = &mut task.op
            && *kind == MoveKind::Any
        {
            *kind = movement_kind(&buckets.graph, &task.reads, &task.writes);
        }
        buckets.take(task, teams.get(&TaskId::from_index(number)).copied());
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
    MoveKind::of(parts, distinct(&reads), distinct(&writes), writes.len())
}

/// Kind, microbatch, and what it is between.
type Key = (MoveKind, u32, Between);

/// The devices that a movement is between.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Between {
    /// Sources' devices, targets' devices.
    Devices(Vec<DeviceId>, Vec<DeviceId>),
    /// Their number, where some stand for others.
    Team(u32),
}

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
    /// The last movement of parameters of each key, which may grow.
    early: HashMap<Key, Early>,
    /// Parameters that some task so far writes.
    written: HashSet<BufferId>,
}

/// A movement of parameters that is placed.
struct Early {
    task: TaskId,
    tensors: BTreeSet<u32>,
    bytes: usize,
}

impl Buckets {
    /// Places a task behind the buckets it conflicts with, or puts it into one.
    fn take(&mut self, task: Task, team: Option<u32>) {
        let mut conflicts = BTreeSet::new();
        for (buffers, writes) in [(&task.reads, false), (&task.writes, true)] {
            for &buffer in buffers {
                let holds = self.holds.get(&self.graph.root(buffer)).into_iter().flatten();
                conflicts.extend(holds.filter(|hold| writes || hold.writes).map(|hold| hold.bucket));
            }
        }
        conflicts.into_iter().for_each(|bucket| self.close(bucket));
        for &write in &task.writes {
            let root = self.graph.root(write);
            if self.graph.buffers[root].role == Role::Param {
                self.written.insert(root);
            }
        }
        match self.key(&task, team) {
            Some((key, bytes)) if bytes <= self.sizes.early && self.is_early(&task) => {
                self.join_early(task, key, bytes);
            }
            Some((key, bytes)) if bytes <= self.sizes.small => self.join(task, key, bytes),
            _ => _ = self.graph.tasks.push(task),
        }
    }

    /// Whether a movement brings only parameters as the step finds them, so that it can come earlier.
    fn is_early(&self, task: &Task) -> bool {
        let mut reads = task.reads.iter().map(|&read| self.graph.root(read));
        reads.all(|root| self.graph.buffers[root].role == Role::Param && !self.written.contains(&root))
    }

    /// Lets a movement of parameters go with the last one of its key, if that can take it.
    fn join_early(&mut self, task: Task, key: Key, bytes: usize) {
        let tensors = self.tensors(&task);
        let fits = |early: &&mut Early| {
            early.bytes + bytes <= self.sizes.early && early.tensors.is_disjoint(&tensors)
        };
        if let Some(early) = self.early.get_mut(&key).filter(fits) {
            let first = &mut self.graph.tasks[early.task];
            first.reads.extend(task.reads);
            first.reads.sort_unstable();
            first.reads.dedup();
            first.writes.extend(task.writes);
            early.tensors.extend(tensors);
            early.bytes += bytes;
            return;
        }
        let task = self.graph.tasks.push(task);
        self.early.insert(key, Early { task, tensors, bytes });
    }

    /// The tensors that a movement brings.
    fn tensors(&self, task: &Task) -> BTreeSet<u32> {
        let tensor = |&buffer: &BufferId| self.graph.buffers[buffer].tile.as_ref().map(|tile| tile.tensor);
        task.writes.iter().filter_map(tensor).collect()
    }

    /// The key of a movement, and the bytes it touches on each device.
    fn key(&self, task: &Task, team: Option<u32>) -> Option<(Key, usize)> {
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
        let between = team.map_or_else(|| Between::Devices(from, to), Between::Team);
        Some(((kind, task.microbatch, between), bytes))
    }

    fn join(&mut self, task: Task, key: Key, bytes: usize) {
        let tensors = self.tensors(&task);
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
