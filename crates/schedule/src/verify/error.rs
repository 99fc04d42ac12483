//! What the verifier reports.

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskId};

use crate::Owner;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ScheduleError {
    /// A table has a wrong length.
    #[error(
        "waits, workspaces and buffers are {lengths:?} long, the task graph needs {needed:?}: it is another graph's \
         schedule"
    )]
    Tables { lengths: [usize; 3], needed: [usize; 3] },
    /// The lanes are not those of the devices.
    #[error("the lanes are of {}; they must be of {}", list(lanes), list(devices))]
    Lanes { lanes: Vec<DeviceId>, devices: Vec<DeviceId> },
    /// A task is missing or named twice.
    #[error("{task} runs {times} times; every task runs once")]
    Count { task: TaskId, times: usize },
    /// A task is in another device's lane.
    #[error("{task} belongs on {device} but runs in the lane of {lane}")]
    Lane { task: TaskId, device: DeviceId, lane: DeviceId },
    /// A task waits for what is no task of another lane.
    #[error("{task} waits for {on}, which is no task of another lane")]
    Wait { task: TaskId, on: TaskId },
    /// Tasks wait for each other in a circle.
    #[error("the step never ends: {} wait for each other in a circle", list(tasks))]
    Cycle { tasks: Vec<TaskId> },
    /// A task does not come after one it depends on.
    #[error("{task} does not come after {needs}, which it depends on")]
    Order { task: TaskId, needs: TaskId },
    /// A buffer has no place or a wrong one.
    #[error("{buffer} needs {need} aligned bytes inside the arena of {peak}; its place is {place}")]
    Place { buffer: BufferId, need: usize, peak: u64, place: String },
    /// A workspace is outside the arena or unaligned.
    #[error("the workspace of {task} is {bytes} bytes at {offset}: unaligned or outside the arena of {peak}")]
    Workspace { task: TaskId, offset: u64, bytes: u64, peak: u64 },
    /// Two live things share bytes.
    #[error("{a} and {b} are alive together and share bytes")]
    Overlap { a: Owner, b: Owner },
    /// Two tasks use the same bytes in no order.
    #[error("{first} ({a}) and {second} ({b}) touch the same bytes in no order: one must wait for the other")]
    Race { first: TaskId, a: Owner, second: TaskId, b: Owner },
}

fn list<T: ToString>(ids: &[T]) -> String {
    let names: Vec<_> = ids.iter().map(T::to_string).collect();
    names.join(", ")
}
