//! Whether a collective can join a bucket, and where the merged start and wait then are.

use super::Bucketer;
use super::timeline::{EventId, Timeline};
use crate::fx::graph::{CollectiveId, FxNodeId};
use crate::mode::PassMode;

/// A pair of positions.
type Interval = (EventId, EventId);

/// The collective that opened a bucket and the one that is to join it.
fn ends(members: &[CollectiveId]) -> [CollectiveId; 2] {
    [members[0], members[members.len() - 1]]
}

impl Bucketer<'_> {
    /// Adds `candidate` to `bucket`, if some placement of both is possible.
    pub(super) fn join(&mut self, bucket: &[CollectiveId], candidate: CollectiveId) -> bool {
        if self.hides_others(candidate) || bucket.iter().any(|&member| self.conflicts(member, candidate)) {
            return false;
        }
        let graph = self.graph;
        let [first, last] = [bucket[0], candidate].map(|id| &graph.collectives[id]);
        let (starts, waits) = ([first.start, last.start], [last.wait, first.wait]);
        let members: Vec<CollectiveId> = bucket.iter().copied().chain([candidate]).collect();
        let places = starts.into_iter().flat_map(|start| waits.map(|wait| (start, wait)));
        places.into_iter().any(|(start, wait)| self.try_placement(&members, start, wait))
    }

    /// Whether one of the two depends on the other, or one's wait on the other's, or what hides one comes after the
    /// other's wait.
    fn conflicts(&self, one: CollectiveId, other: CollectiveId) -> bool {
        let [a, b] = [one, other].map(|id| &self.graph.collectives[id]);
        let after = |node: FxNodeId, earlier: FxNodeId| self.ancestors[node].contains(earlier);
        let related = |x, y| after(x, y) || after(y, x);
        let hidden_after =
            |id: CollectiveId, wait| self.overlaps[id].hiding.iter().any(|&node| after(node, wait));
        related(a.start, b.start)
            || related(a.wait, b.wait)
            || hidden_after(one, b.wait)
            || hidden_after(other, a.wait)
    }

    /// Merges the last of `members` with the others at the positions of `start` and `wait`, or changes nothing.
    fn try_placement(&mut self, members: &[CollectiveId], start: FxNodeId, wait: FxNodeId) -> bool {
        let graph = self.graph;
        let [first, last] = ends(members).map(|id| &graph.collectives[id]);
        if !self.stays_hidden(members, start, wait) || !self.merge(first.start, last.start, start) {
            return false;
        }
        if !self.merge(first.wait, last.wait, wait) {
            self.precedence.split(first.start, last.start);
            self.rejoin(if start == first.start { last.start } else { first.start });
            return false;
        }
        let timeline = &mut self.timelines[first.group];
        let (start, wait) = (timeline.event(start), timeline.event(wait));
        for collective in members.iter().map(|&id| &graph.collectives[id]) {
            timeline.place(collective.start, start);
            timeline.place(collective.wait, wait);
        }
        true
    }

    /// Takes one of two nodes out of the chain, the one that is not `stays`, and merges them unless they are ordered.
    fn merge(&mut self, opener: FxNodeId, node: FxNodeId, stays: FxNodeId) -> bool {
        let moves = if stays == opener { node } else { opener };
        self.leave(moves);
        if self.precedence.ordered(&self.ancestors, opener, node) {
            self.rejoin(moves);
            return false;
        }
        self.precedence.merge(opener, node);
        true
    }

    /// Takes a start or wait out of its timeline; its neighbors become neighbors.
    fn leave(&mut self, node: FxNodeId) {
        let timeline = self.timeline_mut(node);
        let event = timeline.event(node);
        let (prev, next) = timeline.neighbors(event);
        timeline.unlink(event);
        if let Some(prev) = prev {
            self.precedence.remove(node, prev);
        }
        if let Some(next) = next {
            self.precedence.remove(next, node);
        }
        if let (Some(prev), Some(next)) = (prev, next) {
            self.precedence.add(next, prev);
        }
    }

    /// Undoes the last `leave`.
    fn rejoin(&mut self, node: FxNodeId) {
        let timeline = self.timeline_mut(node);
        let event = timeline.event(node);
        timeline.relink(event);
        let (prev, next) = timeline.neighbors(event);
        if let (Some(prev), Some(next)) = (prev, next) {
            self.precedence.remove(next, prev);
        }
        if let Some(prev) = prev {
            self.precedence.add(node, prev);
        }
        // Defect E2, the other half: between two neighbors the reference forgets that the next one comes after the
        // node, so that later searches miss paths. The repaired mode restores both edges.
        if let Some(next) = next
            && (prev.is_none() || self.mode == PassMode::Fixed)
        {
            self.precedence.add(next, node);
        }
    }

    fn timeline_mut(&mut self, node: FxNodeId) -> &mut Timeline {
        let collective = self.graph.collective_of(node).expect("only starts and waits move");
        &mut self.timelines[self.graph.collectives[collective].group]
    }

    /// Whether everything that hides a member stays between the new start and wait, and no collective around the moved
    /// ends has to finish before what hides it: waits of a group happen in the order of the starts, so a collective
    /// whose start and hiding node lie inside another's execution is waited for too early.
    fn stays_hidden(&self, members: &[CollectiveId], start: FxNodeId, wait: FxNodeId) -> bool {
        let graph = self.graph;
        let timeline = &self.timelines[graph.collectives[members[0]].group];
        let hiding = |id: CollectiveId| self.overlaps[id].hiding.iter().map(|&node| timeline.event(node));
        let execution = |id: CollectiveId| -> Interval {
            let collective = &graph.collectives[id];
            (timeline.event(collective.start), timeline.event(collective.wait))
        };
        let (start, wait) = (timeline.event(start), timeline.event(wait));
        let inner: Vec<EventId> = members.iter().flat_map(|&id| hiding(id)).collect();
        if !inner.iter().all(|&event| start < event && event < wait) {
            return false;
        }
        let mut executions = vec![(start, wait)];
        let mut hidden: Vec<Interval> = inner.into_iter().map(|event| (start, event)).collect();
        let [first, last] = ends(members).map(execution);
        let (last_start, first_wait) = (first.0.max(last.0), first.1.min(last.1));
        let around = timeline.between(start, last_start).chain(timeline.between(first_wait, wait));
        for id in around.filter(|id| !members.contains(id)) {
            let execution = execution(id);
            executions.push(execution);
            hidden.extend(hiding(id).map(|event| (execution.0, event)));
        }
        let inside = |inner: &Interval, outer: &Interval| outer.0 < inner.0 && inner.1 < outer.1;
        !hidden.iter().any(|inner| executions.iter().any(|outer| inside(inner, outer)))
    }
}
