//! The order that lifts memory least, node by node.

use std::collections::BTreeSet;

use phalanx_ir::Id;

use crate::model::edges::{Edges, Lists};
use crate::model::{BufId, LaunchGraph, NodeId};

/// Of all ready nodes the one comes next that fits below the highest level so far; if none does, the smallest. Among
/// equals that one comes next which adds least beyond what it releases, then the first in `order`.
///
/// While every ready node is larger than a `threshold` above 0, the node comes next that has the first successor.
pub fn least_peak_first(graph: &LaunchGraph, order: &[NodeId], threshold: u64) -> Vec<NodeId> {
    let mut least = Least::new(graph, order, threshold as i64);
    let edges = Edges::new(graph);
    let mut unmet = edges.unmet(graph);
    for node in graph.nodes.ids().filter(|node| unmet[node.index()] == 0) {
        least.make_ready(node, &edges);
    }
    let mut done = Vec::with_capacity(order.len());
    while let Some(node) = least.next() {
        least.run(node, &edges);
        done.push(node);
        for &user in edges.after.of(node) {
            unmet[user.index()] -= 1;
            if unmet[user.index()] == 0 {
                least.make_ready(user, &edges);
            }
        }
    }
    done
}

struct Least<'a> {
    graph: &'a LaunchGraph,
    /// By node: its place in the given order, the bytes it adds, those that are released after it.
    positions: Vec<u32>,
    added: Vec<i64>,
    freed: Vec<i64>,
    uses: Lists<BufId>,
    /// By buffer, how many users are still to come; outliving the list is one more.
    users: Vec<usize>,
    is_done: Vec<bool>,
    /// Nodes by ascending bytes added, and each one's place there.
    by_size: Vec<NodeId>,
    ranks: Vec<usize>,
    ready: Smallest,
    threshold: i64,
    /// Ready nodes by the place of their first successor; empty unless there is a threshold.
    by_successor: BTreeSet<(u32, u32, NodeId)>,
    live: i64,
    top: i64,
}

impl<'a> Least<'a> {
    fn new(graph: &'a LaunchGraph, order: &[NodeId], threshold: i64) -> Self {
        let nodes = graph.nodes.len();
        let added: Vec<i64> = graph.nodes.ids().map(|node| graph.added(node)).collect();
        let mut by_size = graph.order();
        by_size.sort_by_key(|node| added[node.index()]);
        let (mut positions, mut ranks) = (vec![0; nodes], vec![0; nodes]);
        order.iter().enumerate().for_each(|(at, node)| positions[node.index()] = at as u32);
        by_size.iter().enumerate().for_each(|(at, node)| ranks[node.index()] = at);
        let inputs = graph.bufs.iter().filter(|(_, buf)| buf.definer.is_none() && !buf.users.is_empty());
        let live = inputs.map(|(_, buf)| buf.free as i64).sum();
        let users = graph.bufs.iter().map(|(_, buf)| buf.users.len() + usize::from(buf.is_output)).collect();
        let top = graph.output_bytes().max(live);
        let least = Least {
            graph,
            positions,
            added,
            freed: vec![0; nodes],
            uses: graph.uses(),
            users,
            is_done: vec![false; nodes],
            by_size,
            ranks,
            ready: Smallest::new(nodes),
            threshold,
            by_successor: BTreeSet::new(),
            live,
            top,
        };
        least.with_first_releases()
    }

    /// Lets every node release what no other node uses from the start.
    fn with_first_releases(mut self) -> Self {
        for (id, buf) in self.graph.bufs.iter() {
            match (self.users[id.index()], buf.definer) {
                (0, Some(definer)) => self.freed[definer.index()] += buf.free as i64,
                (1, _) => _ = self.give_to_last(id),
                _ => {}
            }
        }
        self
    }

    /// Lets the only user of `buf` that is still to come, if that is a node, release it.
    fn give_to_last(&mut self, buf: BufId) -> Option<NodeId> {
        let buf = &self.graph.bufs[buf];
        let last = buf.users.iter().copied().find(|user| !self.is_done[user.index()])?;
        self.freed[last.index()] += buf.free as i64;
        Some(last)
    }

    fn key(&self, node: NodeId) -> Key {
        (self.added[node.index()] - self.freed[node.index()], self.positions[node.index()])
    }

    fn make_ready(&mut self, node: NodeId, edges: &Edges) {
        self.ready.set(self.ranks[node.index()], self.key(node));
        if self.threshold > 0 {
            self.by_successor.insert(self.successor(node, edges));
        }
    }

    fn successor(&self, node: NodeId, edges: &Edges) -> (u32, u32, NodeId) {
        let successors = edges.after.of(node).iter().map(|user| self.positions[user.index()]);
        (successors.min().unwrap_or(u32::MAX), self.positions[node.index()], node)
    }

    fn next(&self) -> Option<NodeId> {
        let first = self.ready.first()?;
        let smallest = self.added[self.by_size[first].index()];
        if self.threshold > 0 && smallest > self.threshold {
            return self.by_successor.first().map(|&(_, _, node)| node);
        }
        let most = smallest.max(self.top - self.live);
        let end = self.by_size.partition_point(|node| self.added[node.index()] <= most);
        Some(self.by_size[self.ready.smallest(end)])
    }

    fn run(&mut self, node: NodeId, edges: &Edges) {
        self.ready.set(self.ranks[node.index()], ABSENT);
        if self.threshold > 0 {
            self.by_successor.remove(&self.successor(node, edges));
        }
        self.is_done[node.index()] = true;
        self.live += self.added[node.index()];
        self.top = self.top.max(self.live);
        self.live -= self.freed[node.index()];
        for at in 0..self.uses.of(node).len() {
            let buf = self.uses.of(node)[at];
            self.users[buf.index()] -= 1;
            if self.users[buf.index()] == 1
                && let Some(last) = self.give_to_last(buf)
                && self.ready.holds(self.ranks[last.index()])
            {
                self.ready.set(self.ranks[last.index()], self.key(last));
            }
        }
    }
}

/// Bytes added beyond those released, then the place in the given order.
type Key = (i64, u32);
const ABSENT: Key = (i64::MAX, u32::MAX);

/// A table of keys that knows the smallest of every prefix: a tree of minima in an array, its root at 1.
struct Smallest {
    leaves: usize,
    keys: Vec<Key>,
}

impl Smallest {
    fn new(entries: usize) -> Smallest {
        let leaves = entries.next_power_of_two();
        Smallest { leaves, keys: vec![ABSENT; 2 * leaves] }
    }

    fn holds(&self, entry: usize) -> bool {
        self.keys[self.leaves + entry] != ABSENT
    }

    fn set(&mut self, entry: usize, key: Key) {
        let mut at = self.leaves + entry;
        self.keys[at] = key;
        while at > 1 {
            at /= 2;
            self.keys[at] = self.keys[2 * at].min(self.keys[2 * at + 1]);
        }
    }

    /// The first entry that is there.
    fn first(&self) -> Option<usize> {
        if self.keys[1] == ABSENT {
            return None;
        }
        let mut at = 1;
        while at < self.leaves {
            at = if self.keys[2 * at] != ABSENT { 2 * at } else { 2 * at + 1 };
        }
        Some(at - self.leaves)
    }

    /// The entry before `end` with the smallest key; some entry before it is there.
    fn smallest(&self, end: usize) -> usize {
        let (mut best, mut low, mut high) = (self.leaves, self.leaves, self.leaves + end);
        while low < high {
            if low % 2 == 1 {
                best = if self.keys[low] < self.keys[best] { low } else { best };
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                best = if self.keys[high] < self.keys[best] { high } else { best };
            }
            (low, high) = (low / 2, high / 2);
        }
        while best < self.leaves {
            best = if self.keys[2 * best] == self.keys[best] { 2 * best } else { 2 * best + 1 };
        }
        best - self.leaves
    }
}
