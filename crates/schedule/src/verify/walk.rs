//! The walk over all tasks: lanes advance as far as their waits allow.

use phalanx_ir::tasks::{TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use super::bytes::{Access, Bytes};
use crate::clocks::{Clocks, Spot};
use crate::index::Index;
use crate::{ArenaRange, Owner, Schedule, ScheduleError};

const NONE: u32 = u32::MAX;

/// Checks order and, where places are `sound`, bytes.
pub(super) fn walk(tasks: &TaskGraph, index: &Index, schedule: &Schedule, sound: bool) -> Vec<ScheduleError> {
    let mut waiters = vec![0; tasks.tasks.len()];
    for (_, waits) in schedule.waits.iter() {
        waits.iter().for_each(|other| waiters[other.index()] += 1);
    }
    let lanes = schedule.lanes.len();
    let spots = schedule.spots();
    let mut walk = Walk {
        tasks,
        index,
        schedule,
        predecessors: tasks.predecessors(),
        spots: &spots,
        clocks: Clocks::new(lanes, waiters),
        done: vec![0; lanes],
        blocked: vec![NONE; tasks.tasks.len()],
        behind: vec![NONE; lanes],
        bytes: sound.then(|| Bytes::new(tasks, index, schedule, &spots)),
        errors: Vec::new(),
    };
    walk.run();
    walk.errors
}

struct Walk<'a> {
    tasks: &'a TaskGraph,
    index: &'a Index,
    schedule: &'a Schedule,
    predecessors: IdVec<TaskId, Vec<TaskId>>,
    spots: &'a [Spot],
    clocks: Clocks,
    /// How many tasks of each lane are done.
    done: Vec<u32>,
    /// The first lane that a task keeps from going on.
    blocked: Vec<u32>,
    /// The next lane that the same task keeps from going on.
    behind: Vec<u32>,
    bytes: Option<Bytes<'a>>,
    errors: Vec<ScheduleError>,
}

impl Walk<'_> {
    fn run(&mut self) {
        let mut free: Vec<usize> = (0..self.schedule.lanes.len()).rev().collect();
        while let Some(lane) = free.pop() {
            while let Some(&task) = self.schedule.lanes[lane].order.get(self.done[lane] as usize) {
                if let Some(other) = self.held_by(task) {
                    self.behind[lane] = self.blocked[other.index()];
                    self.blocked[other.index()] = lane as u32;
                    break;
                }
                self.visit(lane, task);
                let mut next = self.blocked[task.index()];
                while next != NONE {
                    free.push(next as usize);
                    next = self.behind[next as usize];
                }
            }
        }
        match self.stuck() {
            Some(tasks) => self.errors = vec![ScheduleError::Cycle { tasks }],
            None => self.errors.extend(self.bytes.take().map(Bytes::finish).into_iter().flatten()),
        }
    }

    /// A task that is not done and that `task` waits for.
    fn held_by(&self, task: TaskId) -> Option<TaskId> {
        self.schedule.waits[task].iter().copied().find(|other| {
            let spot = self.spots[other.index()];
            self.done[spot.lane as usize] <= spot.position
        })
    }

    fn visit(&mut self, lane: usize, task: TaskId) {
        for &other in &self.schedule.waits[task] {
            self.clocks.wait(lane, other, self.spots[other.index()]);
        }
        let now = Now { spot: self.spots[task.index()], clocks: &self.clocks };
        for &needs in &self.predecessors[task] {
            if !now.is_after(self.spots[needs.index()]) {
                self.errors.push(ScheduleError::Order { task, needs });
            }
        }
        if let Some(bytes) = &mut self.bytes {
            accesses(self.tasks, self.index, self.schedule, task, |access| bytes.touch(&now, &access));
        }
        self.clocks.complete(lane, task);
        self.done[lane] += 1;
    }

    /// Tasks on a circle, if some lane could not go on: the first that is left in a lane waits for one that is left in
    /// another, and so on until a lane comes again.
    fn stuck(&self) -> Option<Vec<TaskId>> {
        let head = |lane: usize| self.schedule.lanes[lane].order.get(self.done[lane] as usize).copied();
        let mut lane = (0..self.schedule.lanes.len()).find(|&lane| head(lane).is_some())?;
        let mut seen = vec![None; self.schedule.lanes.len()];
        let mut circle: Vec<TaskId> = Vec::new();
        while seen[lane].is_none() {
            seen[lane] = Some(circle.len());
            let task = head(lane)?;
            let held_by = self.held_by(task)?;
            circle.extend([task, held_by]);
            lane = self.spots[held_by.index()].lane as usize;
        }
        circle.drain(..seen[lane]?);
        // Each entry waits for the next; the error lists what comes first first.
        circle.rotate_left(1);
        circle.dedup();
        circle.reverse();
        Some(circle)
    }
}

/// The moment a task runs.
pub(super) struct Now<'a> {
    pub spot: Spot,
    clocks: &'a Clocks,
}

impl Now<'_> {
    /// Whether the task at `other` is complete by now.
    pub fn is_after(&self, other: Spot) -> bool {
        if other.lane == self.spot.lane {
            return other.position < self.spot.position;
        }
        self.clocks.knows(self.spot.lane as usize, other)
    }
}

/// Gives `f` what a task does with memory: first what it reads, then what it writes.
fn accesses(tasks: &TaskGraph, index: &Index, schedule: &Schedule, id: TaskId, mut f: impl FnMut(Access)) {
    let task = &tasks.tasks[id];
    let access = |buffer, writes| {
        let root = index.root(buffer);
        let place = schedule.buffers[root].unwrap_or(ArenaRange { offset: 0, bytes: 0 });
        Access { arena: index.home(root), place, owner: Owner::Buffer(root), writes }
    };
    task.reads.iter().for_each(|&buffer| f(access(buffer, false)));
    for (slot, &buffer) in task.writes.iter().enumerate() {
        if task.op.reads_write(slot) {
            f(access(buffer, false));
        }
        f(access(buffer, true));
    }
    if let Some(place) = schedule.workspaces[id] {
        f(Access { arena: index.arena(index.lane(id)), place, owner: Owner::Workspace(id), writes: true });
    }
}
