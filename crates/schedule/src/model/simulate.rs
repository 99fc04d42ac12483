//! How long an order takes: two streams, one that computes and one that communicates, each in the order of the list.

use phalanx_ir::Id;

use super::{Graph, Kind, NodeId};

/// What an order takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// Until both streams are done.
    pub makespan: f64,
    /// How much of it nothing is computed.
    pub exposed: f64,
}

impl Graph {
    /// Simulates `order`. A collective starts when both streams have come to it; a node that computes or waits starts
    /// when what it reads is there.
    pub fn simulate(&self, order: &[NodeId]) -> Simulated {
        let mut ready = vec![0.0_f64; self.bufs.len()];
        let (mut compute, mut communication, mut busy) = (0.0_f64, 0.0_f64, 0.0_f64);
        for &node in order {
            for leaf in self.members(node) {
                if leaf.kind.is_collective() {
                    communication = compute.max(communication) + leaf.cost;
                    leaf.outputs.iter().for_each(|buf| ready[buf.index()] = communication);
                    if leaf.kind == Kind::SyncCollective {
                        compute = communication;
                    }
                } else {
                    let inputs = leaf.deps.iter().map(|buf| ready[buf.index()]);
                    compute = inputs.fold(compute, f64::max) + leaf.cost;
                    leaf.outputs.iter().for_each(|buf| ready[buf.index()] = compute);
                    busy += leaf.cost;
                }
            }
        }
        let makespan = compute.max(communication);
        Simulated { makespan, exposed: makespan - busy }
    }
}
