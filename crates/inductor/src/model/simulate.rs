//! How long an order takes: two streams, one that computes and one that communicates, each in the order of the list.

use phalanx_ir::Id;

use super::{LaunchGraph, LaunchKind, Leaf, NodeId};

/// What an order takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// Until both streams are done.
    pub makespan: f64,
    /// How much of it nothing is computed.
    pub exposed: f64,
}

impl LaunchGraph {
    /// Simulates `order`. A collective starts when both streams have come to it; a node that computes or waits starts
    /// when what it reads is there.
    pub fn simulate(&self, order: &[NodeId]) -> Simulated {
        let mut streams = Streams::new(self);
        let mut busy = 0.0;
        for leaf in order.iter().flat_map(|&node| self.members(node)) {
            streams.run(leaf);
            if !leaf.kind.is_collective() {
                busy += leaf.cost;
            }
        }
        let makespan = streams.end();
        Simulated { makespan, exposed: makespan - busy }
    }
}

/// The clocks of both streams.
pub(super) struct Streams {
    compute: f64,
    communication: f64,
    /// When each buffer is there.
    ready: Vec<f64>,
}

impl Streams {
    pub fn new(graph: &LaunchGraph) -> Streams {
        Streams { compute: 0.0, communication: 0.0, ready: vec![0.0; graph.bufs.len()] }
    }

    /// Runs a leaf; whether it is compute that starts while a collective runs.
    pub fn run(&mut self, leaf: &Leaf) -> bool {
        let start = match leaf.kind {
            LaunchKind::Collective | LaunchKind::SyncCollective => self.compute.max(self.communication),
            LaunchKind::Compute | LaunchKind::Wait => {
                leaf.deps.iter().map(|buf| self.ready[buf.index()]).fold(self.compute, f64::max)
            }
        };
        // From when one is launched until the stream's end, collectives follow each other without a gap.
        let is_hidden = leaf.kind == LaunchKind::Compute && start < self.communication;
        let end = start + leaf.cost;
        leaf.outputs.iter().for_each(|buf| self.ready[buf.index()] = end);
        if leaf.kind.is_collective() {
            self.communication = end;
        }
        if leaf.kind != LaunchKind::Collective {
            self.compute = end;
        }
        is_hidden
    }

    /// When both streams are done.
    pub fn end(&self) -> f64 {
        self.compute.max(self.communication)
    }
}
