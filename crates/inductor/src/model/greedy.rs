//! Greedy list scheduling: start collectives early, wait late, compute in between.
//!
//! The three passes are one routine with three switches. Of all nodes whose dependencies are met, those by order alone
//! included, the one with the smallest [`Score`] comes next. Results are valid orders of the same nodes; memory is not
//! looked at. Every pass takes an order, a permutation of the graph's nodes, which decides among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::{Id, IdVec};

use super::edges::Edges;
use super::{BufId, LaunchGraph, LaunchKind, LeafId, NodeId};
use crate::mode::PassMode;

/// Puts waits as late as possible.
pub fn sink_waits(graph: &LaunchGraph, order: &[NodeId], mode: PassMode) -> Vec<NodeId> {
    schedule(graph, order, mode, Goals { raises: false, sinks: true, overlaps: false })
}

/// Puts collectives, and what they need, as early as possible.
pub fn raise_comms(graph: &LaunchGraph, order: &[NodeId], mode: PassMode) -> Vec<NodeId> {
    schedule(graph, order, mode, Goals { raises: true, sinks: false, overlaps: false })
}

/// Does both, and puts compute behind every collective until its time is filled.
pub fn reorder_compute_for_overlap(graph: &LaunchGraph, order: &[NodeId], mode: PassMode) -> Vec<NodeId> {
    schedule(graph, order, mode, Goals { raises: true, sinks: true, overlaps: true })
}

#[derive(Clone, Copy)]
struct Goals {
    raises: bool,
    sinks: bool,
    overlaps: bool,
}

/// What comes first among ready nodes: the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Which collective, counted in the given order, is the first that the node is or leads to.
    collective: u32,
    /// Whether it waits.
    waits: bool,
    /// Its place in the given order, which no other node has.
    position: u32,
}

const NONE: u32 = u32::MAX;

fn schedule(graph: &LaunchGraph, order: &[NodeId], mode: PassMode, goals: Goals) -> Vec<NodeId> {
    let edges = Edges::new(graph);
    let mut scheduler = Scheduler {
        graph,
        order,
        mode,
        scores: scores(graph, order, goals),
        unmet: edges.unmet(graph),
        edges,
        fillers: BinaryHeap::new(),
        others: BinaryHeap::new(),
        done: Vec::with_capacity(order.len()),
    };
    for node in graph.nodes.ids().filter(|node| scheduler.unmet[node.index()] == 0).collect::<Vec<_>>() {
        scheduler.make_ready(node);
    }
    while let Some(node) = scheduler.pop() {
        scheduler.run(node);
        if goals.overlaps && scheduler.is_hideable(node) {
            scheduler.fill(graph.nodes[node].cost);
        }
    }
    scheduler.done
}

fn scores(graph: &LaunchGraph, order: &[NodeId], goals: Goals) -> IdVec<NodeId, Score> {
    let mut scores: IdVec<NodeId, Score> =
        graph.nodes.ids().map(|_| Score { collective: NONE, waits: false, position: 0 }).collect();
    if goals.raises {
        mark_ancestors(graph, order, &mut scores);
    }
    for (position, &node) in order.iter().enumerate() {
        scores[node].position = position as u32;
        let is_raised = goals.raises && graph.contains_collective(node);
        scores[node].waits = goals.sinks && !is_raised && graph.contains_wait(node);
    }
    scores
}

/// Numbers the collectives of `order` and gives each number to what the collective needs and no earlier one does.
///
/// A group needs what its members need, but a node that needs one member does not need what the others need: the walk is over
/// members. It visits each once, since whatever an earlier collective has reached has its number for good.
fn mark_ancestors(graph: &LaunchGraph, order: &[NodeId], scores: &mut IdVec<NodeId, Score>) {
    let mut definers: IdVec<BufId, Option<LeafId>> = graph.bufs.ids().map(|_| None).collect();
    for (id, leaf) in graph.leaves.iter() {
        leaf.outputs.iter().for_each(|&buf| definers[buf] = Some(id));
    }
    let mut seen = vec![false; graph.leaves.len()];
    let mut stack: Vec<LeafId> = Vec::new();
    let collectives = order.iter().filter(|&&node| graph.contains_collective(node));
    for (number, &node) in collectives.enumerate() {
        let number = number as u32;
        scores[node].collective = number;
        stack.extend(graph.nodes[node].leaves.clone().map(LeafId::from_index));
        while let Some(leaf) = stack.pop() {
            let leaf = &graph.leaves[leaf];
            for definer in leaf.deps.iter().chain(&leaf.fakes).filter_map(|&buf| definers[buf]) {
                if std::mem::replace(&mut seen[definer.index()], true) {
                    continue;
                }
                let score = &mut scores[graph.leaves[definer].node];
                score.collective = score.collective.min(number);
                stack.push(definer);
            }
        }
    }
}

struct Scheduler<'a> {
    graph: &'a LaunchGraph,
    order: &'a [NodeId],
    mode: PassMode,
    scores: IdVec<NodeId, Score>,
    edges: Edges,
    /// By node, how many that must come before it are not done.
    unmet: Vec<usize>,
    /// Ready nodes that can fill the time of a collective.
    fillers: BinaryHeap<Reverse<Score>>,
    /// All other ready nodes.
    others: BinaryHeap<Reverse<Score>>,
    done: Vec<NodeId>,
}

impl Scheduler<'_> {
    fn make_ready(&mut self, node: NodeId) {
        let score = Reverse(self.scores[node]);
        if self.is_filler(node) { self.fillers.push(score) } else { self.others.push(score) }
    }

    /// Whether the node computes and nothing else. D24: compute without cost fills no time, yet the reference takes it
    /// as long as there is some.
    fn is_filler(&self, node: NodeId) -> bool {
        let fills = self.mode != PassMode::Fixed || self.graph.nodes[node].cost > 0.0;
        fills && !self.graph.contains_collective(node) && !self.graph.contains_wait(node)
    }

    /// Whether compute behind the node can run beside it. D8: the reference takes every collective for one that goes on
    /// beside compute, blocking ones too.
    fn is_hideable(&self, node: NodeId) -> bool {
        match self.mode {
            PassMode::Fixed => self.graph.members(node).any(|leaf| leaf.kind == LaunchKind::Collective),
            PassMode::Reference | PassMode::Newer => self.graph.contains_collective(node),
        }
    }

    fn pop(&mut self) -> Option<NodeId> {
        // `Reverse` turns the order: the greater one is the smaller score, and nothing is smaller than both.
        let heap =
            if self.fillers.peek() > self.others.peek() { &mut self.fillers } else { &mut self.others };
        heap.pop().map(|Reverse(score)| self.order[score.position as usize])
    }

    fn run(&mut self, node: NodeId) {
        self.done.push(node);
        for at in 0..self.edges.after.of(node).len() {
            let user = self.edges.after.of(node)[at];
            self.unmet[user.index()] -= 1;
            if self.unmet[user.index()] == 0 {
                self.make_ready(user);
            }
        }
    }

    /// Runs compute that is ready, or gets so meanwhile, until `time` is over.
    fn fill(&mut self, mut time: f64) {
        while time > 0.0
            && let Some(Reverse(score)) = self.fillers.pop()
        {
            let node = self.order[score.position as usize];
            time -= self.graph.nodes[node].cost;
            self.run(node);
        }
    }
}
