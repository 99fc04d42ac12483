//! Freezes a scheduled task graph into a program: here, and only here, task operators meet kernels.
//!
//! Every lane becomes a lane. A `send` does nothing in one process, so it becomes no operation: what waits for
//! it waits for the operation before it in its lane, and for nothing if there is none. (A send that waits itself stays,
//! as a movement without pieces.) A `receive` becomes an operation of the runtime (see `movement`). Before the operations
//! of its tasks a lane that computes has a feed, after them a fetch, as its ports need them; what a lane of transfers reads
//! first comes after the feed, and the fetch after all it brings.

mod error;
mod movement;
mod ports;
mod select;

pub use error::EmitError;

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};
use phalanx_kernels::spmd::{LaunchError, Planned};
use phalanx_kernels::table;
use phalanx_program::{
    Blocks, Builder, Draft, HostTransfer, Placement, Program, RECEIVE, Slice, Wait, feeds, fetches,
};
use phalanx_schedule::{LaneKind, Schedule, ScheduledLane};

pub(crate) use select::{Choice, select};

/// What a program is made for: devices with so many cores, in these processes.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Cores of each device.
    pub cores: usize,
    /// Which process has which device.
    pub placement: &'a Placement,
}

/// Bytes of working memory that every task wants.
pub fn workspaces(tasks: &TaskGraph, machine: Machine<'_>) -> IdVec<TaskId, u64> {
    let workspace = |(id, task): (TaskId, &Task)| match (&task.op, select(tasks, id)) {
        (TaskOp::Receive { .. }, _) => movement::landing(tasks, task, machine.placement),
        // What cannot be launched is told when the program is emitted.
        (_, Ok(choice)) => choice.plan(machine.cores).map_or(0, |planned| planned.bytes),
        (_, Err(_)) => 0,
    };
    tasks.tasks.iter().map(workspace).collect()
}

/// The program of `tasks` in the order and layout of `schedule`.
pub fn emit(tasks: &TaskGraph, schedule: &Schedule, machine: Machine<'_>) -> Result<Program, EmitError> {
    if tasks.has_images() {
        return Err(EmitError::Images { name: tasks.name.clone() });
    }
    let ports = ports::ports(tasks, schedule);
    let (feeds, fetches) = (feeds(&ports, schedule.lanes.len()), fetches(&ports, schedule.lanes.len()));
    let emitter = Emitter { tasks, schedule, machine, done: done(tasks, schedule, &feeds) };
    let mut builder = Builder::new(&tasks.name);
    ports.into_iter().for_each(|port| builder.port(port));
    for (number, lane) in schedule.lanes.iter().enumerate() {
        let device = lane.device.index() as u32;
        let home = lane_of(schedule, lane.device);
        match lane.kind {
            LaneKind::Compute => builder.lane(device, lane.peak),
            LaneKind::Transfers => builder.transfer_lane(device, home),
        };
        feeds[number].iter().for_each(|feed| builder.operation(feed.draft()));
        let after_feed = lane.kind == LaneKind::Transfers && feeds[home as usize].is_some();
        emitter.lane(lane, after_feed, &mut builder)?;
        if let Some(fetch) = &fetches[number] {
            let waits: Vec<Wait> = emitter.last_transfer(lane.device).into_iter().collect();
            builder.operation(Draft { waits: &waits, ..fetch.draft() });
        }
    }
    builder.finish().map_err(EmitError::Unsound)
}

/// For every lane of the program of `tasks` in `schedule` the tasks that its operations do; none for feeds and fetches.
pub fn origins(tasks: &TaskGraph, schedule: &Schedule) -> Vec<Vec<Option<TaskId>>> {
    let ports = ports::ports(tasks, schedule);
    let (feeds, fetches) = (feeds(&ports, schedule.lanes.len()), fetches(&ports, schedule.lanes.len()));
    let lanes = schedule.lanes.iter().zip(feeds.iter().zip(&fetches));
    let origins = lanes.map(|(lane, (feed, fetch))| {
        let run = lane.order.iter().copied().filter(|&id| !vanishes(tasks, schedule, id));
        feed.iter().map(|_| None).chain(run.map(Some)).chain(fetch.iter().map(|_| None)).collect()
    });
    origins.collect()
}

struct Emitter<'a> {
    tasks: &'a TaskGraph,
    schedule: &'a Schedule,
    machine: Machine<'a>,
    /// Every task's lane, and how many operations of it are complete when the task is.
    done: IdVec<TaskId, (u32, u32)>,
}

/// Whether a task leaves no operation.
fn vanishes(tasks: &TaskGraph, schedule: &Schedule, id: TaskId) -> bool {
    matches!(tasks.tasks[id].op, TaskOp::Send { .. }) && schedule.waits[id].is_empty()
}

fn done(tasks: &TaskGraph, schedule: &Schedule, feeds: &[Option<HostTransfer>]) -> IdVec<TaskId, (u32, u32)> {
    let mut done: IdVec<TaskId, (u32, u32)> = tasks.tasks.ids().map(|_| (0, 0)).collect();
    for (number, (lane, feed)) in (0..).zip(schedule.lanes.iter().zip(feeds)) {
        let mut count = u32::from(feed.is_some());
        for &id in &lane.order {
            count += u32::from(!vanishes(tasks, schedule, id));
            done[id] = (number, count);
        }
    }
    done
}

/// Vectors that every operation of a lane uses again.
#[derive(Default)]
struct Lists {
    reads: Vec<Slice>,
    writes: Vec<Slice>,
    waits: Vec<Wait>,
    /// How many operations of each lane this one has waited for so far.
    known: Vec<u32>,
}

impl Emitter<'_> {
    /// The operation after which the device has received everything, if a lane of its own does that.
    fn last_transfer(&self, device: DeviceId) -> Option<Wait> {
        let lane = self.schedule.position_of(device, LaneKind::Transfers)?;
        let (lane, done) = self.done[*self.schedule.lanes[lane].order.last()?];
        Some(Wait { lane, position: done - 1 })
    }

    /// Adds the operations of a lane; `after_feed` tells that the first one waits for the feed of its home.
    fn lane(&self, lane: &ScheduledLane, after_feed: bool, builder: &mut Builder) -> Result<(), EmitError> {
        let mut lists = Lists { known: vec![0; self.schedule.lanes.len()], ..Lists::default() };
        let home = lane_of(self.schedule, lane.device);
        let mut feed = after_feed.then_some(Wait { lane: home, position: 0 });
        for &id in lane.order.iter().filter(|&&id| !vanishes(self.tasks, self.schedule, id)) {
            let task = &self.tasks.tasks[id];
            let choice = select(self.tasks, id)?;
            let pieces = match task.op {
                TaskOp::Receive { .. } => movement::pieces(self.tasks, task)?,
                _ => Vec::new(),
            };
            let is_send = matches!(task.op, TaskOp::Send { .. });
            let slices = |buffers: &[BufferId], into: &mut Vec<Slice>| {
                into.clear();
                into.extend(
                    buffers
                        .iter()
                        .filter(|_| !is_send)
                        .map(|&buffer| slice_of(self.tasks, self.schedule, buffer)),
                );
            };
            slices(&choice.reads, &mut lists.reads);
            slices(&choice.writes, &mut lists.writes);
            self.waits(id, &mut lists);
            // Every operation that waits for its compute lane comes after the feed, which is first there.
            lists.waits.extend(feed.take().filter(|feed| lists.known[feed.lane as usize] == 0));
            let Planned { blocks, bytes } = self.plan(task, &choice)?;
            let offset = self.schedule.workspaces[id].map_or(0, |place| place.offset);
            let scratch = Slice { lane: home, offset, bytes };
            let blocks = Blocks::new(blocks).expect("a launch that was planned has blocks");
            let Choice { kernel, words, .. } = choice;
            let Lists { reads, writes, waits, .. } = &lists;
            builder.operation(Draft {
                kernel,
                label: &task.layer,
                blocks,
                params: &words,
                pieces,
                reads,
                writes,
                scratch,
                waits,
                ..Draft::default()
            });
        }
        Ok(())
    }

    fn plan(&self, task: &Task, choice: &Choice<'_>) -> Result<Planned, LaunchError> {
        match task.op {
            TaskOp::Receive { .. } => {
                let bytes = movement::landing(self.tasks, task, self.machine.placement);
                Ok(Planned { blocks: 1, bytes })
            }
            _ => choice.plan(self.machine.cores),
        }
    }

    /// Lists what task `id` waits for, one operation for each lane, without what its lane has waited for before.
    fn waits(&self, id: TaskId, lists: &mut Lists) {
        lists.waits.clear();
        for &other in &self.schedule.waits[id] {
            let (lane, done) = self.done[other];
            if done <= lists.known[lane as usize] {
                continue;
            }
            lists.known[lane as usize] = done;
            match lists.waits.iter_mut().find(|wait| wait.lane == lane) {
                Some(wait) => wait.position = done - 1,
                None => lists.waits.push(Wait { lane, position: done - 1 }),
            }
        }
    }
}

/// Where a buffer lies.
fn slice_of(tasks: &TaskGraph, schedule: &Schedule, buffer: BufferId) -> Slice {
    let lane = lane_of(schedule, tasks.buffers[buffer].device);
    let bytes = tasks.buffers[buffer].ty.bytes() as u64;
    Slice { lane, offset: schedule.place(tasks, buffer).offset, bytes }
}

fn lane_of(schedule: &Schedule, device: DeviceId) -> u32 {
    let lane = schedule.position_of(device, LaneKind::Compute);
    lane.expect("every device with tasks or buffers has a lane") as u32
}

impl Choice<'_> {
    /// How the kernel is launched on a device of so many cores.
    fn plan(&self, cores: usize) -> Result<Planned, LaunchError> {
        if self.kernel == RECEIVE {
            return Ok(Planned { blocks: 1, bytes: 0 });
        }
        let kernel = table::find(self.kernel).expect("a selected kernel is in the table");
        kernel.plan(&self.words, cores)
    }
}
