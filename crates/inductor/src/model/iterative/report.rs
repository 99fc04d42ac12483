//! What the iterative passes report.
//!
//! [`StopReason`] is why the walk of a node through the list ended, in the words of the reference; what limits a transfer
//! in the order reached is `phalanx_schedule::verdict::Limit`.

use phalanx_ir::Id;
use serde::{Serialize, Serializer};

use crate::mode::PassMode;
use crate::model::NodeId;
use crate::model::exposure::Exposure;

/// Why a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It came to the end of the list.
    None,
    /// Its collective is hidden.
    Unexposed,
    /// Two collectives would change their order.
    CollectiveOrdering,
    /// It needs its neighbor or its neighbor needs it.
    DataDependency,
    /// Memory would exceed the budget.
    PeakMemory,
    /// A wait in the group would lose more than the node gains.
    ExposesGroupWaits,
    /// The collective that it would pass would no longer be hidden.
    ExposesCandidateCollective,
    /// It may not sink past a collective.
    AsyncCollectiveAhead,
    /// The wait that it would pass would have to wait longer.
    ExposesCandidateWait,
    /// A collective in the group would lose more than the node gains.
    ExposesGroupCollectives,
}

/// What became of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stat {
    /// Which.
    #[serde(serialize_with = "serialize_index")]
    pub node: NodeId,
    /// The time of its collective.
    pub comm_time: f64,
    /// The time of what hides it in the end.
    pub comp_time: f64,
    /// How much more time the collective took than what hid it, at first; may be negative.
    pub initial_exposed: f64,
    /// The same in the end.
    pub final_exposed: f64,
    /// How many nodes it passed.
    pub moves: usize,
    /// How many nodes came along.
    pub grouped: usize,
    /// Why it stopped.
    pub limit: StopReason,
    /// The peak that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_peak: Option<i64>,
}

impl Stat {
    pub(super) fn new(
        node: NodeId,
        (first, last): (Exposure, Exposure),
        (moves, grouped): (usize, usize),
        stop: Stop,
    ) -> Stat {
        Stat {
            node,
            comm_time: last.comm,
            comp_time: last.comp,
            initial_exposed: first.comm - first.comp,
            final_exposed: last.comm - last.comp,
            moves,
            grouped,
            limit: stop.limit,
            limit_peak: stop.peak,
        }
    }
}

fn serialize_index<S: Serializer>(node: &NodeId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(node.index() as u64)
}

/// What a pass made of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterative {
    /// The new order.
    pub order: Vec<NodeId>,
    /// One for each node treated, in the order of treatment.
    pub stats: Vec<Stat>,
    /// How many nodes have other levels of memory than the pass believes; none in [`PassMode::Fixed`].
    pub drift: usize,
}

impl Iterative {
    /// By how much all exposures together have shrunk.
    pub fn improvement(&self, mode: PassMode) -> f64 {
        // D16: the reference counts what is hidden more than once as a gain.
        let exposed = |time: f64| if mode == PassMode::Fixed { time.max(0.0) } else { time };
        self.stats.iter().map(|stat| exposed(stat.initial_exposed) - exposed(stat.final_exposed)).sum()
    }
}

/// What is wrong with the memory that a pass keeps up to date.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum DriftError {
    /// It is not that of the order reached.
    #[error("after the moves of {node} {nodes} nodes have other levels than computed from scratch")]
    Levels { node: NodeId, nodes: usize },
    /// It is above what is allowed.
    #[error("after the moves of {node} the peak is {peak}; it may be {allowed}")]
    Peak { node: NodeId, peak: i64, allowed: i64 },
}

/// Why a node goes no further.
pub(super) struct Stop {
    limit: StopReason,
    peak: Option<i64>,
}

impl From<StopReason> for Stop {
    fn from(limit: StopReason) -> Stop {
        Stop { limit, peak: None }
    }
}

impl Stop {
    pub fn peak(peak: i64) -> Stop {
        Stop { limit: StopReason::PeakMemory, peak: Some(peak) }
    }
}
