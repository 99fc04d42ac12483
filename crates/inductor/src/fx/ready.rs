//! The nodes whose reads have all run, and which of them is next.
//!
//! Nodes on the compute path are taken in the order of the compute node they block. Nodes off it wait until nothing
//! else is ready or a rule calls for them; their collectives gather by bucket key until they are worth a start.

use std::collections::BTreeMap;

use phalanx_ir::IdVec;

use super::bits::NodeSet;
use super::graph::{BucketKey, CollectiveId, FxNodeId, Graph, Role};
use super::heap::Heap;
use super::schedule::Overlap;
use crate::mode::PassMode;

/// The ready nodes.
pub(super) struct Ready {
    /// By blocked compute index, priority and original order.
    on_path: Heap<(usize, i8, FxNodeId)>,
    /// What leads to a reduce-scatter first, then by original order.
    off_path: Heap<(bool, FxNodeId)>,
    /// Bytes of all off-path collectives that ever became ready; those taken or started early still count.
    collected: BTreeMap<BucketKey, u64>,
    /// The furthest node that was taken from the compute path.
    furthest: Option<FxNodeId>,
}

/// What the choice depends on besides the ready nodes.
pub(super) struct Situation<'a> {
    pub(super) graph: &'a Graph,
    pub(super) mode: PassMode,
    /// How many bytes a batch off the path may have; none: there are no batches.
    pub(super) batch_bytes: Option<u64>,
    pub(super) above_allowed_peak: bool,
    pub(super) scheduled: &'a NodeSet,
    pub(super) overlaps: &'a IdVec<CollectiveId, Overlap>,
}

impl Ready {
    pub(super) fn new() -> Self {
        Ready { on_path: Heap::new(), off_path: Heap::new(), collected: BTreeMap::new(), furthest: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.on_path.is_empty() && self.off_path.is_empty()
    }

    /// Adds a node; the lowest `priority` comes first among nodes that block the same compute node.
    pub(super) fn push(&mut self, graph: &Graph, node: FxNodeId, priority: i8) {
        if let Some(index) = graph.blocks[node] {
            self.on_path.push((index, priority, node));
            return;
        }
        self.off_path.push((!graph.blocks_scatter[node], node));
        if let Some(collective) = graph.started(node).map(|id| &graph.collectives[id])
            && let Some(key) = collective.key()
        {
            *self.collected.entry(key).or_default() += collective.bytes;
        }
    }

    /// Takes what comes next: one node, or collectives to start one after the other. Some may be scheduled already.
    pub(super) fn take(&mut self, now: &Situation) -> Vec<FxNodeId> {
        if let Some(&(_, node)) = self.off_path.peek()
            && self.off_path_is_due(now, node)
        {
            self.off_path.pop();
            let mut nodes = vec![node];
            nodes.extend(self.take_batch(now, node));
            return nodes;
        }
        let Some((_, _, node)) = self.on_path.pop() else { return Vec::new() };
        if !now.scheduled.contains(node) {
            self.furthest = self.furthest.max(Some(node));
        }
        vec![node]
    }

    fn off_path_is_due(&self, now: &Situation, node: FxNodeId) -> bool {
        if self.on_path.is_empty() || now.scheduled.contains(node) {
            return true;
        }
        match (now.graph.roles[node], now.batch_bytes) {
            (Role::Wait(collective), _) => !now.overlaps[collective].is_exposed() || now.above_allowed_peak,
            (Role::Start(collective), Some(cap)) => {
                let key = now.graph.collectives[collective].key();
                key.is_some_and(|key| self.collected.get(&key).is_some_and(|&bytes| bytes >= cap))
            }
            _ => now.graph.blocks_scatter[node] && Some(node) <= self.furthest,
        }
    }

    /// Takes the ready collectives that fit into a batch with `first`, which counts even if it is scheduled already.
    fn take_batch(&mut self, now: &Situation, first: FxNodeId) -> Vec<FxNodeId> {
        let Some(cap) = now.batch_bytes else { return Vec::new() };
        let collective = |node| now.graph.started(node).map(|id| &now.graph.collectives[id]);
        let Some((key, mut bytes)) = collective(first).and_then(|c| Some((c.key()?, c.bytes))) else {
            return Vec::new();
        };
        let mut ready: Vec<FxNodeId> = self.off_path.entries().iter().map(|&(_, node)| node).collect();
        // Defect E7: the reference scans the heap's array, so that its layout decides what fits under the cap. The
        // repaired mode scans in the original order.
        if now.mode == PassMode::Fixed {
            ready.sort_unstable();
        }
        ready.retain(|&node| {
            let Some(more) = collective(node) else { return false };
            let fits = more.key() == Some(key) && !now.scheduled.contains(node) && bytes + more.bytes <= cap;
            bytes += if fits { more.bytes } else { 0 };
            fits
        });
        self.off_path.retain(|(_, node)| !ready.contains(node));
        ready
    }
}
