//! Overlap without times: collectives rise and waits sink as far as they may, one by one.
//!
//! Collectives that run beside others keep their order, and so do waits; the peak does not rise. A wait may pass a
//! collective and a collective a wait. Nothing is taken along.

use super::facts::Facts;
use super::iterative::{Tracked, Way};
use super::list::List;
use super::{LaunchGraph, NodeId};
use crate::mode::PassMode;

/// Moves collectives to the front and then waits to the back, as far as dependencies and the peak of `order` allow.
/// `order` holds every node of `graph` once, each after what it depends on.
pub fn simple_overlap(graph: &LaunchGraph, order: Vec<NodeId>, mode: PassMode) -> Vec<NodeId> {
    let facts = Facts::new(graph, &order, mode, true);
    let mut list = List::new(&order);
    let mut memory = Tracked::new(graph, &facts, &order, (Way::Up, 0.0));
    for &node in order.iter().filter(|&&node| facts.traits[node].is_async) {
        memory.join(node);
        while let Some(other) = list.before(node) {
            let is_needed = facts.fences.of(node).contains(&other);
            if is_needed || passes_collective(&facts, node, other) || memory.pass(other).is_err() {
                break;
            }
            list.move_after(other, node);
            memory.rejoin();
        }
        memory.settle();
    }
    memory.turn(Way::Down);
    for &node in order.iter().rev().filter(|&&node| facts.traits[node].has_wait) {
        memory.join(node);
        while let Some(other) = list.after(node) {
            let needs_it = facts.fences.of(other).contains(&node);
            if needs_it || passes_wait(&facts, node, other) || memory.pass(other).is_err() {
                break;
            }
            list.move_before(other, node);
            memory.rejoin();
        }
        memory.settle();
    }
    list.order()
}

fn passes_collective(facts: &Facts, node: NodeId, other: NodeId) -> bool {
    facts.traits[other].is_async || breaks_order(facts, node, other)
}

fn passes_wait(facts: &Facts, node: NodeId, other: NodeId) -> bool {
    facts.traits[other].has_wait || breaks_order(facts, node, other)
}

/// D14: in the reference a collective may pass one that blocks, and so may a group of wait and collective.
fn breaks_order(facts: &Facts, node: NodeId, other: NodeId) -> bool {
    facts.mode == PassMode::Fixed && facts.share_stream(node, other)
}
