//! Weights that are gathered once for the forward and again for the backward pass.
//!
//! A task that runs again reads the second copy of such a weight, which its layer's gradients need anyway; else the first
//! one would stay in memory between the passes. The second movement may be made earlier than listed, because it reads
//! only tensors that nothing writes before.

use std::collections::HashMap;

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId, TaskOp};

use super::uses::Uses;

/// Copies of fed tensors that movements of the backward pass make.
pub(super) struct Twins {
    /// By device, microbatch and tensor.
    copies: HashMap<(DeviceId, u32, u32), Vec<Twin>>,
    movements: HashMap<usize, Vec<TaskId>>,
}

/// A second copy of a fed tensor's tile.
#[derive(Clone, Copy)]
pub(super) struct Twin {
    pub buffer: BufferId,
    pub movement: usize,
}

impl Twins {
    pub fn of(uses: &Uses<'_>) -> Self {
        let mut movements: HashMap<usize, Vec<TaskId>> = HashMap::new();
        for (id, task) in uses.graph.tasks.iter() {
            if let TaskOp::Send { movement } | TaskOp::Receive { movement } = task.op {
                movements.entry(movement).or_default().push(id);
            }
        }
        movements.retain(|_, tasks| tasks[0] >= uses.backward && is_gather(uses, tasks));
        let mut twins = Twins { copies: HashMap::new(), movements };
        for (&movement, tasks) in &twins.movements {
            for &task in tasks {
                let microbatch = uses.graph.tasks[task].microbatch;
                for buffer in uses.results(task) {
                    if let Some((device, tensor)) = tensor(uses.graph, buffer) {
                        let copies = twins.copies.entry((device, microbatch, tensor)).or_default();
                        copies.push(Twin { buffer, movement });
                    }
                }
            }
        }
        // The map gives movements in no fixed order.
        twins.copies.values_mut().for_each(|copies| copies.sort_by_key(|twin| twin.buffer));
        twins
    }

    /// The copy, made for the backward pass of a microbatch, of a tile that was gathered for the forward pass.
    pub fn find(&self, uses: &Uses<'_>, root: BufferId, microbatch: u32) -> Option<Twin> {
        let receive = uses.producer(root).filter(|&task| task < uses.backward)?;
        let is_received = matches!(uses.graph.tasks[receive].op, TaskOp::Receive { .. });
        if !is_received || !reads_fed(uses, receive) {
            return None;
        }
        let (device, tensor) = tensor(uses.graph, root)?;
        let shape = |buffer: BufferId| (&uses.graph.buffers[buffer].tile, &uses.graph.buffers[buffer].ty);
        let mut copies = self.copies.get(&(device, microbatch, tensor))?.iter();
        copies.find(|twin| shape(twin.buffer) == shape(root)).copied()
    }

    /// The tasks of a movement that makes twins, as listed.
    pub fn tasks(&self, movement: usize) -> &[TaskId] {
        self.movements.get(&movement).map_or(&[], Vec::as_slice)
    }
}

fn tensor(graph: &TaskGraph, buffer: BufferId) -> Option<(DeviceId, u32)> {
    let buffer = &graph.buffers[buffer];
    Some((buffer.device, buffer.tile.as_ref()?.tensor))
}

fn reads_fed(uses: &Uses<'_>, task: TaskId) -> bool {
    uses.operands(task).all(|root| uses.graph.buffers[root].role.is_fed())
}

/// Whether a movement only copies fed tensors that no task before its last one writes, into buffers of its own.
fn is_gather(uses: &Uses<'_>, tasks: &[TaskId]) -> bool {
    let last = *tasks.last().expect("a movement has tasks");
    let is_early = |root: BufferId| uses.first_writer(root).is_none_or(|writer| writer > last);
    tasks.iter().all(|&task| {
        reads_fed(uses, task)
            && uses.operands(task).all(is_early)
            && uses.results(task).all(|root| uses.producer(root).is_some())
    })
}
