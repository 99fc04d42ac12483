//! The tensors that can be computed again, each with all its tiles on all devices and in all microbatches.

use std::collections::HashMap;

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};

use super::uses::Uses;

/// A tensor, with those computed by the same tasks: what one decision covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecomputeCandidate {
    /// The name of the first of them, without the microbatch.
    pub name: String,
    /// All results of the tasks.
    pub buffers: Vec<BufferId>,
    /// The tasks, one for each tile and microbatch.
    pub tasks: Vec<TaskId>,
    /// Bytes, on all devices together, that stay in memory until the backward pass reads them. It reads none of a tensor
    /// that only others need to be computed again.
    pub bytes: u64,
}

/// All tensors that can be computed again, in the order of their first tasks; none if nothing runs backward.
pub fn candidates(graph: &TaskGraph) -> Vec<RecomputeCandidate> {
    Uses::of(graph).map_or_else(Vec::new, |uses| of(&uses))
}

pub(super) fn of(uses: &Uses<'_>) -> Vec<RecomputeCandidate> {
    let mut all: Vec<RecomputeCandidate> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for task in uses.repeatable() {
        let name = name(uses, task);
        let at = *known.entry(name.clone()).or_insert(all.len());
        if at == all.len() {
            all.push(RecomputeCandidate { name, buffers: Vec::new(), tasks: Vec::new(), bytes: 0 });
        }
        let candidate = &mut all[at];
        candidate.tasks.push(task);
        candidate.buffers.extend(uses.results(task));
        let kept = uses.results(task).filter(|&root| uses.is_read_backward(root));
        candidate.bytes += kept.map(|root| uses.bytes(root)).sum::<u64>();
    }
    all
}

/// Microbatch m computes `name.mb<m>`.
fn name(uses: &Uses<'_>, task: TaskId) -> String {
    let task = &uses.graph.tasks[task];
    let name = &uses.graph.buffers[task.writes[0]].name;
    name.replacen(&format!(".mb{}", task.microbatch), "", 1)
}
