//! What holds for every task graph:
//!
//! 1. a view has the bytes and the device of the buffer it shows; or it is a tile of the same shape on a device that has
//!    nothing of its own: another one stands for that; a tile has a place for each of its dimensions;
//! 2. a task touches buffers of its own device, reads only what the host or an earlier task wrote, and does not read
//!    a buffer it writes except where its operator says so;
//! 3. inputs are written by no task, parameters and state only by operators that update them;
//! 4. a movement has all its sides: every written tile is covered by tiles of every partial sum, and what a device
//!    receives from another one was sent there before, in the same movement;
//! 5. the steps of a chain read what is there, and its tensors have one size;
//! 6. every output is written by a task.

use std::collections::HashSet;

use super::{BufferId, Role, Task, TaskGraph, TaskId, TaskOp};
use crate::IdVec;
use crate::parallel::DeviceId;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum TaskError {
    /// A view does not fit what it shows.
    #[error("{view} shows {of} but differs from it in bytes or device")]
    View { view: BufferId, of: BufferId },
    /// A tile is nowhere in its tensor.
    #[error("{buffer} is a tile at a place that its tensor does not have")]
    Tile { buffer: BufferId },
    /// A task reads bytes that no task wrote.
    #[error("{task} ({layer}) reads {buffer}, which nothing has written before it")]
    Unwritten { task: TaskId, layer: String, buffer: BufferId },
    /// A task touches another device's memory.
    #[error("{task} ({layer}) touches {buffer} on another device")]
    Device { task: TaskId, layer: String, buffer: BufferId },
    /// A task writes what it must not.
    #[error("{task} ({layer}) writes {buffer}, which is {why}")]
    Written { task: TaskId, layer: String, buffer: BufferId, why: &'static str },
    /// A movement lacks a side.
    #[error("{task} ({layer}) moves {buffer}, but not all of it has a source, or it was not sent")]
    Side { task: TaskId, layer: String, buffer: BufferId },
    /// A chain contradicts itself.
    #[error("{task} ({layer}) is no chain: {why}")]
    Chain { task: TaskId, layer: String, why: &'static str },
    /// An output is never written.
    #[error("{buffer} is to be read after the step but no task writes it")]
    Missing { buffer: BufferId },
}

impl TaskGraph {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<TaskError>> {
        let mut errors = Vec::new();
        let mut written: IdVec<BufferId, bool> = self.buffers.iter().map(|(_, b)| b.role.is_fed()).collect();
        let owned = self.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none());
        let own: HashSet<DeviceId> = owned
            .map(|(_, buffer)| buffer.device)
            .chain(self.tasks.iter().map(|(_, task)| task.device))
            .collect();
        for (view, buffer) in self.buffers.iter() {
            if !buffer.is_placed() {
                errors.push(TaskError::Tile { buffer: view });
            }
            let Some(of) = buffer.view_of else { continue };
            let shown = &self.buffers[of];
            let is_image = shown.device != buffer.device;
            let stands = shown.ty == buffer.ty && buffer.tile.is_some() && !own.contains(&buffer.device);
            let is_wrong = is_image && !stands;
            if of >= view || shown.ty.bytes() != buffer.ty.bytes() || is_wrong {
                errors.push(TaskError::View { view, of });
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        for (id, task) in self.tasks.iter() {
            self.check_task(id, task, &mut written, &mut errors);
        }
        self.check_sent(&mut errors);
        let wanted = self.outputs.iter().map(|&(_, buffer)| buffer);
        errors.extend(wanted.filter(|&b| !written[self.root(b)]).map(|buffer| TaskError::Missing { buffer }));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_task(
        &self,
        id: TaskId,
        task: &Task,
        written: &mut IdVec<BufferId, bool>,
        errors: &mut Vec<TaskError>,
    ) {
        let layer = || task.layer.to_string();
        let updated = task.writes.iter().enumerate().filter(|&(slot, _)| task.op.reads_write(slot));
        for &buffer in task.reads.iter().chain(updated.map(|(_, buffer)| buffer)) {
            if !written[self.root(buffer)] {
                errors.push(TaskError::Unwritten { task: id, layer: layer(), buffer });
            }
        }
        if let TaskOp::Chain { steps, results } = &task.op {
            let types = |buffers: &[BufferId]| -> Vec<_> {
                buffers.iter().map(|&buffer| self.buffers[buffer].ty.clone()).collect()
            };
            let wrong = steps.check(results, &types(&task.reads), &types(&task.writes)).err();
            errors.extend(wrong.map(|why| TaskError::Chain { task: id, layer: layer(), why }));
        }
        let anywhere = matches!(task.op, TaskOp::Move { .. });
        let remote = anywhere || matches!(task.op, TaskOp::Receive { .. });
        let reads = task.reads.iter().filter(|_| !remote);
        for &buffer in reads.chain(task.writes.iter().filter(|_| !anywhere)) {
            if self.buffers[buffer].device != task.device {
                errors.push(TaskError::Device { task: id, layer: layer(), buffer });
            }
        }
        if remote {
            let sources = self.sources(&task.reads);
            let uncovered = task.writes.iter().filter(|&&write| sources.pieces(write).is_none());
            errors.extend(uncovered.map(|&buffer| TaskError::Side { task: id, layer: layer(), buffer }));
        }
        for (slot, &buffer) in task.writes.iter().enumerate() {
            let root = self.root(buffer);
            let role = self.buffers[root].role;
            let shared = task.reads.iter().chain(&task.writes[..slot]).any(|&other| self.root(other) == root);
            let why = match role {
                _ if shared => Some("also another operand"),
                Role::Input => Some("an input"),
                Role::Table => Some("a table"),
                Role::Param | Role::State if !task.op.reads_write(slot) => Some("kept across steps"),
                _ => None,
            };
            errors.extend(why.map(|why| TaskError::Written { task: id, layer: layer(), buffer, why }));
            written[root] = true;
        }
    }

    /// Reports tiles that a device receives from another one without their being sent.
    fn check_sent(&self, errors: &mut Vec<TaskError>) {
        let mut sent: HashSet<(usize, BufferId)> = HashSet::new();
        for (id, task) in self.tasks.iter() {
            match task.op {
                TaskOp::Send { movement } => sent.extend(task.reads.iter().map(|&buffer| (movement, buffer))),
                TaskOp::Receive { movement } => {
                    let remote = |buffer: &&BufferId| self.buffers[**buffer].device != task.device;
                    let missing = |buffer: &&BufferId| !sent.contains(&(movement, self.image(**buffer)));
                    let missing = task.reads.iter().filter(remote).filter(missing);
                    let layer = || task.layer.to_string();
                    errors.extend(missing.map(|&buffer| TaskError::Side {
                        task: id,
                        layer: layer(),
                        buffer,
                    }));
                }
                _ => {}
            }
        }
    }
}

impl Role {
    /// Whether the buffer holds something before the first task runs.
    pub fn is_fed(self) -> bool {
        matches!(self, Role::Input | Role::Param | Role::Table | Role::State)
    }

    /// Whether the buffer must keep its bytes through the whole step.
    pub fn is_kept(self) -> bool {
        self != Role::Temp
    }
}
