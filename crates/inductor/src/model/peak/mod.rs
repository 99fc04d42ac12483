//! Orders that need little memory: three list schedules beside the given order, and the choice among them.
//!
//! All are valid orders, fake dependencies included. They are judged by the reference's older estimate of the peak.

mod least;
mod lists;

pub use least::least_peak_first;
pub use lists::{breadth_first, depth_first};

use super::edges::Lists;
use super::{BufId, LaunchGraph, NodeId};
use crate::mode::PassMode;

/// How an order came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// It was given.
    Given,
    /// The node that lifts memory least comes first.
    LeastPeakFirst,
    /// Nodes come in the order of what they depend on.
    BreadthFirst,
    /// Nodes come right behind what they depend on.
    DepthFirst,
}

/// An order and the peak by which it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakOrder {
    /// How it came about.
    pub method: Method,
    /// The nodes.
    pub order: Vec<NodeId>,
    /// The older estimate of its peak.
    pub peak: i64,
}

/// The order with the smallest peak; the given one, then the first tried, if some are equal.
///
/// `threshold` is that of [`least_peak_first`].
pub fn reorder_for_peak_memory(
    graph: &LaunchGraph,
    order: &[NodeId],
    threshold: u64,
    mode: PassMode,
) -> PeakOrder {
    let orders = [
        (Method::Given, order.to_vec()),
        (Method::LeastPeakFirst, least_peak_first(graph, order, threshold)),
        (Method::BreadthFirst, breadth_first(graph, order)),
        (Method::DepthFirst, depth_first(graph, order)),
    ];
    let judged = orders.map(|(method, order)| {
        let peak = graph.older_peak(&order, mode);
        PeakOrder { method, order, peak }
    });
    let [given, others @ ..] = judged;
    others.into_iter().fold(given, |best, other| if other.peak < best.peak { other } else { best })
}

impl LaunchGraph {
    /// The peak of `order` by the reference's older estimate.
    ///
    /// D17: there, what outlives the list is taken off at the first step as if it were never there. Repaired, the
    /// estimate is the peak of [`LaunchGraph::memory`].
    pub fn older_peak(&self, order: &[NodeId], mode: PassMode) -> i64 {
        let peak = self.memory(order).peak;
        match mode {
            PassMode::Reference => (peak - self.output_bytes()).max(0),
            PassMode::Newer | PassMode::Fixed => peak,
        }
    }

    /// Bytes that outlive the list; inputs that no node reads do not count.
    fn output_bytes(&self) -> i64 {
        let counts = self.bufs.iter().filter(|(_, buf)| buf.definer.is_some() || !buf.users.is_empty());
        counts.filter(|(_, buf)| buf.is_output).map(|(_, buf)| buf.free as i64).sum()
    }

    /// By node, the buffers whose life it prolongs.
    fn uses(&self) -> Lists<BufId> {
        let pairs = || self.bufs.iter().flat_map(|(id, buf)| buf.users.iter().map(move |&user| (user, id)));
        Lists::collect(self.nodes.len(), pairs)
    }

    /// Bytes that a node adds.
    fn added(&self, node: NodeId) -> i64 {
        self.nodes[node].outputs.iter().map(|&buf| self.bufs[buf].alloc as i64).sum()
    }
}
