//! What it saves to compute a tensor again, and what it takes.

use std::collections::HashSet;

use phalanx_ir::IdVec;
use phalanx_ir::tasks::{BufferId, TaskId};

use super::RecomputeCandidate;
use super::twins::Twins;
use super::uses::Uses;

/// The effect of computing one candidate again, if the other chosen ones are.
pub(super) struct Gain {
    /// Bytes that need not be kept, less those that must be kept instead for the tasks to run again.
    pub saved: i64,
    /// The candidate's tasks, and those before them whose results only they read in the backward pass.
    pub tasks: Vec<TaskId>,
}

/// Finds gains among chosen tasks.
pub(super) struct Gains<'a> {
    uses: &'a Uses<'a>,
    twins: Twins,
    chosen: IdVec<TaskId, bool>,
}

impl<'a> Gains<'a> {
    pub fn new<'c>(uses: &'a Uses<'a>, chosen: impl IntoIterator<Item = &'c RecomputeCandidate>) -> Self {
        let mut flags: IdVec<TaskId, bool> = uses.graph.tasks.ids().map(|_| false).collect();
        for candidate in chosen {
            candidate.tasks.iter().for_each(|&task| flags[task] = true);
        }
        Gains { uses, twins: Twins::of(uses), chosen: flags }
    }

    pub fn of(&self, candidate: &RecomputeCandidate) -> Gain {
        let mut open = candidate.tasks.clone();
        let mut seen: HashSet<TaskId> = open.iter().copied().collect();
        let mut kept: HashSet<BufferId> = HashSet::new();
        let mut gain = Gain { saved: candidate.bytes as i64, tasks: Vec::new() };
        while let Some(task) = open.pop() {
            gain.tasks.push(task);
            for root in self.uses.operands(task) {
                if self.is_there(root, task) {
                    continue;
                }
                match self.uses.producer(root).filter(|&producer| self.chosen[producer]) {
                    Some(producer) if seen.insert(producer) => open.push(producer),
                    Some(_) => {}
                    None if kept.insert(root) => gain.saved -= self.uses.bytes(root) as i64,
                    None => {}
                }
            }
        }
        gain
    }

    /// Whether the backward pass has a tensor anyway, whether kept or computed again by a decision of its own.
    fn is_there(&self, root: BufferId, reader: TaskId) -> bool {
        let microbatch = self.uses.graph.tasks[reader].microbatch;
        self.uses.graph.buffers[root].role.is_kept()
            || self.uses.is_read_backward(root)
            || self.twins.find(self.uses, root, microbatch).is_some()
    }
}
