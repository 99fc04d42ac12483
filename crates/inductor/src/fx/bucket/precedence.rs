//! What must come before what while collectives are being merged.
//!
//! Reads, the constraints of hidden collectives and the chains of the timelines are edges; merged nodes share all their
//! edges. Only chains change, when an event leaves or rejoins its timeline.

use phalanx_ir::IdVec;

use crate::fx::bits::NodeSet;
use crate::fx::graph::{Graph, NodeId};
use crate::mode::Mode;

/// Edges and merged nodes.
pub(super) struct Precedence<'a> {
    reads: &'a IdVec<NodeId, Vec<NodeId>>,
    /// Edges that never change.
    fixed: IdVec<NodeId, Vec<NodeId>>,
    /// Edges that come and go.
    chain: IdVec<NodeId, Vec<NodeId>>,
    /// The nodes merged with the node that opened a bucket, itself included.
    members: IdVec<NodeId, Vec<NodeId>>,
    opener: IdVec<NodeId, NodeId>,
}

impl<'a> Precedence<'a> {
    pub(super) fn new(graph: &'a Graph, before: IdVec<NodeId, Vec<NodeId>>, mode: Mode) -> Self {
        let none = || graph.roles.ids().map(|_| Vec::new()).collect();
        // Defect E2, one half: the reference keeps all extra edges in one set, so that an event which leaves its chain
        // takes along an equal constraint of a hidden collective. The repaired mode keeps these apart.
        let (fixed, chain) = match mode {
            Mode::Reference | Mode::Newer => (none(), before),
            Mode::Fixed => (before, none()),
        };
        let members = graph.roles.ids().map(|node| vec![node]).collect();
        Precedence { reads: &graph.reads, fixed, chain, members, opener: graph.roles.ids().collect() }
    }

    /// Adds a chain edge; the same edge is there at most once.
    pub(super) fn add(&mut self, node: NodeId, earlier: NodeId) {
        if !self.chain[node].contains(&earlier) {
            self.chain[node].push(earlier);
        }
    }

    pub(super) fn remove(&mut self, node: NodeId, earlier: NodeId) {
        self.chain[node].retain(|&other| other != earlier);
    }

    /// Makes `node`, which is alone, one with `opener`.
    pub(super) fn merge(&mut self, opener: NodeId, node: NodeId) {
        self.members[opener].push(node);
        self.opener[node] = opener;
    }

    /// Undoes the last merge.
    pub(super) fn split(&mut self, opener: NodeId, node: NodeId) {
        self.members[opener].retain(|&other| other != node);
        self.opener[node] = node;
    }

    /// Whether one of two unmerged nodes must come before the other.
    pub(super) fn ordered(&self, ancestors: &IdVec<NodeId, NodeSet>, one: NodeId, other: NodeId) -> bool {
        self.has_path(ancestors, one, other) || self.has_path(ancestors, other, one)
    }

    /// Whether edges lead from `source` to `target`: a search backward from `target` that does not enter what lies
    /// before `source`.
    fn has_path(&self, ancestors: &IdVec<NodeId, NodeSet>, source: NodeId, target: NodeId) -> bool {
        let mut seen = NodeSet::new(self.reads.len());
        for &member in self.merged(source) {
            seen.union(&ancestors[member]);
        }
        seen.insert(target);
        let mut stack = vec![target];
        while let Some(node) = stack.pop() {
            for &member in self.merged(node) {
                for &earlier in
                    self.reads[member].iter().chain(&self.fixed[member]).chain(&self.chain[member])
                {
                    if self.opener[earlier] == self.opener[source] {
                        return true;
                    }
                    if !seen.contains(earlier) {
                        seen.insert(earlier);
                        stack.push(earlier);
                    }
                }
            }
        }
        false
    }

    fn merged(&self, node: NodeId) -> &[NodeId] {
        &self.members[self.opener[node]]
    }
}
