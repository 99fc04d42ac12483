//! The tasks that write and read every buffer, and which tasks can run again.

use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use crate::order::first_backward;

/// Facts about the buffers of a graph that has a backward pass; those of a view are those of what it shows.
pub(super) struct Uses<'a> {
    pub graph: &'a TaskGraph,
    /// The task that begins the backward pass.
    pub backward: TaskId,
    roots: Vec<BufferId>,
    facts: IdVec<BufferId, Facts>,
}

#[derive(Clone, Copy, Default)]
struct Facts {
    writers: u32,
    first_writer: Option<TaskId>,
    last_forward_reader: Option<TaskId>,
    read_backward: bool,
}

impl<'a> Uses<'a> {
    /// The facts; none if nothing runs backward.
    pub fn of(graph: &'a TaskGraph) -> Option<Self> {
        let backward = first_backward(graph)?;
        let roots: Vec<BufferId> = graph.buffers.ids().map(|buffer| graph.root(buffer)).collect();
        let mut facts: IdVec<BufferId, Facts> = roots.iter().map(|_| Facts::default()).collect();
        for (id, task) in graph.tasks.iter() {
            for &read in &task.reads {
                let facts = &mut facts[roots[read.index()]];
                match id < backward {
                    true => facts.last_forward_reader = Some(id),
                    false => facts.read_backward = true,
                }
            }
            for &write in &task.writes {
                let facts = &mut facts[roots[write.index()]];
                facts.writers += 1;
                facts.first_writer.get_or_insert(id);
            }
        }
        Some(Uses { graph, backward, roots, facts })
    }

    /// The buffer that owns the bytes of `buffer`.
    pub fn root(&self, buffer: BufferId) -> BufferId {
        self.roots[buffer.index()]
    }

    /// The buffers that own what a task writes.
    pub fn results(&self, task: TaskId) -> impl Iterator<Item = BufferId> + '_ {
        self.graph.tasks[task].writes.iter().map(|&write| self.root(write))
    }

    /// The buffers that own what a task reads.
    pub fn operands(&self, task: TaskId) -> impl Iterator<Item = BufferId> + '_ {
        self.graph.tasks[task].reads.iter().map(|&read| self.root(read))
    }

    /// The only task that writes a temporary; none if there are several, or if the buffer is no temporary.
    pub fn producer(&self, root: BufferId) -> Option<TaskId> {
        let Facts { writers, first_writer, .. } = self.facts[root];
        let is_plain = writers == 1 && self.graph.buffers[root].role == Role::Temp;
        first_writer.filter(|_| is_plain)
    }

    /// The first task that writes a buffer.
    pub fn first_writer(&self, root: BufferId) -> Option<TaskId> {
        self.facts[root].first_writer
    }

    /// The last task of the forward pass that reads a buffer.
    pub fn last_forward_reader(&self, root: BufferId) -> Option<TaskId> {
        self.facts[root].last_forward_reader
    }

    /// Whether the backward pass reads a buffer.
    pub fn is_read_backward(&self, root: BufferId) -> bool {
        self.facts[root].read_backward
    }

    /// Whether a task of the forward pass only computes: a second run of it on the same operands gives the same.
    pub fn is_repeatable(&self, id: TaskId) -> bool {
        let task = &self.graph.tasks[id];
        let moves = matches!(task.op, TaskOp::Send { .. } | TaskOp::Receive { .. } | TaskOp::Move { .. });
        let in_place = (0..task.writes.len()).any(|slot| task.op.reads_write(slot));
        id < self.backward
            && !(moves || in_place || task.reads.is_empty() || task.writes.is_empty())
            && self.results(id).all(|root| self.producer(root).is_some())
    }

    /// The tasks that can run again, in order.
    pub fn repeatable(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.graph.tasks.ids().take(self.backward.index()).filter(|&id| self.is_repeatable(id))
    }

    /// Bytes of the arena that a buffer takes.
    pub fn bytes(&self, root: BufferId) -> u64 {
        (self.graph.buffers[root].ty.bytes() as u64).next_multiple_of(crate::ALIGNMENT)
    }
}
