//! When every task runs and where every buffer lies.
//!
//! [`schedule`] orders the tasks of each device, finds how long each buffer lives in that order, and gives every buffer
//! and workspace an offset in its device's arena. The arena's size is the step's peak memory, known before it runs.
#![forbid(unsafe_code)]

mod arena;
mod order;
mod text;
mod verify;

pub use verify::ScheduleError;

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

/// Every offset and size is a multiple of this many bytes: one cache line.
pub const ALIGNMENT: u64 = 64;

/// A range of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Place {
    /// The byte after the last one.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: Place) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// Task order and arena layout of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The model's name.
    pub name: String,
    /// All tasks in the order they run.
    pub order: Vec<TaskId>,
    /// Where each buffer that owns bytes lies; views have none.
    pub buffers: IdVec<BufferId, Option<Place>>,
    /// Where each task's workspace lies, if it has one.
    pub workspaces: IdVec<TaskId, Option<Place>>,
    /// Size of the arena: the peak memory of the step.
    pub peak: u64,
    /// The most bytes alive at once: no layout can be smaller.
    pub live: u64,
}

/// Orders the tasks and lays out the arena; `workspace` tells how many bytes a task needs besides its buffers.
pub fn schedule(tasks: &TaskGraph, workspace: impl Fn(TaskId) -> u64) -> Schedule {
    let order = order::order(tasks);
    let items = arena::items(tasks, &order, workspace);
    let (places, peak) = arena::assign(&items);
    let mut schedule = Schedule {
        name: tasks.name.clone(),
        order,
        buffers: tasks.buffers.ids().map(|_| None).collect(),
        workspaces: tasks.tasks.ids().map(|_| None).collect(),
        peak,
        live: arena::most_live(&items),
    };
    for (item, place) in items.iter().zip(places) {
        match item.owner {
            arena::Owner::Buffer(buffer) => schedule.buffers[buffer] = Some(place),
            arena::Owner::Workspace(task) => schedule.workspaces[task] = Some(place),
        }
    }
    schedule
}

impl Schedule {
    /// Where the bytes of `buffer` lie, views included.
    pub fn place(&self, tasks: &TaskGraph, buffer: BufferId) -> Place {
        self.buffers[tasks.root(buffer)].expect("a verified schedule places every buffer that owns bytes")
    }

    /// The position of every task in the order.
    pub(crate) fn positions(order: &[TaskId], tasks: usize) -> Vec<usize> {
        let mut positions = vec![usize::MAX; tasks];
        order.iter().enumerate().for_each(|(position, task)| positions[task.index()] = position);
        positions
    }
}
