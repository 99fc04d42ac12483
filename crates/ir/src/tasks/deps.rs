//! Which task must wait for which: read after write, write after read, write after write, on the same bytes; and a
//! receiver for the senders of its movement.

use std::collections::HashMap;

use super::{BufferId, TaskGraph, TaskId, TaskOp};
use crate::parallel::DeviceId;
use crate::{Id, IdVec};

/// The tasks that touched a buffer's bytes last.
#[derive(Clone, Default)]
struct Touched {
    writer: Option<TaskId>,
    readers: Vec<TaskId>,
}

impl TaskGraph {
    /// For every task the tasks it must wait for, ascending, each once.
    pub fn predecessors(&self) -> IdVec<TaskId, Vec<TaskId>> {
        let mut touched: IdVec<BufferId, Touched> = self.buffers.ids().map(|_| Touched::default()).collect();
        let mut senders: HashMap<(usize, DeviceId), TaskId> = HashMap::new();
        let mut all = IdVec::new();
        for (id, task) in self.tasks.iter() {
            let mut waits = Vec::new();
            for &buffer in &task.reads {
                let state = &mut touched[self.root(buffer)];
                waits.extend(state.writer);
                state.readers.push(id);
            }
            for &buffer in &task.writes {
                let state = &mut touched[self.root(buffer)];
                waits.extend(state.writer);
                waits.append(&mut state.readers);
                state.writer = Some(id);
            }
            match task.op {
                TaskOp::Send { movement } => drop(senders.insert((movement, task.device), id)),
                TaskOp::Receive { movement } => {
                    let devices = task.reads.iter().map(|&buffer| self.buffers[self.image(buffer)].device);
                    waits.extend(devices.filter_map(|device| senders.get(&(movement, device))));
                }
                _ => {}
            }
            waits.sort_unstable();
            waits.dedup();
            waits.retain(|&other| other != id);
            let pushed: TaskId = all.push(waits);
            debug_assert_eq!(pushed.index(), id.index(), "tasks and predecessors share ids");
        }
        all
    }
}
