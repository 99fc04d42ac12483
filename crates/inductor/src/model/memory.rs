//! Bytes alive at every step of an order, computed from scratch.

use phalanx_ir::{Id, IdVec};

use super::{BufId, LaunchGraph, NodeId};

/// Bytes alive around one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryStep {
    /// While it runs: its inputs and its outputs.
    pub post_alloc: i64,
    /// After what it used last is released.
    pub post_free: i64,
}

/// The memory of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListMemory {
    /// The most bytes alive at once.
    pub peak: i64,
    /// Bytes that are there before the first node.
    pub start: i64,
    /// By position.
    pub steps: Vec<MemoryStep>,
    /// By node: bytes it adds and bytes released after it.
    pub flow: IdVec<NodeId, (i64, i64)>,
    /// By buffer: the node after which it is released, if it is.
    pub last_users: IdVec<BufId, Option<NodeId>>,
}

impl LaunchGraph {
    /// Lets storage outlive the list if any name of it does.
    ///
    /// D19: the reference looks at the first name only, and releases an output that is given by a later one. (D18, sizes
    /// of inputs that depend on their last reader, cannot happen here: inputs have sizes of their own.)
    pub fn resolve_outputs(&mut self) {
        let outputs: Vec<BufId> =
            self.bufs.iter().filter(|(_, buf)| buf.is_output).map(|(id, _)| id).collect();
        for output in outputs {
            let mut name = self.bufs[output].renames;
            while let Some(buf) = name {
                self.bufs[buf].is_output = true;
                name = self.bufs[buf].renames;
            }
        }
    }

    /// The memory of `order`. Inputs are there before its first node.
    pub fn memory(&self, order: &[NodeId]) -> ListMemory {
        let mut at = vec![0; self.nodes.len()];
        for (position, node) in order.iter().enumerate() {
            at[node.index()] = position;
        }
        let mut flow: IdVec<NodeId, (i64, i64)> = self.nodes.ids().map(|_| (0, 0)).collect();
        let mut last_users: IdVec<BufId, Option<NodeId>> = self.bufs.ids().map(|_| None).collect();
        let mut start = 0;
        for (id, buf) in self.bufs.iter() {
            match buf.definer {
                Some(definer) => flow[definer].0 += buf.alloc as i64,
                None if buf.users.is_empty() => continue,
                None => start += buf.alloc as i64,
            }
            if buf.is_output {
                continue;
            }
            let last = buf.users.iter().copied().max_by_key(|user| at[user.index()]).or(buf.definer);
            last_users[id] = last;
            if let Some(last) = last {
                flow[last].1 += buf.free as i64;
            }
        }
        let mut memory =
            ListMemory { peak: start, start, steps: Vec::with_capacity(order.len()), flow, last_users };
        let mut live = start;
        for &node in order {
            let (alloc, free) = memory.flow[node];
            let post_alloc = live + alloc;
            live = post_alloc - free;
            memory.peak = memory.peak.max(post_alloc);
            memory.steps.push(MemoryStep { post_alloc, post_free: live });
        }
        memory
    }
}
