//! What the verifier reports.

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskId};

use crate::Owner;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A table has a wrong length.
    #[error(
        "waits, workspaces and buffers are {lengths:?} long, the task graph needs {needed:?}: it is another graph's \
         schedule"
    )]
    Tables {
        /// The lengths.
        lengths: [usize; 3],
        /// What they must be.
        needed: [usize; 3],
    },
    /// The lanes are not those of the devices.
    #[error("the lanes are of {}; they must be of {}", list(lanes), list(devices))]
    Lanes {
        /// The devices of the lanes.
        lanes: Vec<DeviceId>,
        /// The devices that have tasks or buffers, then those that have transfers if any lane is for them.
        devices: Vec<DeviceId>,
    },
    /// A task is missing or named twice.
    #[error("{task} runs {times} times; every task runs once")]
    Count {
        /// The task.
        task: TaskId,
        /// How often the lanes name it.
        times: usize,
    },
    /// A task is in another device's lane.
    #[error("{task} belongs on {device} but runs in the lane of {lane}")]
    Lane {
        /// The task.
        task: TaskId,
        /// Its device.
        device: DeviceId,
        /// The lane's device.
        lane: DeviceId,
    },
    /// A task waits for what is no task of another lane.
    #[error("{task} waits for {on}, which is no task of another lane")]
    Wait {
        /// The task.
        task: TaskId,
        /// What it waits for.
        on: TaskId,
    },
    /// Tasks wait for each other in a circle.
    #[error("the step never ends: {} wait for each other in a circle", list(tasks))]
    Cycle {
        /// The tasks; each comes before the next by lane order or a wait, the last before the first.
        tasks: Vec<TaskId>,
    },
    /// A task does not come after one it depends on.
    #[error("{task} does not come after {needs}, which it depends on")]
    Order {
        /// The early task.
        task: TaskId,
        /// The late one.
        needs: TaskId,
    },
    /// A buffer has no place or a wrong one.
    #[error("{buffer} needs {need} aligned bytes inside the arena of {peak}; its place is {place}")]
    Place {
        /// The buffer.
        buffer: BufferId,
        /// Its size.
        need: usize,
        /// The arena.
        peak: u64,
        /// Where the schedule puts it.
        place: String,
    },
    /// A workspace is outside the arena or unaligned.
    #[error("the workspace of {task} is {bytes} bytes at {offset}: unaligned or outside the arena of {peak}")]
    Workspace {
        /// The task.
        task: TaskId,
        /// Where the workspace starts.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The arena.
        peak: u64,
    },
    /// Two live things share bytes.
    #[error("{a} and {b} are alive together and share bytes")]
    Overlap {
        /// One of them.
        a: Owner,
        /// The other.
        b: Owner,
    },
    /// Two tasks use the same bytes in no order.
    #[error("{first} ({a}) and {second} ({b}) touch the same bytes in no order: one must wait for the other")]
    Race {
        /// A task.
        first: TaskId,
        /// Whose bytes it touches.
        a: Owner,
        /// Another task.
        second: TaskId,
        /// Whose bytes that one touches.
        b: Owner,
    },
}

fn list<T: ToString>(ids: &[T]) -> String {
    let names: Vec<_> = ids.iter().map(T::to_string).collect();
    names.join(", ")
}
