//! Which collectives to merge without exposing what the schedule hides.
//!
//! Collectives of one group and kind are tried greedily: each that no bucket holds opens one, and others join if some
//! placement of the merged start and wait keeps all hiding nodes between them and closes no cycle. Nothing is rewritten
//! here: a bucket is a list of collectives.

mod placement;
mod precedence;
mod timeline;

use phalanx_ir::{Id, IdVec};

use super::bits::NodeSet;
use super::case::{FxOp, Params};
use super::graph::{BucketKey, CollectiveId, FxNodeId, Graph, GroupId, closure};
use super::order::hiding_edges;
use super::schedule::{Overlap, Schedule};
use crate::mode::PassMode;
use precedence::Precedence;
use timeline::Timeline;

/// The message of a bucket stays below this.
const MAX_BYTES: u64 = 2 << 30;
/// A bucket that refused this many collectives in a row is complete.
const MAX_FAILURES: usize = 20;
/// How far apart, in scheduled order, collectives of a bucket may be if the most exposed ones come first.
const MAX_EXPOSED_DISTANCE: usize = 20;

/// Finds buckets in a schedule that meets its own constraints.
pub(super) struct Bucketer<'a> {
    graph: &'a Graph,
    params: &'a Params,
    mode: PassMode,
    overlaps: &'a IdVec<CollectiveId, Overlap>,
    positions: IdVec<FxNodeId, usize>,
    /// Nodes that hide some collective.
    hides: NodeSet,
    /// Ancestors over reads and the constraints of fully hidden collectives.
    ancestors: IdVec<FxNodeId, NodeSet>,
    precedence: Precedence<'a>,
    timelines: IdVec<GroupId, Timeline>,
}

impl<'a> Bucketer<'a> {
    pub(super) fn new(graph: &'a Graph, params: &'a Params, schedule: &'a Schedule, mode: PassMode) -> Self {
        let before = hiding_edges(graph, schedule);
        let mut positions: IdVec<FxNodeId, usize> = graph.roles.ids().map(|_| 0).collect();
        schedule.order.iter().enumerate().for_each(|(at, &node)| positions[node] = at);
        let mut hides = NodeSet::new(graph.n_nodes());
        let hiding = schedule.overlaps.iter().flat_map(|(_, overlap)| &overlap.hiding);
        hiding.for_each(|&node| hides.insert(node));
        let edges = |node: FxNodeId| graph.reads[node].iter().chain(&before[node]).copied();
        let ancestors = closure(graph.n_nodes(), schedule.order.iter().copied(), edges);
        let mut precedence = Precedence::new(graph, before, mode);
        let mut timelines = IdVec::new();
        for group in (0..graph.n_groups).map(GroupId::from_index) {
            let timeline = Timeline::new(graph, &schedule.order, group, &hides);
            timeline.pairs().for_each(|(earlier, later)| precedence.add(later, earlier));
            timelines.push(timeline);
        }
        let overlaps = &schedule.overlaps;
        Bucketer { graph, params, mode, overlaps, positions, hides, ancestors, precedence, timelines }
    }

    /// The buckets of at least two collectives, in the order of their discovery.
    pub(super) fn find(mut self) -> Vec<Vec<CollectiveId>> {
        let mut buckets = Vec::new();
        for group in self.timelines.ids() {
            let exposed_first =
                self.params.bucket_exposed_first.unwrap_or_else(|| self.gathers_parameters(group));
            for key in self.keys(group) {
                let mut alike: Vec<CollectiveId> = self.graph.collectives.ids().collect();
                alike.retain(|&id| self.graph.collectives[id].key() == Some(key));
                self.sort(&mut alike, exposed_first);
                self.fill(&alike, exposed_first, &mut buckets);
            }
        }
        buckets
    }

    /// The bucket keys of a group, in the order of its collectives.
    fn keys(&self, group: GroupId) -> Vec<BucketKey> {
        let mut keys = Vec::new();
        let members = self.graph.collectives.iter().filter(|(_, collective)| collective.group == group);
        for key in members.filter_map(|(_, collective)| collective.key()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Whether some all-gather of the group derives from exactly one graph input.
    fn gathers_parameters(&self, group: GroupId) -> bool {
        let nothing = NodeSet::new(self.graph.n_nodes());
        self.graph.collectives.iter().any(|(_, collective)| {
            let ancestors = || self.graph.ancestors[collective.start].difference(&nothing);
            collective.group == group
                && collective.op == FxOp::AllGather
                && ancestors().into_iter().filter(|&node| self.graph.is_input(node)).count() == 1
        })
    }

    fn sort(&self, alike: &mut [CollectiveId], exposed_first: bool) {
        let hidden_share = |id: CollectiveId| {
            let (time, exposed) = (self.graph.collectives[id].time, self.overlaps[id].exposed);
            if exposed_first && time > 0.0 { (time - exposed) / time } else { 0.0 }
        };
        alike.sort_by(|&one, &other| {
            let by_share = hidden_share(one).total_cmp(&hidden_share(other));
            by_share.then(self.position(one).cmp(&self.position(other)))
        });
    }

    fn position(&self, id: CollectiveId) -> usize {
        self.positions[self.graph.collectives[id].start]
    }

    /// Puts collectives of one key into buckets.
    fn fill(&mut self, alike: &[CollectiveId], exposed_first: bool, buckets: &mut Vec<Vec<CollectiveId>>) {
        let mut taken: IdVec<CollectiveId, bool> = self.overlaps.ids().map(|_| false).collect();
        for (at, &first) in alike.iter().enumerate() {
            if taken[first] || self.hides_others(first) {
                continue;
            }
            let mut followers = alike[at + 1..].to_vec();
            followers.truncate(self.params.max_coll_distance);
            followers.retain(|&id| {
                let distance = self.position(first).abs_diff(self.position(id));
                !taken[id] && (!exposed_first || distance <= MAX_EXPOSED_DISTANCE)
            });
            let bucket = self.grow(first, &followers);
            bucket.iter().for_each(|&id| taken[id] = true);
            if bucket.len() > 1 {
                buckets.push(bucket);
            }
        }
    }

    /// Opens a bucket with `first` and adds what can join.
    fn grow(&mut self, first: CollectiveId, followers: &[CollectiveId]) -> Vec<CollectiveId> {
        let mut bucket = vec![first];
        let (mut bytes, mut failures) = (self.graph.collectives[first].bytes, 0);
        for &candidate in followers {
            let more = self.graph.collectives[candidate].bytes;
            if bytes + more > MAX_BYTES || failures == MAX_FAILURES {
                break;
            }
            if self.join(&bucket, candidate) {
                bucket.push(candidate);
                bytes += more;
                failures = 0;
            } else {
                failures += 1;
            }
        }
        bucket
    }

    /// Whether a collective or its wait hides another: moving it would expose that one.
    fn hides_others(&self, id: CollectiveId) -> bool {
        let collective = &self.graph.collectives[id];
        self.hides.contains(collective.start) || self.hides.contains(collective.wait)
    }
}
