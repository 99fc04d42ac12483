//! Sets of nodes as bits, one word for 64 nodes.

use phalanx_ir::Id;

use super::graph::FxNodeId;

/// A set of nodes.
#[derive(Clone)]
pub(super) struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    pub(super) fn new(n_nodes: usize) -> Self {
        NodeSet { words: vec![0; n_nodes.div_ceil(64)] }
    }

    pub(super) fn insert(&mut self, node: FxNodeId) {
        self.words[node.index() / 64] |= 1 << (node.index() % 64);
    }

    pub(super) fn contains(&self, node: FxNodeId) -> bool {
        self.words[node.index() / 64] >> (node.index() % 64) & 1 == 1
    }

    pub(super) fn union(&mut self, other: &NodeSet) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// The members that `other` lacks, in ascending order.
    pub(super) fn difference(&self, other: &NodeSet) -> Vec<FxNodeId> {
        let mut nodes = Vec::new();
        for (at, (word, without)) in self.words.iter().zip(&other.words).enumerate() {
            let mut left = word & !without;
            while left != 0 {
                nodes.push(FxNodeId::from_index(at * 64 + left.trailing_zeros() as usize));
                left &= left - 1;
            }
        }
        nodes
    }
}
