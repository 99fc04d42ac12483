//! The reference's graph-level overlap scheduler: which order hides communication behind computation, and which
//! collectives then become one.
//!
//! [`run`] schedules the graph of a [`FxCase`] and reports order, hidden times, memory, buckets and a simulated run. In
//! [`PassMode::Reference`] every decision equals the reference's, its defects E1, E2, E5, E6 and E7 included; in
//! [`PassMode::Fixed`] these are repaired. A comment at each place names the defect. The graph is not rewritten.
//! [`search`] finds an order of our own.

mod bits;
mod bucket;
mod case;
mod graph;
mod heap;
mod memory;
mod order;
mod prefetch;
mod ready;
mod schedule;
mod search;
mod simulate;

pub use case::{FxCase, FxCaseError, FxKind, FxNode, FxOp, FxValue, Input, Params};
pub use search::{FxFound, improve, search};

use phalanx_ir::Id;
use serde::{Serialize, Serializer};

use crate::mode::PassMode;
use bucket::Bucketer;
use graph::{CollectiveId, FxNodeId, Graph};
use memory::{Baseline, Storages};
use schedule::{Schedule, Scheduler};

/// What came out for a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FxAnswer {
    /// The case's nodes in the order of the scheduler; empty if the case is malformed.
    pub scheduled: Vec<usize>,
    /// The rest, or why there is none.
    #[serde(flatten)]
    pub outcome: FxOutcome,
}

/// What follows from a schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FxOutcome {
    /// The schedule meets its own constraints.
    Planned(Box<FxPlan>),
    /// There is no plan.
    Failed {
        /// Why.
        #[serde(serialize_with = "as_text")]
        error: RunError,
    },
}

/// Why a case has no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum RunError {
    /// The constraints that are to keep collectives hidden have a cycle; only in [`PassMode::Reference`].
    #[error("cyclic_extra_deps")]
    CyclicExtraDeps,
    /// The case cannot be scheduled.
    #[error(transparent)]
    Malformed(#[from] FxCaseError),
}

/// An order with what it hides and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FxPlan {
    /// The schedule sorted stably under the constraints that keep collectives hidden.
    pub order: Vec<usize>,
    /// Every collective that is waited for, in the order of the first waits.
    pub collectives: Vec<Hidden>,
    /// Time of windows that no group could use.
    pub wasted_compute_ns: f64,
    /// The memory of both orders; absent if memory is not limited.
    #[serde(flatten)]
    pub peaks: Option<FxPeaks>,
    /// Collectives to merge, in the order of their discovery.
    pub buckets: Vec<Vec<usize>>,
    /// The simulated time of the order.
    pub makespan_ns: f64,
    /// Of which the device neither computes nor runs waits.
    pub exposed_sim_ns: f64,
    /// The simulated time of the original order.
    pub initial_makespan_ns: f64,
}

/// How far a collective is hidden.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hidden {
    /// The node that starts it.
    pub node: usize,
    /// What it sends and receives.
    pub size_bytes: u64,
    /// Its time that nothing hides.
    pub exposed_ns: f64,
    /// The nodes that hide it, in scheduled order.
    pub hiding: Vec<usize>,
}

/// Most bytes alive at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FxPeaks {
    /// In the original order.
    pub original_peak: u64,
    /// What the schedule tried to stay below.
    pub allowed_peak: u64,
    /// In the new order.
    pub rescheduled_peak: u64,
}

/// Schedules a case and finds its buckets.
///
/// ```
/// use phalanx_inductor::{fx, mode::PassMode};
///
/// let case: fx::FxCase = serde_json::from_str(r#"{
///     "params": {"max_compute_pre_fetch": 200, "compute_overlap_multipler": 1.0, "max_coll_distance": 200,
///                "prioritize_bucketing_during_scheduling": true},
///     "graph_inputs": [{"name": "x", "size": 64, "releasable": true}],
///     "graph_outputs": [3],
///     "nodes": [
///         {"kind": "compute", "runtime_ns": 9.0, "reads": ["x"], "size": 64, "gemm_like": true},
///         {"kind": "collective", "runtime_ns": 5.0, "reads": ["x"], "size": 64,
///          "op": "all_reduce", "pg": 0, "latency_ns": 1.0},
///         {"kind": "wait", "runtime_ns": 0.0, "reads": [1], "size": 64},
///         {"kind": "compute", "runtime_ns": 9.0, "reads": [0, 2], "size": 64, "gemm_like": true}
///     ]
/// }"#)?;
/// case.check()?;
/// assert_eq!(fx::run(&case, PassMode::Fixed).scheduled, [1, 0, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run(case: &FxCase, mode: PassMode) -> FxAnswer {
    if let Err(error) = case.check() {
        let outcome = FxOutcome::Failed { error: error.into() };
        return FxAnswer { scheduled: Vec::new(), outcome };
    }
    let graph = Graph::new(case);
    let storages = Storages::new(case, &graph);
    let baseline = Baseline::new(&graph, &storages, &case.params, mode);
    let schedule = Scheduler::new(&graph, &case.params, (&storages, &baseline), mode).run();
    let scheduled = case_indices(&graph, &schedule.order);
    if !order::is_consistent(&graph, &schedule) {
        let outcome = FxOutcome::Failed { error: RunError::CyclicExtraDeps };
        return FxAnswer { scheduled, outcome };
    }
    let buckets = Bucketer::new(&graph, &case.params, &schedule, mode).find();
    let outcome = FxOutcome::Planned(Box::new(plan(case, &graph, (&baseline, &schedule), &buckets)));
    FxAnswer { scheduled, outcome }
}

fn plan(
    case: &FxCase,
    graph: &Graph,
    (baseline, schedule): (&Baseline, &Schedule),
    buckets: &[Vec<CollectiveId>],
) -> FxPlan {
    let start = |&id: &CollectiveId| graph.collectives[id].start.index() - graph.n_inputs;
    let after = simulate::simulate(case, graph, schedule.order.iter().copied());
    let collectives = schedule.overlaps.iter().map(|(id, overlap)| Hidden {
        node: start(&id),
        size_bytes: graph.collectives[id].bytes,
        exposed_ns: overlap.exposed * 1e6,
        hiding: case_indices(graph, &overlap.hiding),
    });
    FxPlan {
        order: case_indices(graph, &schedule.order),
        collectives: collectives.collect(),
        wasted_compute_ns: schedule.wasted * 1e6,
        peaks: baseline.allowed.map(|allowed_peak| FxPeaks {
            original_peak: baseline.peak,
            allowed_peak,
            rescheduled_peak: schedule.peak,
        }),
        buckets: buckets.iter().map(|bucket| bucket.iter().map(start).collect()).collect(),
        makespan_ns: after.makespan,
        exposed_sim_ns: after.exposed,
        initial_makespan_ns: simulate::simulate(case, graph, graph.roles.ids()).makespan,
    }
}

/// The case's indices of nodes, without inputs and output.
fn case_indices(graph: &Graph, nodes: &[FxNodeId]) -> Vec<usize> {
    nodes.iter().filter_map(|&node| graph.case_index(node)).collect()
}

fn as_text<S: Serializer>(error: &RunError, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(error)
}
