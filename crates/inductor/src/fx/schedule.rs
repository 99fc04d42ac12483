//! The main loop: every node is scheduled once all it reads is, and collectives are in flight from start to wait.
//!
//! Time that a node takes is a window in which collectives of other groups, or of all if it computes, are hidden; how
//! windows are filled is in `prefetch.rs`. Waits of one group happen in the order of the starts. A wait that is being
//! handled is not handled again from inside.

use phalanx_ir::IdVec;

use super::bits::NodeSet;
use super::case::{FxOp, Params};
use super::graph::{CollectiveId, FxNodeId, Graph, Role};
use super::memory::{Baseline, Memory, Storages};
use super::ready::{Ready, Situation};
use crate::mode::PassMode;

/// How far a collective is hidden.
pub(super) struct Overlap {
    /// Milliseconds that nothing hides.
    pub(super) exposed: f64,
    /// The nodes that hide it, in the order of the schedule.
    pub(super) hiding: Vec<FxNodeId>,
}

impl Overlap {
    pub(super) fn is_exposed(&self) -> bool {
        self.exposed > 0.0
    }
}

/// A finished schedule.
pub(super) struct Schedule {
    pub(super) order: Vec<FxNodeId>,
    pub(super) overlaps: IdVec<CollectiveId, Overlap>,
    /// Milliseconds of windows that no group could use.
    pub(super) wasted: f64,
    pub(super) peak: u64,
}

/// A schedule in the making.
pub(super) struct Scheduler<'a> {
    pub(super) graph: &'a Graph,
    pub(super) params: &'a Params,
    pub(super) baseline: &'a Baseline,
    pub(super) mode: PassMode,
    pub(super) memory: Memory<'a>,
    ready: Ready,
    reads_left: IdVec<FxNodeId, usize>,
    pub(super) scheduled: NodeSet,
    order: Vec<FxNodeId>,
    pub(super) overlaps: IdVec<CollectiveId, Overlap>,
    /// Started and not yet waited for, in the order of the starts.
    pub(super) in_flight: Vec<CollectiveId>,
    pub(super) in_flight_bytes: u64,
    /// Whether the wait of a collective is being handled.
    pub(super) waiting: IdVec<CollectiveId, bool>,
    /// The nodes whose windows are being filled, outermost first.
    pub(super) windows: Vec<FxNodeId>,
    /// How many compute nodes are scheduled.
    pub(super) compute_index: usize,
    /// Bytes of collectives started early, for each compute index they span.
    pub(super) prefetched: Vec<u64>,
    pub(super) wasted: f64,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        params: &'a Params,
        (storages, baseline): (&'a Storages, &'a Baseline),
        mode: PassMode,
    ) -> Self {
        let overlaps = graph.collectives.iter();
        let overlaps = overlaps.map(|(_, c)| Overlap { exposed: c.time, hiding: Vec::new() });
        Scheduler {
            graph,
            params,
            baseline,
            mode,
            memory: Memory::new(storages),
            ready: Ready::new(),
            reads_left: graph.reads.iter().map(|(_, reads)| reads.len()).collect(),
            scheduled: NodeSet::new(graph.n_nodes()),
            order: Vec::with_capacity(graph.n_nodes()),
            overlaps: overlaps.collect(),
            in_flight: Vec::new(),
            in_flight_bytes: 0,
            waiting: graph.collectives.ids().map(|_| false).collect(),
            windows: Vec::new(),
            compute_index: 0,
            prefetched: vec![0; baseline.at_compute.len()],
            wasted: 0.0,
        }
    }

    /// Schedules everything.
    pub(super) fn run(mut self) -> Schedule {
        let graph = self.graph;
        if graph.collectives.is_empty() {
            // Without waits there is nothing to gain, and the original order stays.
            graph.roles.ids().for_each(|node| self.emit(node));
        } else {
            let sources = graph.roles.ids().filter(|&node| graph.reads[node].is_empty());
            sources.for_each(|node| self.push_ready(node));
        }
        while !self.ready.is_empty() {
            if self.in_flight_bytes >= self.max_in_flight()
                && let Some(oldest) = self.oldest_in_flight()
            {
                self.force_wait(oldest);
                continue;
            }
            for node in self.take_ready() {
                if !self.scheduled.contains(node) {
                    self.handle(node);
                }
            }
        }
        Schedule { order: self.order, overlaps: self.overlaps, wasted: self.wasted, peak: self.memory.peak }
    }

    pub(super) fn max_in_flight(&self) -> u64 {
        self.params.max_in_flight_bytes.unwrap_or(u64::MAX)
    }

    /// The collective in flight that was started first and is not being waited for.
    pub(super) fn oldest_in_flight(&self) -> Option<CollectiveId> {
        self.in_flight.iter().copied().find(|&collective| !self.waiting[collective])
    }

    fn take_ready(&mut self) -> Vec<FxNodeId> {
        self.ready.take(&Situation {
            graph: self.graph,
            mode: self.mode,
            batch_bytes: self.params.max_off_bucket_bytes,
            above_allowed_peak: self.baseline.allowed.is_some_and(|allowed| self.memory.level > allowed),
            scheduled: &self.scheduled,
            overlaps: &self.overlaps,
        })
    }

    fn handle(&mut self, node: FxNodeId) {
        match self.graph.roles[node] {
            Role::Start(collective) => self.start(collective),
            Role::Wait(collective) => self.handle_wait(node, collective),
            Role::Compute | Role::Gemm => self.compute(node),
            Role::Border | Role::Unwaited => self.schedule(node),
        }
    }

    fn compute(&mut self, node: FxNodeId) {
        let available = self.graph.times[node] * self.params.overlap_multiplier;
        if available > 0.0 {
            self.window(node, available, None);
        }
        self.schedule(node);
        self.compute_index += usize::from(self.graph.roles[node] == Role::Gemm);
    }

    pub(super) fn start(&mut self, id: CollectiveId) {
        let collective = &self.graph.collectives[id];
        if self.in_flight.iter().any(|&other| self.will_merge(id, other)) {
            // Both are expected to become one message, which pays for one latency.
            let overlap = &mut self.overlaps[id];
            overlap.exposed = (overlap.exposed - collective.latency).max(0.0);
        }
        self.in_flight.push(id);
        self.in_flight_bytes += collective.bytes;
        self.schedule(collective.start);
    }

    /// Whether the scheduler counts on a bucket for the two.
    fn will_merge(&self, one: CollectiveId, other: CollectiveId) -> bool {
        let [one, other] = [one, other].map(|id| self.graph.collectives[id].key());
        let (Some((op, group)), Some((other_op, other_group))) = (one, other) else { return false };
        // Defect E5: the reference compares group, reduction and element type only, which a reduce-scatter and an
        // all-reduce can share although they never merge. The repaired mode compares the kind as well.
        let alike = match self.mode {
            PassMode::Reference | PassMode::Newer => (op == FxOp::AllGather) == (other_op == FxOp::AllGather),
            PassMode::Fixed => op == other_op,
        };
        alike && group == other_group
    }

    /// Waits for a collective in flight now.
    pub(super) fn force_wait(&mut self, id: CollectiveId) {
        self.handle_wait(self.graph.collectives[id].wait, id);
    }

    /// Schedules `node`, which waits for `id`, and before it the waits that the order of the group demands.
    pub(super) fn handle_wait(&mut self, node: FxNodeId, id: CollectiveId) {
        let collective = &self.graph.collectives[id];
        if !self.in_flight.contains(&id) {
            self.schedule(node);
            return;
        }
        self.waiting[id] = true;
        for earlier in self.forced_by(id) {
            // One of these may have been waited for while another was handled.
            if self.in_flight.contains(&earlier) {
                self.force_wait(earlier);
            }
        }
        if self.overlaps[id].is_exposed() {
            self.window(node, self.overlaps[id].exposed, Some(collective.group));
        }
        self.waiting[id] = false;
        self.in_flight.retain(|&other| other != id);
        self.in_flight_bytes -= collective.bytes;
        self.schedule(node);
    }

    /// What must be waited for before `id`, if it is in flight: all that its group started earlier.
    pub(super) fn forced_by(&self, id: CollectiveId) -> Vec<CollectiveId> {
        let group = self.graph.collectives[id].group;
        let at = self.in_flight.iter().position(|&other| other == id).unwrap_or(0);
        let earlier = self.in_flight[..at].iter().copied();
        earlier
            .filter(|&other| self.graph.collectives[other].group == group && !self.waiting[other])
            .collect()
    }

    /// Appends `node` to the schedule; nodes that only lacked it become ready.
    pub(super) fn schedule(&mut self, node: FxNodeId) {
        self.emit(node);
        for &user in &self.graph.users[node] {
            self.reads_left[user] -= 1;
            if self.reads_left[user] == 0 {
                self.push_ready(user);
            }
        }
    }

    fn emit(&mut self, node: FxNodeId) {
        self.scheduled.insert(node);
        self.order.push(node);
        self.memory.step(node);
    }

    fn push_ready(&mut self, node: FxNodeId) {
        let priority = match self.graph.roles[node] {
            Role::Wait(collective) => i8::from(self.overlaps[collective].is_exposed()),
            _ => -i8::from(self.feeds_collective(node)),
        };
        self.ready.push(self.graph, node, priority);
    }

    /// Whether a chain of cheap nodes, each the only user of the one before and reading nothing else, leads from
    /// `node` to a collective that is not scheduled.
    fn feeds_collective(&self, mut node: FxNodeId) -> bool {
        loop {
            let &[user] = self.graph.users[node].as_slice() else { return false };
            if self.graph.reads[user].len() != 1 {
                return false;
            }
            match self.graph.roles[user] {
                Role::Start(_) => return !self.scheduled.contains(user),
                Role::Compute => node = user,
                _ => return false,
            }
        }
    }
}
