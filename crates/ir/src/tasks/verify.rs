//! What holds for every task graph:
//!
//! 1. a view has the bytes and the device of the buffer it shows;
//! 2. a task touches buffers of its own device, reads only what the host or an earlier task wrote, and does not read
//!    a buffer it writes except where its operator says so;
//! 3. inputs are written by no task, parameters and state only by operators that update them;
//! 4. every output and gradient is written by a task.

use super::{BufferId, Role, Task, TaskGraph, TaskId};
use crate::IdVec;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// A view does not fit what it shows.
    #[error("{view} shows {of} but differs from it in bytes or device")]
    View {
        /// The view.
        view: BufferId,
        /// What it shows.
        of: BufferId,
    },
    /// A task reads bytes nobody wrote.
    #[error("{task} ({layer}) reads {buffer}, which nothing has written before it")]
    Unwritten {
        /// The task.
        task: TaskId,
        /// Its layer.
        layer: String,
        /// The buffer.
        buffer: BufferId,
    },
    /// A task touches another device's memory.
    #[error("{task} ({layer}) touches {buffer} on another device")]
    Device {
        /// The task.
        task: TaskId,
        /// Its layer.
        layer: String,
        /// The buffer.
        buffer: BufferId,
    },
    /// A task writes what it must not.
    #[error("{task} ({layer}) writes {buffer}, which is {why}")]
    Written {
        /// The task.
        task: TaskId,
        /// Its layer.
        layer: String,
        /// The buffer.
        buffer: BufferId,
        /// Why it must not.
        why: &'static str,
    },
    /// An output or gradient is never written.
    #[error("{buffer} is to be read after the step but no task writes it")]
    Missing {
        /// The buffer.
        buffer: BufferId,
    },
}

impl TaskGraph {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<TaskError>> {
        let mut errors = Vec::new();
        let mut written: IdVec<BufferId, bool> = self.buffers.iter().map(|(_, b)| b.role.is_fed()).collect();
        for (view, buffer) in self.buffers.iter() {
            let Some(of) = buffer.view_of else { continue };
            let shown = &self.buffers[of];
            if of >= view || shown.ty.bytes() != buffer.ty.bytes() || shown.device != buffer.device {
                errors.push(TaskError::View { view, of });
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        for (id, task) in self.tasks.iter() {
            self.check_task(id, task, &mut written, &mut errors);
        }
        let wanted = self
            .outputs
            .iter()
            .map(|&(_, buffer)| buffer)
            .chain(self.gradients.iter().map(|&(_, gradient)| gradient))
            .chain(self.loss);
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
        let layer = || task.layer.clone();
        let updated = task.writes.iter().enumerate().filter(|&(slot, _)| task.op.reads_write(slot));
        for &buffer in task.reads.iter().chain(updated.map(|(_, buffer)| buffer)) {
            if !written[self.root(buffer)] {
                errors.push(TaskError::Unwritten { task: id, layer: layer(), buffer });
            }
        }
        for &buffer in task.reads.iter().chain(&task.writes) {
            if self.buffers[buffer].device != task.device {
                errors.push(TaskError::Device { task: id, layer: layer(), buffer });
            }
        }
        for (slot, &buffer) in task.writes.iter().enumerate() {
            let root = self.root(buffer);
            let role = self.buffers[root].role;
            let shared = task.reads.iter().chain(&task.writes[..slot]).any(|&other| self.root(other) == root);
            let why = match role {
                _ if shared => Some("also another operand"),
                Role::Input => Some("an input"),
                Role::Param | Role::State if !task.op.reads_write(slot) => Some("kept across steps"),
                _ => None,
            };
            errors.extend(why.map(|why| TaskError::Written { task: id, layer: layer(), buffer, why }));
            written[root] = true;
        }
    }
}

impl Role {
    /// Whether the buffer holds something before the first task runs.
    pub fn is_fed(self) -> bool {
        matches!(self, Role::Input | Role::Param | Role::State)
    }

    /// Whether the buffer must keep its bytes through the whole step.
    pub fn is_kept(self) -> bool {
        self != Role::Temp
    }
}
