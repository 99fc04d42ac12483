//! Dense numbers for the devices of a task graph, and the lane of every task and buffer.

use phalanx_ir::Id;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};

/// Lanes are numbered by ascending device.
pub(crate) struct Index {
    /// The device of each lane.
    pub devices: Vec<DeviceId>,
    tasks: Vec<u32>,
    buffers: Vec<u32>,
    roots: Vec<BufferId>,
}

impl Index {
    pub fn new(tasks: &TaskGraph) -> Self {
        let of_tasks = || tasks.tasks.iter().map(|(_, task)| task.device);
        let of_buffers = || tasks.buffers.iter().map(|(_, buffer)| buffer.device);
        let devices = distinct(of_tasks().chain(of_buffers()));
        let lane = |device| devices.binary_search(&device).expect("every device has a lane") as u32;
        Index {
            tasks: of_tasks().map(lane).collect(),
            buffers: of_buffers().map(lane).collect(),
            roots: tasks.buffers.ids().map(|buffer| tasks.root(buffer)).collect(),
            devices,
        }
    }

    /// The lane of a task.
    pub fn lane(&self, task: TaskId) -> usize {
        self.tasks[task.index()] as usize
    }

    /// The lane in whose arena a buffer lies.
    pub fn home(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.index()] as usize
    }

    /// The buffer that owns the bytes of `buffer`.
    pub fn root(&self, buffer: BufferId) -> BufferId {
        self.roots[buffer.index()]
    }
}

/// The devices, ascending, each once. Neighbours are often equal, so that the set is rarely asked.
fn distinct(devices: impl Iterator<Item = DeviceId>) -> Vec<DeviceId> {
    let mut seen = std::collections::BTreeSet::new();
    let mut last = None;
    for device in devices {
        if last != Some(device) {
            seen.insert(device);
            last = Some(device);
        }
    }
    seen.into_iter().collect()
}
