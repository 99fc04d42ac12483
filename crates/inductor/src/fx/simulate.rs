//! How long an order takes, apart from what the scheduler believes.
//!
//! The device computes in order; every process group sends in order and beside it. A collective starts when both the
//! device has reached it and its group is free; a node that reads its value waits for its end.

use std::collections::BTreeMap;

use phalanx_ir::IdVec;

use super::case::{FxCase, FxKind};
use super::graph::{FxNodeId, Graph};

/// Nanoseconds of a simulated order.
pub(super) struct Times {
    /// Until device and groups are done.
    pub(super) makespan: f64,
    /// Of which the device neither computes nor runs waits.
    pub(super) exposed: f64,
}

/// Runs `order`, which respects all reads.
pub(super) fn simulate(case: &FxCase, graph: &Graph, order: impl IntoIterator<Item = FxNodeId>) -> Times {
    let mut groups = BTreeMap::new();
    let mut ready: IdVec<FxNodeId, f64> = graph.roles.ids().map(|_| 0.0).collect();
    let (mut device, mut busy) = (0.0f64, 0.0);
    for id in order {
        let Some(node) = graph.case_index(id).map(|index| &case.nodes[index]) else { continue };
        if node.kind == FxKind::Collective {
            let group = groups.entry(node.pg).or_insert(0.0f64);
            *group = group.max(device) + node.runtime_ns;
            ready[id] = *group;
        } else {
            let reads = graph.reads[id].iter().map(|&value| ready[value]);
            device = reads.fold(device, f64::max) + node.runtime_ns;
            busy += node.runtime_ns;
        }
    }
    let makespan = groups.into_values().fold(device, f64::max);
    Times { makespan, exposed: makespan - busy }
}
