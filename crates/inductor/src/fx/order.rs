//! The constraints that keep collectives hidden in later passes, and whether the schedule meets them.

use phalanx_ir::IdVec;

use super::graph::{FxNodeId, Graph};
use super::schedule::Schedule;

/// For every node what must come before it so that fully hidden collectives stay hidden: the start before each hiding
/// node, each hiding node before the wait.
pub(super) fn hiding_edges(graph: &Graph, schedule: &Schedule) -> IdVec<FxNodeId, Vec<FxNodeId>> {
    let mut before: IdVec<FxNodeId, Vec<FxNodeId>> = graph.roles.ids().map(|_| Vec::new()).collect();
    let hidden = schedule.overlaps.iter().filter(|(_, overlap)| !overlap.is_exposed());
    for (id, overlap) in hidden {
        let collective = &graph.collectives[id];
        for &hiding in &overlap.hiding {
            before[hiding].push(collective.start);
            before[collective.wait].push(hiding);
        }
    }
    before
}

/// Whether a schedule meets its own constraints.
///
/// The reference sorts the schedule stably under these and under a chain of each group's starts, waits and hiding nodes
/// in scheduled order. If all constraints agree with the schedule, so does the sort; one that does not closes a cycle
/// with the chain, because both its ends are on it.
pub(super) fn is_consistent(graph: &Graph, schedule: &Schedule) -> bool {
    let before = hiding_edges(graph, schedule);
    let mut seen: IdVec<FxNodeId, bool> = before.ids().map(|_| false).collect();
    schedule.order.iter().all(|&node| {
        seen[node] = true;
        before[node].iter().all(|&earlier| seen[earlier])
    })
}
