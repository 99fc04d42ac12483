//! The memory of a list whose nodes move, kept up to date move by move.
//!
//! A group of neighbors passes one node at a time. What changes is the levels of the group, all alike; the level of the
//! node passed; and, for each buffer that both use, which of them releases it. In [`PassMode::Fixed`] every level is the one that
//! [`LaunchGraph::memory`] finds for the order reached.

use phalanx_ir::IdVec;

use super::levels::Levels;
use crate::mode::PassMode;
use crate::model::facts::Facts;
use crate::model::{BufId, LaunchGraph, ListMemory, MemoryStep, NodeId};

/// Which way a group moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum Way {
    /// To the front; it grows at its head.
    Up,
    /// To the back; it grows at its tail.
    Down,
}

impl Way {
    fn sign(self) -> i64 {
        match self {
            Way::Up => 1,
            Way::Down => -1,
        }
    }
}

/// Bytes of all nodes in the order reached, and the group that moves.
#[derive(Clone, Debug)]
pub(in crate::model) struct Tracked<'a> {
    graph: &'a LaunchGraph,
    facts: &'a Facts,
    way: Way,
    /// The peak before the first move.
    pub peak: i64,
    /// How far the peak may rise, as a share of it.
    budget: f64,
    /// By node: bytes alive while it runs; those of the group are in `levels`.
    tops: IdVec<NodeId, i64>,
    /// By node: bytes it adds and bytes released after it.
    flow: IdVec<NodeId, (i64, i64)>,
    last_users: IdVec<BufId, Option<NodeId>>,
    group: Vec<NodeId>,
    /// By node: its number in the group.
    numbers: IdVec<NodeId, Option<u32>>,
    /// By buffer: the number of its last user in a group that moves down.
    party_users: IdVec<BufId, Option<u32>>,
    levels: Levels,
    /// The highest level that a node of the group had when it joined.
    joined_peak: i64,
    /// The buffers that the group and the node it passes hand over, with the number of the node that has or gets them.
    handed: Vec<(BufId, u32)>,
}

impl<'a> Tracked<'a> {
    /// The memory of `order`.
    pub fn new(
        graph: &'a LaunchGraph,
        facts: &'a Facts,
        order: &[NodeId],
        (way, budget): (Way, f64),
    ) -> Self {
        let ListMemory { peak, start, steps, mut flow, last_users } = graph.memory(order);
        let mut tops: IdVec<NodeId, i64> = graph.nodes.ids().map(|_| 0).collect();
        for (&node, step) in order.iter().zip(steps) {
            tops[node] = step.post_alloc;
        }
        // D7: in the reference the first node brings the bytes that are there from the start, wherever it moves.
        if let (Some(&first), true) = (order.first(), facts.mode != PassMode::Fixed) {
            flow[first].0 += start;
        }
        Tracked {
            graph,
            facts,
            way,
            peak,
            budget,
            tops,
            flow,
            last_users,
            group: Vec::new(),
            numbers: graph.nodes.ids().map(|_| None).collect(),
            party_users: graph.bufs.ids().map(|_| None).collect(),
            levels: Levels::new(),
            joined_peak: i64::MIN,
            handed: Vec::new(),
        }
    }

    /// Which way groups move.
    pub fn way(&self) -> Way {
        self.way
    }

    /// From now on groups move that way.
    pub fn turn(&mut self, way: Way) {
        self.way = way;
    }

    /// Whether `node` is in the group.
    pub fn in_party(&self, node: NodeId) -> bool {
        self.numbers[node].is_some()
    }

    /// Whether a peak is above what the budget allows.
    pub fn exceeds(&self, peak: i64) -> bool {
        (peak - self.peak) as f64 > self.peak as f64 * self.budget
    }

    /// The highest peak within the budget.
    pub fn allowed(&self) -> i64 {
        self.peak.saturating_add((self.peak as f64 * self.budget).floor() as i64)
    }

    /// Takes `node` into the group, at the end that leads.
    pub fn join(&mut self, node: NodeId) {
        let number = self.group.len() as u32;
        self.numbers[node] = Some(number);
        self.group.push(node);
        self.levels.push(self.tops[node]);
        self.joined_peak = self.joined_peak.max(self.tops[node]);
        if self.way == Way::Down {
            for &buf in self.facts.uses.of(node) {
                self.party_users[buf] = Some(number);
            }
        }
    }

    /// The group counts as joined where it is, so that D5 has no effect.
    pub fn rejoin(&mut self) {
        self.joined_peak = self.levels.highest();
    }

    /// The group passes `node`, unless the peak then exceeds the budget: that peak is the error.
    pub fn pass(&mut self, node: NodeId) -> Result<(), i64> {
        self.find_handed(node);
        let (alloc, free) = self.flow[node];
        let (rise, first) = (self.way.sign() * (free - alloc), self.group[0]);
        let below = self.levels.first() - self.flow[first].0;
        self.shift(node, rise, 1);
        let base = match self.way {
            Way::Up => self.levels.first() - self.flow[first].1,
            Way::Down => below,
        };
        let top = base + alloc;
        let peak = top.max(self.party_peak(rise));
        if self.exceeds(peak) {
            self.shift(node, -rise, -1);
            return Err(peak);
        }
        self.tops[node] = top;
        self.record(node);
        Ok(())
    }

    /// The group stays where it is and is a group no more.
    pub fn settle(&mut self) {
        self.write_levels();
        for node in self.group.drain(..) {
            self.numbers[node] = None;
            if self.way == Way::Down {
                self.facts.uses.of(node).iter().for_each(|&buf| self.party_users[buf] = None);
            }
        }
        self.levels.clear();
        self.joined_peak = i64::MIN;
    }

    /// How many nodes of `order` have levels other than `memory`, which was computed from scratch.
    pub fn drift(&mut self, order: &[NodeId], memory: &ListMemory) -> usize {
        self.write_levels();
        let step = |node: NodeId| {
            let post_alloc = self.tops[node];
            MemoryStep { post_alloc, post_free: post_alloc - self.flow[node].1 }
        };
        order.iter().zip(&memory.steps).filter(|&(&node, &found)| step(node) != found).count()
    }

    fn write_levels(&mut self) {
        for (number, level) in self.levels.iter() {
            self.tops[self.group[number]] = level;
        }
    }

    /// Buffers that the group has used last and `node` uses (up), or that `node` has used last and the group uses.
    fn find_handed(&mut self, node: NodeId) {
        self.handed.clear();
        for &buf in self.facts.uses.of(node) {
            let last = self.last_users[buf];
            let number = match self.way {
                Way::Up => last.and_then(|last| self.numbers[last]),
                Way::Down if last == Some(node) => self.party_users[buf],
                Way::Down => None,
            };
            self.handed.extend(number.map(|number| (buf, number)));
        }
    }

    /// Raises the whole group, and hands over buffers between it and `node`; a negative sign takes them back.
    fn shift(&mut self, node: NodeId, rise: i64, sign: i64) {
        self.levels.raise(rise);
        for &(buf, number) in &self.handed {
            let free = sign * self.graph.bufs[buf].free as i64;
            let (number, to_node) = (number as usize, self.way.sign() * free);
            // Until now the node with this number released the buffer, or from now on it does.
            let end = if self.way == Way::Up { number } else { number + 1 };
            self.levels.raise_before(end, free);
            self.flow[self.group[number]].1 -= to_node;
            self.flow[node].1 += to_node;
        }
    }

    /// The highest level of the group after it has passed a node, which raised it by `rise`.
    fn party_peak(&self, rise: i64) -> i64 {
        // D5: the reference takes the levels that nodes had when they joined, whatever the group has passed since.
        if self.facts.mode == PassMode::Fixed || !self.handed.is_empty() {
            return self.levels.highest();
        }
        self.joined_peak + rise
    }

    /// The node that has used the handed buffers last, now that the group has passed `node`.
    fn record(&mut self, node: NodeId) {
        for &(buf, number) in &self.handed {
            match self.way {
                Way::Up => self.last_users[buf] = Some(node),
                // D6: the reference forgets to write this down.
                Way::Down if self.facts.mode == PassMode::Fixed => {
                    self.last_users[buf] = Some(self.group[number as usize]);
                }
                Way::Down => {}
            }
        }
    }
}
