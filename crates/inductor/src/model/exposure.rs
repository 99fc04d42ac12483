//! How much of a collective's time nothing hides.
//!
//! A collective runs from its launch until a node needs it; the times of what lies between hide it. The reference
//! looks forward from a collective and backward from a wait, by two rules that disagree. With its defects repaired there
//! is one rule: the collectives of a process group run in order on one stream, so that the window of a collective ends
//! with the first node that needs it or a later one of its group. Compute is counted for every collective in flight.

use phalanx_ir::IdVec;

use super::facts::Facts;
use super::list::List;
use super::{LaunchGraph, NodeId};
use crate::cases::ListConfig;
use crate::mode::PassMode;

/// The times of all nodes as the passes see them.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// By node.
    pub of: IdVec<NodeId, f64>,
    /// Whether sums of them are the same in any order, because none is rounded.
    pub are_exact: bool,
}

impl Times {
    /// The costs of `graph` with the multipliers of `config`.
    pub fn new(graph: &LaunchGraph, facts: &Facts, config: &ListConfig) -> Times {
        let time = |node: NodeId| {
            let multiplier = match facts.traits[node].has_collective() {
                true => config.reorder_sink_runtime_estimations_comm_mult,
                false => config.reorder_sink_runtime_estimations_non_comm_mult,
            };
            graph.nodes[node].cost * multiplier
        };
        let of: IdVec<NodeId, f64> = graph.nodes.ids().map(time).collect();
        // Multiples of 1/1024 with a sum below 2^43 need at most 53 bits.
        let is_exact = |time: f64| (time * 1024.0).fract() == 0.0;
        let are_exact = of.iter().all(|(_, &time)| is_exact(time))
            && of.iter().map(|(_, &time)| time).sum::<f64>() < (1_u64 << 43) as f64;
        Times { of, are_exact }
    }
}

/// The exposure of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exposure {
    /// Its own time.
    pub comm: f64,
    /// The time of what hides it.
    pub comp: f64,
    /// The collective; none if a wait has none.
    pub collective: Option<NodeId>,
    /// The node where the window ends; none if that is the end of the list.
    pub end: Option<NodeId>,
}

impl Exposure {
    /// By how much the time that nothing hides grows when what hides it shrinks by `lost`.
    pub fn damage(&self, lost: f64) -> f64 {
        let exposed = self.comm - self.comp;
        (exposed + lost).max(0.0) - exposed.max(0.0)
    }
}

/// Which collectives some wait seen so far belongs to.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    scans: IdVec<NodeId, u32>,
    scan: u32,
}

impl Awaited {
    /// For the nodes of `graph`.
    pub fn new(graph: &LaunchGraph) -> Awaited {
        Awaited { scans: graph.nodes.ids().map(|_| 0).collect(), scan: 0 }
    }
}

/// A look at the list as it is.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub facts: &'a Facts,
    pub times: &'a Times,
    pub list: &'a List,
}

impl Look<'_> {
    /// The exposure of `collective`, looking forward until `enough` says of the hiding time that it need not grow.
    pub fn collective(&self, collective: NodeId, enough: impl Fn(f64) -> bool) -> Exposure {
        let (mut comp, mut end) = (0.0, None);
        for node in self.list.all_after(collective) {
            if self.ends(collective, node) {
                end = Some(node);
                break;
            }
            comp += self.hiding_time(node);
            if enough(comp) {
                break;
            }
        }
        Exposure { comm: self.times.of[collective], comp, collective: Some(collective), end }
    }

    /// The exposure of the collective that `wait` waits for.
    pub fn wait(&self, wait: NodeId, awaited: &mut Awaited) -> Exposure {
        if self.facts.mode != PassMode::Fixed {
            return self.backward(wait, awaited);
        }
        // D4: one rule for both ends.
        match self.awaited_by(wait) {
            Some(collective) => self.collective(collective, |_| false),
            None => Exposure { comm: 0.0, comp: 0.0, collective: None, end: None },
        }
    }

    /// Whether the window of `collective` ends with `node`, which comes later.
    pub fn ends(&self, collective: NodeId, node: NodeId) -> bool {
        let (facts, traits) = (self.facts, self.facts.traits[node]);
        if facts.depends(node, collective) {
            return true;
        }
        // D3: the reference means to look at waits of later collectives, but never does. D25: for it all collectives
        // share one stream.
        if facts.mode != PassMode::Fixed {
            return traits.is_sync;
        }
        let is_later = |&other: &NodeId| {
            facts.traits[other].is_async
                && facts.ranks[other] > facts.ranks[collective]
                && facts.share_stream(other, collective)
        };
        (traits.is_sync && facts.share_stream(node, collective))
            || (traits.has_wait && facts.definers.of(node).iter().any(is_later))
    }

    /// What `node` adds to a window. A blocking collective of another process group hides like compute.
    pub fn hiding_time(&self, node: NodeId) -> f64 {
        let traits = self.facts.traits[node];
        if traits.is_async || (traits.is_sync && self.facts.mode != PassMode::Fixed) {
            return 0.0;
        }
        self.times.of[node]
    }

    /// The sum over the nodes between `collective` and `end`, from the back.
    pub fn sum_back(&self, end: NodeId, collective: Option<NodeId>) -> f64 {
        let nodes = self.list.all_before(end).take_while(|&node| Some(node) != collective);
        nodes.fold(0.0, |comp, node| comp + self.hiding_time(node))
    }

    /// The last collective that `wait` reads from.
    fn awaited_by(&self, wait: NodeId) -> Option<NodeId> {
        let definers = self.facts.definers.of(wait).iter().copied();
        let collectives = definers.filter(|&node| self.facts.traits[node].has_collective());
        collectives.max_by_key(|&node| self.facts.ranks[node])
    }

    /// The reference's look backward from a wait. A nested pair of collective and wait, or a blocking collective,
    /// starts the count anew: the window ends there.
    fn backward(&self, wait: NodeId, awaited: &mut Awaited) -> Exposure {
        awaited.scan += 1;
        let (mut comp, mut end) = (0.0, wait);
        for node in self.list.all_before(wait) {
            let traits = self.facts.traits[node];
            if traits.has_wait {
                for &definer in self.facts.definers.of(node) {
                    awaited.scans[definer] = awaited.scan;
                }
            }
            if !traits.has_collective() {
                comp += self.times.of[node];
            } else if self.facts.depends(wait, node) {
                let comm = self.times.of[node];
                return Exposure { comm, comp, collective: Some(node), end: Some(end) };
            } else if traits.is_sync || awaited.scans[node] == awaited.scan {
                (comp, end) = (0.0, node);
            }
        }
        Exposure { comm: 0.0, comp, collective: None, end: Some(end) }
    }
}
