//! The part of a task graph that one process runs.
//!
//! Control is replicated: every process lowers the whole step and keeps what its own devices do. A slice mentions tiles of
//! other devices only as sources of what it receives.

use std::collections::BTreeSet;

use phalanx_ir::IdVec;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskGraph};

/// The tasks of `devices`, in order, with the buffers they mention and those that live there across steps.
pub fn slice_machine(tasks: &TaskGraph, devices: &BTreeSet<DeviceId>) -> TaskGraph {
    let here = |buffer: BufferId| devices.contains(&tasks.buffers[buffer].device);
    let mut used: IdVec<BufferId, bool> = tasks.buffers.ids().map(|_| false).collect();
    let kept = tasks.buffers.iter().filter(|(_, buffer)| buffer.role.is_kept()).map(|(id, _)| id);
    let kept: Vec<_> = kept.filter(|&id| here(id)).collect();
    let own: Vec<_> = tasks.tasks.iter().filter(|(_, task)| devices.contains(&task.device)).collect();
    let touched = own.iter().flat_map(|(_, task)| task.reads.iter().chain(&task.writes)).copied();
    for buffer in touched.chain(kept) {
        let mut next = Some(buffer);
        while let Some(buffer) = next {
            used[buffer] = true;
            next = tasks.buffers[buffer].view_of;
        }
    }
    let mut slice = TaskGraph { name: tasks.name.clone(), ..TaskGraph::default() };
    let mut renamed: IdVec<BufferId, Option<BufferId>> = tasks.buffers.ids().map(|_| None).collect();
    for (id, buffer) in tasks.buffers.iter().filter(|&(id, _)| used[id]) {
        let mut buffer = buffer.clone();
        buffer.view_of = buffer.view_of.and_then(|of| renamed[of]);
        renamed[id] = Some(slice.buffers.push(buffer));
    }
    for (_, task) in own {
        let mut task = task.clone();
        for buffer in task.reads.iter_mut().chain(&mut task.writes) {
            *buffer = renamed[*buffer].expect("every mentioned buffer is kept");
        }
        slice.tasks.push(task);
    }
    let outputs = tasks.outputs.iter().filter(|&&(_, buffer)| here(buffer));
    let renamed_output = |(name, buffer): &(String, BufferId)| Some((name.clone(), renamed[*buffer]?));
    slice.outputs = outputs.filter_map(renamed_output).collect();
    slice
}
