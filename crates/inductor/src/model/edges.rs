//! Which node comes before which: by a buffer that it depends on, or by order alone.

use phalanx_ir::Id;

use super::{LaunchGraph, NodeId};

/// A list of things for every node, laid out in one array.
pub(super) struct Lists<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Lists<T> {
    /// The lists of `nodes` nodes, from pairs that `pairs` gives twice in the same order.
    pub fn collect<I: Iterator<Item = (NodeId, T)>>(nodes: usize, pairs: impl Fn() -> I) -> Lists<T> {
        let mut starts = vec![0; nodes + 1];
        pairs().for_each(|(node, _)| starts[node.index() + 1] += 1);
        for at in 0..nodes {
            starts[at + 1] += starts[at];
        }
        let mut ends = starts.clone();
        let mut items: Vec<T> = pairs().map(|(_, item)| item).collect();
        for (node, item) in pairs() {
            let end = &mut ends[node.index()];
            items[*end as usize] = item;
            *end += 1;
        }
        Lists { starts, items }
    }

    /// The list of `node`.
    pub fn of(&self, node: NodeId) -> &[T] {
        let at = node.index();
        &self.items[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// The order that any schedule must keep, each pair of nodes once.
pub(super) struct Edges {
    /// The nodes that must come before, ascending.
    pub before: Lists<NodeId>,
    /// The nodes that must come after, ascending.
    pub after: Lists<NodeId>,
}

impl Edges {
    /// The edges of a graph, those by order alone included.
    pub fn new(graph: &LaunchGraph) -> Edges {
        let mut pairs: Vec<(NodeId, NodeId)> = Vec::new();
        for (id, node) in graph.nodes.iter() {
            let first = pairs.len();
            let definers = node.deps.iter().chain(&node.fakes).filter_map(|&buf| graph.bufs[buf].definer);
            pairs.extend(definers.map(|definer| (id, definer)));
            pairs[first..].sort_unstable();
        }
        pairs.dedup();
        let nodes = graph.nodes.len();
        Edges {
            before: Lists::collect(nodes, || pairs.iter().copied()),
            after: Lists::collect(nodes, || pairs.iter().map(|&(node, before)| (before, node))),
        }
    }

    /// By node, how many nodes must come before it.
    pub fn unmet(&self, graph: &LaunchGraph) -> Vec<usize> {
        graph.nodes.ids().map(|node| self.before.of(node).len()).collect()
    }
}
