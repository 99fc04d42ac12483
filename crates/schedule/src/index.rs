//! Dense numbers for the devices of a task graph, and the lane of every task and buffer.

use std::collections::BTreeSet;

use phalanx_ir::Id;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskId, TaskOp};

use crate::LaneKind;

/// Lanes are numbered by ascending device, first those that compute, then those of transfers.
pub(crate) struct Index {
    /// The devices: each has an arena and a lane that computes, of the same number.
    pub devices: Vec<DeviceId>,
    /// The arenas of the lanes of transfers, ascending.
    beside: Vec<u32>,
    tasks: Vec<u32>,
    buffers: Vec<u32>,
    roots: Vec<BufferId>,
}

impl Index {
    /// With `overlap`, what a device receives has a lane of its own. What it sends on of that belongs there, too: it is
    /// ready when it was received.
    pub fn new(tasks: &TaskGraph, overlap: bool) -> Self {
        let of_tasks = || tasks.tasks.iter().map(|(_, task)| task.device);
        let roots: Vec<BufferId> = tasks.buffers.ids().map(|buffer| tasks.root(buffer)).collect();
        // What a device has that another one stands for lies in that one's arena.
        let of_buffers = || roots.iter().map(|&root| tasks.buffers[root].device);
        let devices = distinct(of_tasks().chain(of_buffers()));
        let home = |device| devices.binary_search(&device).expect("every device has a lane") as u32;
        let receiving = tasks.tasks.iter().map(|(_, task)| task).filter(|task| overlap && receives(task));
        let beside: Vec<u32> = distinct(receiving.map(|task| task.device)).into_iter().map(home).collect();
        // Whether the buffer was last written by a lane of transfers.
        let mut received = vec![false; if overlap { tasks.buffers.len() } else { 0 }];
        let lane = |(_, task): (TaskId, &Task)| {
            let is_received = |buffer: &BufferId| received[roots[buffer.index()].index()];
            let sends = matches!(task.op, TaskOp::Send { .. });
            let is_beside = overlap && (receives(task) || sends && task.reads.iter().any(is_received));
            for write in task.writes.iter().filter(|_| overlap) {
                received[roots[write.index()].index()] = is_beside;
            }
            match is_beside {
                true => (devices.len() + beside.partition_point(|&other| other < home(task.device))) as u32,
                false => home(task.device),
            }
        };
        Index {
            tasks: tasks.tasks.iter().map(lane).collect(),
            buffers: of_buffers().map(home).collect(),
            beside,
            roots,
            devices,
        }
    }

    /// How many lanes there are.
    pub fn n_lanes(&self) -> usize {
        self.devices.len() + self.beside.len()
    }

    /// Device and kind of every lane.
    pub fn lanes(&self) -> impl Iterator<Item = (DeviceId, LaneKind)> {
        let beside = self.beside.iter().map(|&home| (self.devices[home as usize], LaneKind::Transfers));
        self.devices.iter().map(|&device| (device, LaneKind::Compute)).chain(beside)
    }

    /// The lane of a task.
    pub fn lane(&self, task: TaskId) -> usize {
        self.tasks[task.index()] as usize
    }

    /// The number of the device of a lane, as links know it.
    pub fn device(&self, lane: usize) -> u32 {
        self.devices[self.arena(lane)].index() as u32
    }

    /// How many devices links have to know.
    pub fn n_links(&self) -> usize {
        self.devices.last().map_or(0, |last| last.index() + 1)
    }

    /// The arena in which a lane's tasks write.
    pub fn arena(&self, lane: usize) -> usize {
        lane.checked_sub(self.devices.len()).map_or(lane, |beside| self.beside[beside] as usize)
    }

    /// Whether the lane is one of transfers.
    pub fn is_beside(&self, lane: usize) -> bool {
        lane >= self.devices.len()
    }

    /// The arena in which a buffer lies.
    pub fn home(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.index()] as usize
    }

    /// The buffer that owns the bytes of `buffer`.
    pub fn root(&self, buffer: BufferId) -> BufferId {
        self.roots[buffer.index()]
    }
}

fn receives(task: &Task) -> bool {
    matches!(task.op, TaskOp::Receive { .. })
}

/// The devices, ascending, each once. Neighbours are often equal, so that the set is rarely asked.
fn distinct(devices: impl Iterator<Item = DeviceId>) -> Vec<DeviceId> {
    let mut seen = BTreeSet::new();
    let mut last = None;
    for device in devices {
        if last != Some(device) {
            seen.insert(device);
            last = Some(device);
        }
    }
    seen.into_iter().collect()
}
