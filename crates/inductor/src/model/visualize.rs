//! Which compute a collective hides, step by step.

use super::simulate::Streams;
use super::{LaunchGraph, LaunchKind, NodeId};
use crate::mode::PassMode;

/// An order's time and what is hidden in it.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnOverlap {
    /// How long the order takes, in nanoseconds.
    pub runtime: f64,
    /// Positions of compute that runs beside a collective.
    pub hidden: Vec<usize>,
}

/// Estimates which compute of `order` is hidden.
///
/// D23: the reference adds up every collective and all compute that is not between a collective and the next wait, of
/// whatever collective; that is no schedule's length. Repaired, both are those of [`LaunchGraph::simulate`].
pub fn visualize_overlap(graph: &LaunchGraph, order: &[NodeId], mode: PassMode) -> DrawnOverlap {
    match mode {
        PassMode::Reference | PassMode::Newer => draw(graph, order),
        PassMode::Fixed => simulate(graph, order),
    }
}

fn simulate(graph: &LaunchGraph, order: &[NodeId]) -> DrawnOverlap {
    let mut streams = Streams::new(graph);
    let mut hidden = Vec::new();
    for (position, &node) in order.iter().enumerate() {
        // All members run, whether or not one before them is hidden.
        let members = graph.members(node).filter(|leaf| streams.run(leaf)).count();
        if members > 0 {
            hidden.push(position);
        }
    }
    DrawnOverlap { runtime: streams.end(), hidden }
}

fn draw(graph: &LaunchGraph, order: &[NodeId]) -> DrawnOverlap {
    let mut overlap = DrawnOverlap { runtime: 0.0, hidden: Vec::new() };
    let mut is_running = false;
    for (position, &id) in order.iter().enumerate() {
        let node = &graph.nodes[id];
        // Only a node itself is a wait, and only one itself is seen as a running collective: groups are neither.
        let waits = !node.is_group && graph.members(id).any(|leaf| leaf.kind == LaunchKind::Wait);
        if graph.contains_collective(id) {
            overlap.runtime += node.cost;
            is_running = !node.is_group;
        } else if waits {
            is_running = false;
        } else if is_running {
            overlap.hidden.push(position);
        } else {
            overlap.runtime += node.cost;
        }
    }
    overlap
}
