//! Transfers in lanes of their own: when each starts.
//!
//! All receives of a movement are issued at one moment, as soon as all of them could start and one of their lanes is free;
//! each lane does them in the order of issue. So there is one sequence of movements for all devices, as for collectives of
//! a network library, and no two devices can wait for each other's.
//!
//! Of the movements that are ready the one that the task graph lists first is next: it is needed first. A movement that
//! needs memory (a gather of weights) could start long before its use; it is held back while as many as the limit allows
//! have been received on a device and not been used there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use phalanx_ir::tasks::{BufferId, Role, Task, TaskGraph, TaskId, TaskOp};

use crate::index::Index;

/// Microbatch and first task: the order in which movements are issued.
type Key = (u32, TaskId);

struct Movement {
    receives: Vec<TaskId>,
    /// Receives that are not ready.
    waiting: u32,
    /// Whether it needs memory on some device.
    grows: bool,
    key: Key,
    is_issued: bool,
}

#[derive(Default)]
struct Lane {
    /// Movements that are ready, not yet issued: those that need memory apart. Issued ones are dropped when they come up.
    plain: BinaryHeap<Reverse<(Key, usize)>>,
    growing: BinaryHeap<Reverse<(Key, usize)>>,
    /// Sends of what was received: they take no time and others wait for them.
    sends: VecDeque<TaskId>,
    /// Receives that were issued.
    issued: VecDeque<TaskId>,
    /// Movements that need memory, issued and not used yet.
    ahead: u32,
}

pub(super) struct Transfers {
    movements: Vec<Movement>,
    /// The movement of every receive.
    movement_of: HashMap<TaskId, usize>,
    /// The lane of every receive.
    lane_of: HashMap<TaskId, usize>,
    lanes: Vec<Lane>,
    /// The first number of a lane of transfers.
    first: usize,
    /// The most movements ahead of their use.
    limit: u32,
    /// The task that has received a buffer that needs memory.
    received: HashMap<BufferId, TaskId>,
    /// Receives of which nothing has been used.
    unused: HashSet<TaskId>,
}

impl Transfers {
    pub fn new(
        tasks: &TaskGraph,
        index: &Index,
        microbatch: impl Fn(TaskId) -> u32,
        prefetch: Option<u32>,
    ) -> Transfers {
        let first = index.devices.len();
        let mut transfers = Transfers {
            movements: Vec::new(),
            movement_of: HashMap::new(),
            lane_of: HashMap::new(),
            lanes: (first..index.n_lanes()).map(|_| Lane::default()).collect(),
            first,
            limit: prefetch.unwrap_or(u32::MAX).max(1),
            received: HashMap::new(),
            unused: HashSet::new(),
        };
        let mut numbers = HashMap::new();
        for (id, task) in tasks.tasks.iter().filter(|(id, _)| index.is_beside(index.lane(*id))) {
            let TaskOp::Receive { movement } = task.op else { continue };
            let number = *numbers.entry(movement).or_insert(transfers.movements.len());
            if number == transfers.movements.len() {
                let key = (microbatch(id), id);
                let receives = Vec::new();
                transfers.movements.push(Movement {
                    receives,
                    waiting: 0,
                    grows: false,
                    key,
                    is_issued: false,
                });
            }
            let movement = &mut transfers.movements[number];
            movement.receives.push(id);
            movement.waiting += 1;
            movement.grows |= grows(tasks, task);
            transfers.movement_of.insert(id, number);
            transfers.lane_of.insert(id, index.lane(id) - first);
        }
        transfers
    }

    /// A task of `lane` is ready.
    pub fn push(&mut self, lane: usize, task: TaskId, awake: &mut Vec<usize>) {
        let Some(&number) = self.movement_of.get(&task) else {
            awake.push(lane);
            return self.lanes[lane - self.first].sends.push_back(task);
        };
        let movement = &mut self.movements[number];
        movement.waiting -= 1;
        if movement.waiting > 0 {
            return;
        }
        for receive in &movement.receives {
            let lane = self.lane_of[receive];
            let ready =
                if movement.grows { &mut self.lanes[lane].growing } else { &mut self.lanes[lane].plain };
            ready.push(Reverse((movement.key, number)));
            awake.push(self.first + lane);
        }
    }

    /// What the lane starts now; other lanes that get something to do are woken.
    pub fn pop(&mut self, lane: usize, awake: &mut Vec<usize>) -> Option<TaskId> {
        let lane = lane - self.first;
        if let Some(send) = self.lanes[lane].sends.pop_front() {
            return Some(send);
        }
        if self.lanes[lane].issued.is_empty() {
            let number = self.choose(lane)?;
            self.issue(number, awake);
        }
        self.lanes[lane].issued.pop_front()
    }

    /// The movement that the lane issues next.
    fn choose(&mut self, lane: usize) -> Option<usize> {
        let Transfers { movements, lanes, .. } = self;
        let Lane { plain, growing, .. } = &mut lanes[lane];
        for ready in [&mut *plain, &mut *growing] {
            while ready.peek().is_some_and(|Reverse((_, number))| movements[*number].is_issued) {
                ready.pop();
            }
        }
        let (plain, growing) = (plain.peek().map(|top| top.0), growing.peek().map(|top| top.0));
        let growing = growing.filter(|&(_, number)| self.allows(number));
        plain.into_iter().chain(growing).min().map(|(_, number)| number)
    }

    fn allows(&self, number: usize) -> bool {
        let mut lanes = self.movements[number].receives.iter().map(|receive| self.lane_of[receive]);
        lanes.all(|lane| self.lanes[lane].ahead < self.limit)
    }

    fn issue(&mut self, number: usize, awake: &mut Vec<usize>) {
        let movement = &mut self.movements[number];
        movement.is_issued = true;
        for receive in &movement.receives {
            let lane = self.lane_of[receive];
            self.lanes[lane].issued.push_back(*receive);
            self.lanes[lane].ahead += u32::from(movement.grows);
            awake.push(self.first + lane);
        }
    }

    /// Issues the first movement that the limit holds back; whether there is one.
    pub fn lift(&mut self, awake: &mut Vec<usize>) -> bool {
        let held = |lane: &Lane| {
            let tops = lane.growing.iter().map(|entry| entry.0);
            tops.filter(|&(_, number)| !self.movements[number].is_issued).min()
        };
        let Some((_, number)) = self.lanes.iter().filter_map(held).min() else { return false };
        self.issue(number, awake);
        true
    }

    /// A task starts: a receive that needs memory is ahead until another task uses something of what it brings.
    pub fn start(&mut self, id: TaskId, task: &Task, index: &Index, awake: &mut Vec<usize>) {
        if self.lanes.is_empty() {
            return;
        }
        for &read in &task.reads {
            if let Some(receive) = self.received.remove(&index.root(read))
                && self.unused.remove(&receive)
            {
                self.lanes[self.lane_of[&receive]].ahead -= 1;
                // What was held back may be issued by any of its lanes.
                awake.extend(self.first..self.first + self.lanes.len());
            }
        }
        if self.movement_of.get(&id).is_some_and(|&number| self.movements[number].grows) {
            self.unused.insert(id);
            self.received.extend(task.writes.iter().map(|&write| (index.root(write), id)));
        }
    }
}

/// Whether a receive brings more than what it lets go of on its device.
fn grows(tasks: &TaskGraph, task: &Task) -> bool {
    let bytes = |buffers: &[BufferId]| -> usize {
        let here = buffers.iter().map(|&buffer| &tasks.buffers[buffer]);
        here.filter(|buffer| buffer.role == Role::Temp && buffer.device == task.device)
            .map(|buffer| buffer.ty.bytes())
            .sum()
    };
    bytes(&task.writes) > bytes(&task.reads)
}
