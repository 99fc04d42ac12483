//! What must come before what while collectives are being merged.
//!
//! Reads, the constraints of hidden collectives and the chains of the timelines are edges; merged nodes share all their
//! edges. Only chains change, when an event leaves or rejoins its timeline.

use phalanx_ir::IdVec;

use crate::fx::bits::NodeSet;
use crate::fx::graph::{FxNodeId, Graph};
use crate::mode::PassMode;

/// Edges and merged nodes.
pub(super) struct Precedence<'a> {
    reads: &'a IdVec<FxNodeId, Vec<FxNodeId>>,
    /// Edges that never change.
    fixed: IdVec<FxNodeId, Vec<FxNodeId>>,
    /// Edges that come and go.
    chain: IdVec<FxNodeId, Vec<FxNodeId>>,
    /// The nodes merged with the node that opened a bucket, itself included.
    members: IdVec<FxNodeId, Vec<FxNodeId>>,
    opener: IdVec<FxNodeId, FxNodeId>,
}

impl<'a> Precedence<'a> {
    pub(super) fn new(graph: &'a Graph, before: IdVec<FxNodeId, Vec<FxNodeId>>, mode: PassMode) -> Self {
        let none = || graph.roles.ids().map(|_| Vec::new()).collect();
        // Defect E2, one half: the reference keeps all extra edges in one set, so that an event which leaves its chain
        // takes along an equal constraint of a hidden collective. The repaired mode keeps these apart.
        let (fixed, chain) = match mode {
            PassMode::Reference | PassMode::Newer => (none(), before),
            PassMode::Fixed => (before, none()),
        };
        let members = graph.roles.ids().map(|node| vec![node]).collect();
        Precedence { reads: &graph.reads, fixed, chain, members, opener: graph.roles.ids().collect() }
    }

    /// Adds a chain edge; the same edge is there at most once.
    pub(super) fn add(&mut self, node: FxNodeId, earlier: FxNodeId) {
        if !self.chain[node].contains(&earlier) {
            self.chain[node].push(earlier);
        }
    }

    pub(super) fn remove(&mut self, node: FxNodeId, earlier: FxNodeId) {
        self.chain[node].retain(|&other| other != earlier);
    }

    /// Makes `node`, which is alone, one with `opener`.
    pub(super) fn merge(&mut self, opener: FxNodeId, node: FxNodeId) {
        self.members[opener].push(node);
        self.opener[node] = opener;
    }

    /// Undoes the last merge.
    pub(super) fn split(&mut self, opener: FxNodeId, node: FxNodeId) {
        self.members[opener].retain(|&other| other != node);
        self.opener[node] = node;
    }

    /// Whether one of two unmerged nodes must come before the other.
    pub(super) fn ordered(
        &self,
        ancestors: &IdVec<FxNodeId, NodeSet>,
        one: FxNodeId,
        other: FxNodeId,
    ) -> bool {
        self.has_path(ancestors, one, other) || self.has_path(ancestors, other, one)
    }

    /// Whether edges lead from `source` to `target`: a search backward from `target` that does not enter what lies
    /// before `source`.
    fn has_path(&self, ancestors: &IdVec<FxNodeId, NodeSet>, source: FxNodeId, target: FxNodeId) -> bool {
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

    fn merged(&self, node: FxNodeId) -> &[FxNodeId] {
        &self.members[self.opener[node]]
    }
}
