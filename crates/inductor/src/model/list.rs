//! A list of all nodes in which one can be moved to another place at once.

use phalanx_ir::IdVec;

use super::NodeId;

/// Every node once, linked to its neighbors.
#[derive(Clone, Debug)]
pub(super) struct List {
    first: Option<NodeId>,
    links: IdVec<NodeId, Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: Option<NodeId>,
    after: Option<NodeId>,
}

impl List {
    /// The nodes of `order`, which holds each node once.
    pub fn new(order: &[NodeId]) -> List {
        let unlinked = Link { before: None, after: None };
        let mut links: IdVec<NodeId, Link> = order.iter().map(|_| unlinked).collect();
        for pair in order.windows(2) {
            links[pair[0]].after = Some(pair[1]);
            links[pair[1]].before = Some(pair[0]);
        }
        List { first: order.first().copied(), links }
    }

    /// The neighbor before `node`.
    pub fn before(&self, node: NodeId) -> Option<NodeId> {
        self.links[node].before
    }

    /// The neighbor after `node`.
    pub fn after(&self, node: NodeId) -> Option<NodeId> {
        self.links[node].after
    }

    /// All nodes after `node`, the nearest first.
    pub fn all_after(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.after(node), |&node| self.after(node))
    }

    /// All nodes before `node`, the nearest first.
    pub fn all_before(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.before(node), |&node| self.before(node))
    }

    /// Moves `node` to the place right after `other`.
    pub fn move_after(&mut self, node: NodeId, other: NodeId) {
        self.unlink(node);
        let after = self.links[other].after;
        self.links[node] = Link { before: Some(other), after };
        self.links[other].after = Some(node);
        if let Some(after) = after {
            self.links[after].before = Some(node);
        }
    }

    /// Moves `node` to the place right before `other`.
    pub fn move_before(&mut self, node: NodeId, other: NodeId) {
        self.unlink(node);
        let before = self.links[other].before;
        self.links[node] = Link { before, after: Some(other) };
        self.links[other].before = Some(node);
        match before {
            Some(before) => self.links[before].after = Some(node),
            None => self.first = Some(node),
        }
    }

    /// The nodes in their order.
    pub fn order(&self) -> Vec<NodeId> {
        let mut order = Vec::with_capacity(self.links.len());
        order.extend(std::iter::successors(self.first, |&node| self.after(node)));
        order
    }

    fn unlink(&mut self, node: NodeId) {
        let Link { before, after } = self.links[node];
        match before {
            Some(before) => self.links[before].after = after,
            None => self.first = after,
        }
        if let Some(after) = after {
            self.links[after].before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_ir::Id;

    use super::*;

    #[test]
    fn nodes_move_to_either_end_and_between() {
        let node = NodeId::from_index;
        let mut list = List::new(&[node(0), node(1), node(2)]);
        let order = |list: &List| list.order().iter().map(|node| node.index()).collect::<Vec<_>>();
        list.move_after(node(0), node(2));
        assert_eq!(order(&list), [1, 2, 0]);
        list.move_before(node(0), node(1));
        assert_eq!(order(&list), [0, 1, 2]);
        list.move_after(node(0), node(1));
        assert_eq!(order(&list), [1, 0, 2]);
        assert_eq!(list.all_before(node(2)).collect::<Vec<_>>(), [node(0), node(1)]);
        assert_eq!(list.all_after(node(1)).collect::<Vec<_>>(), [node(0), node(2)]);
    }
}
