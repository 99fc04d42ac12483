//! Filling a window: hiding what is in flight, then starting more collectives early.
//!
//! A window is the time of one node, offered to every group alike. A collective is started early if it does not depend
//! on the node nor the node on it, if memory allows, and if what it still needs has no compute and no exposed wait.

use std::cmp::Reverse;

use phalanx_ir::IdVec;

use super::graph::{CollectiveId, FxNodeId, GroupId, Role};
use super::schedule::Scheduler;
use crate::mode::PassMode;

/// The time of a window that is left for each group.
struct Budget {
    left: IdVec<GroupId, f64>,
    /// The group whose own wait the window is.
    excluded: Option<GroupId>,
}

impl Budget {
    fn of(&self, group: GroupId) -> f64 {
        if self.excluded == Some(group) { 0.0 } else { self.left[group] }
    }

    /// What no group could use.
    fn unused(&self) -> f64 {
        let groups = self.left.ids().filter(|&group| self.excluded != Some(group));
        groups.map(|group| self.left[group]).reduce(f64::min).unwrap_or(0.0)
    }
}

/// In which order a window looks at collectives that block different things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    NextCompute,
    OffPathScatter,
    OnPath,
    OffPath,
}

impl Scheduler<'_> {
    /// Hides collectives behind `node`, which takes `available` milliseconds; `excluded` is the group that `node`
    /// waits for.
    pub(super) fn window(&mut self, node: FxNodeId, available: f64, excluded: Option<GroupId>) {
        let left = (0..self.graph.n_groups).map(|_| available).collect();
        let mut budget = Budget { left, excluded };
        for at in 0..self.in_flight.len() {
            let id = self.in_flight[at];
            let left = budget.of(self.graph.collectives[id].group);
            if !self.waiting[id] && self.overlaps[id].is_exposed() && left > 0.0 {
                self.hide(id, node, &mut budget);
            }
        }
        self.windows.push(node);
        self.prefetch(node, &mut budget);
        self.windows.pop();
        self.wasted += budget.unused();
    }

    /// Spends what the window has for a collective on it.
    fn hide(&mut self, id: CollectiveId, node: FxNodeId, budget: &mut Budget) {
        let left = &mut budget.left[self.graph.collectives[id].group];
        let overlap = &mut self.overlaps[id];
        let hidden = left.min(overlap.exposed);
        overlap.exposed -= hidden;
        overlap.hiding.push(node);
        *left -= hidden;
    }

    fn prefetch(&mut self, node: FxNodeId, budget: &mut Budget) {
        for id in self.candidates(budget) {
            let collective = &self.graph.collectives[id];
            if budget.of(collective.group) > 0.0 && self.prepare(id, node) {
                self.start(id);
                self.spans(id).for_each(|index| self.prefetched[index] += collective.bytes);
                self.hide(id, node, budget);
            }
        }
    }

    /// Makes room for a collective and runs what it needs; whether it can start now.
    fn prepare(&mut self, id: CollectiveId, node: FxNodeId) -> bool {
        let start = self.graph.collectives[id].start;
        if self.scheduled.contains(start)
            || self.graph.related(node, start)
            || self.exceeds_memory(id)
            || !self.make_room(id, node)
        {
            return false;
        }
        let Some(path) = self.path(start, node) else { return false };
        self.schedule_path(path);
        // Waits open windows of their own, which may have started it.
        !self.scheduled.contains(start)
    }

    /// The collectives that the window may start, best first.
    fn candidates(&self, budget: &Budget) -> Vec<CollectiveId> {
        let reach = self.params.max_compute_pre_fetch;
        let possible = self.graph.collectives.iter().filter(|(_, collective)| {
            !self.scheduled.contains(collective.start)
                && budget.of(collective.group) > 0.0
                && self.graph.blocks[collective.start]
                    .is_none_or(|index| index.abs_diff(self.compute_index) <= reach)
        });
        let possible = possible.take(self.params.max_coll_distance);
        let mut sorted: Vec<CollectiveId> = possible.map(|(id, _)| id).collect();
        sorted.sort_by_cached_key(|&id| {
            let collective = &self.graph.collectives[id];
            let gain = budget.of(collective.group).min(self.overlaps[id].exposed);
            let index = self.graph.blocks[collective.start];
            // Times are not negative, so their bits sort as they do.
            (self.urgency(collective.start), index, Reverse(gain.to_bits()), collective.start)
        });
        if self.params.prioritize_bucketing {
            self.gather_by_key(&mut sorted);
        }
        sorted
    }

    fn urgency(&self, start: FxNodeId) -> Urgency {
        match self.graph.blocks[start] {
            Some(index) if index == self.compute_index + 1 => Urgency::NextCompute,
            Some(_) => Urgency::OnPath,
            None if self.graph.blocks_scatter[start] => Urgency::OffPathScatter,
            None => Urgency::OffPath,
        }
    }

    /// Moves collectives of one bucket key behind the best of them. Those without a key count as one key.
    fn gather_by_key(&self, sorted: &mut [CollectiveId]) {
        let mut keys = Vec::new();
        for &id in sorted.iter() {
            let key = self.graph.collectives[id].key();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        sorted.sort_by_key(|&id| keys.iter().position(|key| *key == self.graph.collectives[id].key()));
    }

    /// The compute indices from now to the one that a collective blocks; none if it is off the compute path.
    fn spans(&self, id: CollectiveId) -> std::ops::Range<usize> {
        let end = self.graph.blocks[self.graph.collectives[id].start];
        self.compute_index..end.unwrap_or(0).max(self.compute_index)
    }

    /// Whether starting a collective now would take more memory than allowed, at any time until it is needed.
    fn exceeds_memory(&self, id: CollectiveId) -> bool {
        let collective = &self.graph.collectives[id];
        if self.graph.blocks[collective.start].is_none() {
            return false;
        }
        let exceeds =
            |level: u64| self.baseline.allowed.is_some_and(|allowed| level + collective.bytes > allowed);
        exceeds(self.memory.level)
            || self.spans(id).any(|index| {
                let early = self.prefetched[index];
                early + collective.bytes > self.max_in_flight()
                    || exceeds(self.baseline.at_compute[index] + early)
            })
    }

    /// Waits for the oldest collectives, if that exposes nothing, until there is room for one more.
    fn make_room(&mut self, id: CollectiveId, node: FxNodeId) -> bool {
        let bytes = self.graph.collectives[id].bytes;
        while self.in_flight_bytes.saturating_add(bytes) > self.max_in_flight() {
            let Some(oldest) = self.oldest_in_flight() else { return false };
            if self.overlaps[oldest].is_exposed() || self.counts_on(oldest, node) {
                return false;
            }
            self.force_wait(oldest);
        }
        true
    }

    /// Whether `id` counts as hidden by a node that is not yet scheduled.
    fn counts_on(&self, id: CollectiveId, node: FxNodeId) -> bool {
        let hiding = &self.overlaps[id].hiding;
        match self.mode {
            PassMode::Reference | PassMode::Newer => hiding.contains(&node),
            PassMode::Fixed => self.windows.iter().any(|window| hiding.contains(window)),
        }
    }

    /// What must run before `start`, in the original order; none if some of it must not run now.
    fn path(&self, start: FxNodeId, node: FxNodeId) -> Option<Vec<FxNodeId>> {
        let path = self.graph.ancestors[start].difference(&self.scheduled);
        path.iter().all(|&step| self.may_run_early(step, node)).then_some(path)
    }

    fn may_run_early(&self, step: FxNodeId, node: FxNodeId) -> bool {
        match self.graph.roles[step] {
            Role::Border => true,
            // A node whose window is open comes after all that the window starts.
            Role::Compute => !self.windows.contains(&step),
            Role::Gemm | Role::Start(_) | Role::Unwaited => false,
            Role::Wait(id) if self.waiting[id] => false,
            Role::Wait(id) => {
                // Defect E1: this wait forces those of all earlier collectives of its group. The reference does not
                // look at them, so one that counts on this very window can end before it and the constraints that it
                // writes down have a cycle. The repaired mode looks at all of them and at all open windows.
                let forced = match self.mode {
                    PassMode::Reference | PassMode::Newer => Vec::new(),
                    PassMode::Fixed => self.forced_by(id),
                };
                !self.overlaps[id].is_exposed()
                    && !self.counts_on(id, node)
                    && forced.into_iter().all(|earlier| !self.counts_on(earlier, node))
            }
        }
    }

    /// Schedules what is left of a path; its waits may schedule parts of it.
    fn schedule_path(&mut self, path: Vec<FxNodeId>) {
        for step in path {
            match self.graph.roles[step] {
                _ if self.scheduled.contains(step) => {}
                Role::Wait(collective) => self.handle_wait(step, collective),
                _ => self.schedule(step),
            }
        }
    }
}
