//! Freezes a scheduled task graph into a program: here, and only here, task operators meet kernels.
//!
//! Every device's lane becomes a lane. A `send` does nothing in one process, so it becomes no operation: who waits for
//! it waits for the operation before it in its lane, and for nothing if there is none. (A send that waits itself stays,
//! as a movement without pieces.) A `receive` becomes an operation of the runtime (see `movement`). Before the operations
//! of its tasks a lane has a feed, after them a fetch, as its ports need them.

mod dropout;
mod movement;
mod ports;
mod select;

pub use select::EmitError;

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};
use phalanx_kernels::table;
use phalanx_program::{Builder, Draft, HostTransfer, Program, RECEIVE, Slice, Wait, feeds, fetches};
use phalanx_schedule::{Lane, Schedule};

use select::{Choice, select};

/// Bytes of working memory a task's kernel wants on a device with `cores` cores.
pub fn workspace(tasks: &TaskGraph, task: TaskId, cores: usize) -> u64 {
    match select(tasks, task) {
        Ok(choice) => choice.workspace(cores),
        Err(_) => 0,
    }
}

/// The program of `tasks` in the order and layout of `schedule`, on devices of `cores` cores.
pub fn emit(tasks: &TaskGraph, schedule: &Schedule, cores: usize) -> Result<Program, EmitError> {
    let ports = ports::ports(tasks, schedule);
    let (feeds, fetches) = (feeds(&ports, schedule.lanes.len()), fetches(&ports, schedule.lanes.len()));
    let emitter = Emitter { tasks, schedule, cores, done: done(tasks, schedule, &feeds) };
    let mut builder = Builder::new(&tasks.name);
    ports.into_iter().for_each(|port| builder.port(port));
    for (number, lane) in schedule.lanes.iter().enumerate() {
        builder.lane(lane.device.index() as u32, lane.peak);
        feeds[number].iter().for_each(|feed| builder.operation(feed.draft()));
        emitter.lane(number as u32, lane, &mut builder)?;
        fetches[number].iter().for_each(|fetch| builder.operation(fetch.draft()));
    }
    builder.finish().map_err(EmitError::Unsound)
}

struct Emitter<'a> {
    tasks: &'a TaskGraph,
    schedule: &'a Schedule,
    cores: usize,
    /// How many operations of its lane are complete when a task is.
    done: IdVec<TaskId, u32>,
}

/// Whether a task leaves no operation.
fn vanishes(tasks: &TaskGraph, schedule: &Schedule, id: TaskId) -> bool {
    matches!(tasks.tasks[id].op, TaskOp::Send { .. }) && schedule.waits[id].is_empty()
}

fn done(tasks: &TaskGraph, schedule: &Schedule, feeds: &[Option<HostTransfer>]) -> IdVec<TaskId, u32> {
    let mut done: IdVec<TaskId, u32> = tasks.tasks.ids().map(|_| 0).collect();
    for (lane, feed) in schedule.lanes.iter().zip(feeds) {
        let mut count = u32::from(feed.is_some());
        for &id in &lane.order {
            count += u32::from(!vanishes(tasks, schedule, id));
            done[id] = count;
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
    fn lane(&self, number: u32, lane: &Lane, builder: &mut Builder) -> Result<(), EmitError> {
        let mut lists = Lists { known: vec![0; self.schedule.lanes.len()], ..Lists::default() };
        for &id in lane.order.iter().filter(|&&id| !vanishes(self.tasks, self.schedule, id)) {
            let task = &self.tasks.tasks[id];
            let choice = self.choose(id, task)?;
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
            slices(&task.reads, &mut lists.reads);
            slices(&task.writes, &mut lists.writes);
            self.waits(id, &mut lists);
            let (lane, workspace) = (number, choice.workspace(self.cores));
            let scratch = match self.schedule.workspaces[id] {
                Some(place) => Slice { lane, offset: place.offset, bytes: workspace },
                None => Slice { lane, offset: 0, bytes: 0 },
            };
            let Choice { kernel, words } = choice;
            let Lists { reads, writes, waits, .. } = &lists;
            builder.operation(Draft {
                kernel,
                label: &task.layer,
                words: &words,
                reads,
                writes,
                scratch,
                waits,
            });
        }
        Ok(())
    }

    fn choose(&self, id: TaskId, task: &Task) -> Result<Choice, EmitError> {
        match task.op {
            TaskOp::Send { .. } => Ok(Choice { kernel: RECEIVE, words: Vec::new() }),
            TaskOp::Receive { .. } => {
                Ok(Choice { kernel: RECEIVE, words: movement::words(self.tasks, task)? })
            }
            _ => select(self.tasks, id),
        }
    }

    /// Lists what task `id` waits for, one operation for each lane, without what its lane has waited for before.
    fn waits(&self, id: TaskId, lists: &mut Lists) {
        lists.waits.clear();
        for &other in &self.schedule.waits[id] {
            let (lane, done) = (lane_of(self.schedule, self.tasks.tasks[other].device), self.done[other]);
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
    let lane = schedule.lanes.binary_search_by_key(&device, |lane| lane.device);
    lane.expect("every device with tasks or buffers has a lane, devices ascending") as u32
}

impl Choice {
    fn workspace(&self, cores: usize) -> u64 {
        if self.kernel == RECEIVE {
            return 0;
        }
        let kernel = table::find(self.kernel).expect("a selected kernel is in the table");
        (kernel.scratch)(&self.words, cores) as u64
    }
}
