//! Orders by breadth and by depth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::Id;

use crate::model::edges::Edges;
use crate::model::{LaunchGraph, NodeId};

/// Of all ready nodes the one comes next whose predecessors ran first: their places in the new order, ascending, are
/// compared one by one; `order` decides among equals.
pub fn breadth_first(graph: &LaunchGraph, order: &[NodeId]) -> Vec<NodeId> {
    let edges = Edges::new(graph);
    let positions = positions(graph, order);
    let mut unmet = edges.unmet(graph);
    let mut places = vec![0; graph.nodes.len()];
    let sources = graph.nodes.ids().filter(|node| unmet[node.index()] == 0);
    let mut ready: BinaryHeap<_> =
        sources.map(|node| Reverse((Vec::new(), positions[node.index()], node))).collect();
    let mut done = Vec::with_capacity(order.len());
    while let Some(Reverse((_, _, node))) = ready.pop() {
        places[node.index()] = done.len();
        done.push(node);
        for &user in edges.after.of(node) {
            unmet[user.index()] -= 1;
            if unmet[user.index()] == 0 {
                let mut before: Vec<usize> =
                    edges.before.of(user).iter().map(|node| places[node.index()]).collect();
                before.sort_unstable();
                ready.push(Reverse((before, positions[user.index()], user)));
            }
        }
    }
    done
}

/// Visits nodes by ascending weight, each behind what it depends on, visited by weight too. A node's weight is what it
/// adds and what it uses, in bytes; `order` decides among equals.
pub fn depth_first(graph: &LaunchGraph, order: &[NodeId]) -> Vec<NodeId> {
    let edges = Edges::new(graph);
    let positions = positions(graph, order);
    let uses = graph.uses();
    let weight = |node: NodeId| {
        let used: i64 = uses.of(node).iter().map(|&buf| graph.bufs[buf].free as i64).sum();
        (graph.added(node) + used, positions[node.index()])
    };
    let weights: Vec<_> = graph.nodes.ids().map(weight).collect();
    let by_weight = |nodes: &[NodeId]| {
        let mut nodes = nodes.to_vec();
        // The lightest is last, where the stack takes it first.
        nodes.sort_unstable_by_key(|node| Reverse(weights[node.index()]));
        nodes
    };
    let mut seen = vec![false; graph.nodes.len()];
    let mut done = Vec::with_capacity(order.len());
    // Every entry is a node, none for the whole list, and what is to be visited before it.
    let mut stack: Vec<(Option<NodeId>, Vec<NodeId>)> = vec![(None, by_weight(order))];
    while let Some((node, before)) = stack.last_mut() {
        match before.pop() {
            Some(next) if seen[next.index()] => {}
            Some(next) => {
                seen[next.index()] = true;
                stack.push((Some(next), by_weight(edges.before.of(next))));
            }
            None => {
                done.extend(*node);
                stack.pop();
            }
        }
    }
    done
}

fn positions(graph: &LaunchGraph, order: &[NodeId]) -> Vec<usize> {
    let mut positions = vec![0; graph.nodes.len()];
    order.iter().enumerate().for_each(|(position, node)| positions[node.index()] = position);
    positions
}
