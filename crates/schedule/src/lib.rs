//! When every task runs and where every buffer lies.
//!
//! [`schedule`] puts the tasks of all devices into one legal order, whose restriction to a device is its *lane*; finds
//! how long each buffer lives in that order; and gives every buffer and workspace an offset in its device's arena. The
//! arena's size is the device's peak memory, known before it runs. Lanes run side by side: a task waits only for those of
//! other lanes whose results it uses or whose bytes it takes over.
//!
//! All waits point backward in the one order, so that the lanes with their waits have no cycle. The verifier does not
//! know the order: it checks lanes, waits and places as they are.
#![forbid(unsafe_code)]

mod arena;
mod clocks;
mod cost;
mod index;
mod lanes;
pub mod live;
mod order;
pub mod overlap;
pub mod recompute;
mod rows;
pub mod search;
pub mod simulate;
mod text;
pub mod usage;
pub mod verdict;
mod verify;
mod waits;

pub use cost::{TaskCosts, modelled, operations};
pub use verify::ScheduleError;

use std::fmt;

use phalanx_ir::IdVec;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};

use cost::Parts;
use index::Index;
use order::{Given, Order};
use search::Effort;

/// Every offset and size is a multiple of this many bytes: one cache line.
pub const ALIGNMENT: u64 = 64;

/// A range of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl ArenaRange {
    /// The byte after the last one.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: ArenaRange) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// Whose bytes some bytes of an arena are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A buffer that owns its bytes.
    Buffer(BufferId),
    /// What a task needs while it runs.
    Workspace(TaskId),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Buffer(buffer) => write!(f, "{buffer}"),
            Owner::Workspace(task) => write!(f, "the workspace of {task}"),
        }
    }
}

/// What a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneKind {
    /// Everything that has no lane of its own.
    Compute,
    /// What the device receives, while its other lane goes on.
    Transfers,
}

/// What one device does in a step one after the other, and the size of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledLane {
    /// Whose lane.
    pub device: DeviceId,
    /// What for.
    pub kind: LaneKind,
    /// Its tasks in the order they run.
    pub order: Vec<TaskId>,
    /// Size of the device's arena: the peak memory of the step; none for a lane of transfers.
    pub peak: u64,
    /// The most bytes alive at once: no layout can be smaller.
    pub live: u64,
}

/// Task orders and arena layouts of all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The model's name.
    pub name: String,
    /// One for each device that has tasks or buffers, ascending; then those of transfers, ascending.
    pub lanes: Vec<ScheduledLane>,
    /// The tasks of other lanes that must be complete before a task starts, ascending; none is implied by the others
    /// and the lane orders.
    pub waits: IdVec<TaskId, Vec<TaskId>>,
    /// Where each buffer that owns bytes lies in its device's arena; views have none.
    pub buffers: IdVec<BufferId, Option<ArenaRange>>,
    /// Where each task's workspace lies, if it has one.
    pub workspaces: IdVec<TaskId, Option<ArenaRange>>,
}

/// How transfers are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// What a device receives has a lane of its own; otherwise its one lane does everything.
    pub overlap: bool,
    /// The most movements that a device has received and not used yet, of those that need memory; none for any number.
    pub prefetch: Option<u32>,
}

/// Orders the tasks by rough costs and lays out the arenas; `workspace` gives the bytes that a task needs besides its
/// buffers.
pub fn schedule(tasks: &TaskGraph, workspace: impl Fn(TaskId) -> u64) -> Schedule {
    schedule_in(tasks, &TaskCosts::modelled(tasks, None), Style::default(), workspace)
}

/// The same, by given costs and in a given style.
pub fn schedule_in(
    tasks: &TaskGraph,
    costs: &TaskCosts,
    style: Style,
    workspace: impl Fn(TaskId) -> u64,
) -> Schedule {
    let order = |given: &Given<'_>| Some(order::order(given, style.prefetch));
    laid_out(tasks, costs, style.overlap, workspace, order).expect("the simulation orders every graph")
}

/// Finds an order by search, with transfers in lanes of their own and at most `memory` bytes alive on a device if that can
/// be; none if the graph is too much for the search.
pub fn schedule_by_search(
    tasks: &TaskGraph,
    costs: &TaskCosts,
    memory: Option<u64>,
    effort: Effort,
    workspace: impl Fn(TaskId) -> u64,
) -> Option<Schedule> {
    let order = |given: &Given<'_>| order::searched(given, memory, effort, &workspace);
    laid_out(tasks, costs, true, &workspace, order)
}

/// Lays out the memory of an order of the tasks.
fn laid_out(
    tasks: &TaskGraph,
    costs: &TaskCosts,
    overlap: bool,
    workspace: impl Fn(TaskId) -> u64,
    order: impl FnOnce(&Given<'_>) -> Option<Order>,
) -> Option<Schedule> {
    let index = Index::new(tasks, overlap);
    let predecessors = tasks.predecessors();
    let parts = Parts::new(tasks, costs.topology.as_ref());
    let given = Given { tasks, index: &index, predecessors: &predecessors, costs, parts: &parts };
    let order = order(&given)?;
    let (lives, layouts) = arena::lay_out(tasks, &index, &order, workspace);
    let mut schedule = Schedule {
        name: tasks.name.clone(),
        lanes: index
            .lanes()
            .map(|(device, kind)| ScheduledLane { device, kind, order: Vec::new(), peak: 0, live: 0 })
            .collect(),
        waits: waits::waits(tasks, &index, &order, predecessors, (&lives, &layouts)),
        buffers: tasks.buffers.ids().map(|_| None).collect(),
        workspaces: tasks.tasks.ids().map(|_| None).collect(),
    };
    for (lane, (lives, layout)) in lives.iter().zip(&layouts).enumerate() {
        for ((&owner, span), &offset) in lives.owners.iter().zip(&lives.spans).zip(&layout.offsets) {
            let place = Some(ArenaRange { offset, bytes: span.bytes });
            match owner {
                Owner::Buffer(buffer) => schedule.buffers[buffer] = place,
                Owner::Workspace(task) => schedule.workspaces[task] = place,
            }
        }
        schedule.lanes[lane].peak = layout.peak;
        schedule.lanes[lane].live = arena::most_live(&lives.spans);
    }
    for &task in &order.tasks {
        schedule.lanes[index.lane(task)].order.push(task);
    }
    Some(schedule)
}

/// The most bytes of buffers alive at once on each device, devices ascending: less work than a schedule.
pub(crate) fn live_bytes(tasks: &TaskGraph) -> Vec<u64> {
    let (index, predecessors) = (Index::new(tasks, false), tasks.predecessors());
    let costs = TaskCosts::modelled(tasks, None);
    let parts = Parts::new(tasks, None);
    let given = Given { tasks, index: &index, predecessors: &predecessors, costs: &costs, parts: &parts };
    let lives = arena::lives(tasks, &index, &order::order(&given, None), 0, |_| 0);
    lives.iter().map(|lives| arena::most_live(&lives.spans)).collect()
}

impl Schedule {
    /// Where the bytes of `buffer` lie in its device's arena, views included.
    pub fn place(&self, tasks: &TaskGraph, buffer: BufferId) -> ArenaRange {
        self.buffers[tasks.root(buffer)].expect("a verified schedule places every buffer that owns bytes")
    }

    /// The position of the lane of `device` of this kind, if it has one.
    pub fn position_of(&self, device: DeviceId, kind: LaneKind) -> Option<usize> {
        self.lanes.binary_search_by_key(&(kind, device), |lane| (lane.kind, lane.device)).ok()
    }

    /// The lane in which `device` computes, if it has one.
    pub fn lane_of(&self, device: DeviceId) -> Option<&ScheduledLane> {
        Some(&self.lanes[self.position_of(device, LaneKind::Compute)?])
    }

    /// The lanes that compute, one for each device.
    pub fn devices(&self) -> &[ScheduledLane] {
        &self.lanes[..self.lanes.partition_point(|lane| lane.kind == LaneKind::Compute)]
    }

    /// Whether transfers have lanes of their own.
    pub fn overlaps(&self) -> bool {
        self.lanes.last().is_some_and(|lane| lane.kind == LaneKind::Transfers)
    }

    /// The largest arena: what one device must have.
    pub fn peak(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.peak).max().unwrap_or(0)
    }

    /// All arenas together: what one process that runs all devices must have.
    pub fn total_peak(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.peak).sum()
    }
}
