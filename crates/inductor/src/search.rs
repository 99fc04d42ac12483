//! One device's list as a problem: its nodes are the units, its leaves the jobs of two lanes.
//!
//! A collective starts when both lanes have come to it, as in [`LaunchGraph::simulate`]; bytes are those of [`LaunchGraph::memory`].

use phalanx_ir::{Id, IdVec};
use phalanx_schedule::search::{
    JobId, JobVerdict, LaneId, LaneKind, Problem, SearchBuffer, SearchJob, SearchLane, Solution,
};

use crate::model::{BufId, LaunchGraph, LaunchKind, LeafId, NodeId};

/// What became of the dependencies that only order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fakes {
    /// The order keeps them.
    Kept,
    /// The order may break them.
    Dropped,
}

/// What was found for a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListFound {
    /// The nodes.
    pub order: Vec<NodeId>,
    /// Nanoseconds until both streams are done.
    pub makespan: f64,
    /// The most bytes alive; above the limit only if no order was found that keeps it.
    pub peak: i64,
    /// No order takes less.
    pub lower_bound: f64,
    /// How many orders were simulated.
    pub tried: usize,
    /// Whether it keeps the dependencies that only order.
    pub fakes: Fakes,
    /// What became of every collective, in order; the job's number is that of the leaf.
    pub verdicts: Vec<JobVerdict>,
}

/// The best order found for a list with at most `limit` bytes alive, starting from `seeds`, of which those that are no
/// legal orders are passed over. Fake dependencies are kept, unless a seed that breaks them is better than every order
/// found that keeps them.
pub fn improve(graph: &LaunchGraph, limit: Option<i64>, seeds: &[Vec<NodeId>]) -> ListFound {
    let kept = solve(graph, limit, seeds, Fakes::Kept);
    let known = |seed: &&Vec<NodeId>| seed.iter().all(|&node| graph.nodes.get(node).is_some());
    let free = |seed: &&Vec<NodeId>| graph.is_valid(seed, false) && !graph.is_valid(seed, true);
    let is_better = |seed: &Vec<NodeId>| {
        let (makespan, peak) = (graph.simulate(seed).makespan, graph.memory(seed).peak);
        (excess(peak, limit), makespan) < (excess(kept.peak, limit), kept.makespan)
    };
    let is_beaten = seeds.iter().filter(known).filter(free).any(is_better);
    if is_beaten { loosen(graph, limit, seeds, kept) } else { kept }
}

/// The same, but fake dependencies are broken wherever that gives a shorter order: for lists whose order is decided once
/// for all devices, so that even collectives may pass each other.
pub fn improve_freely(graph: &LaunchGraph, limit: Option<i64>, seeds: &[Vec<NodeId>]) -> ListFound {
    let kept = solve(graph, limit, seeds, Fakes::Kept);
    loosen(graph, limit, seeds, kept)
}

/// A better order than `kept` that breaks fake dependencies, or `kept` if none is found.
fn loosen(graph: &LaunchGraph, limit: Option<i64>, seeds: &[Vec<NodeId>], kept: ListFound) -> ListFound {
    let seeds: Vec<Vec<NodeId>> = seeds.iter().chain([&kept.order]).cloned().collect();
    let free = solve(graph, limit, &seeds, Fakes::Dropped);
    let tried = kept.tried + free.tried;
    let is_better = (excess(free.peak, limit), free.makespan) < (excess(kept.peak, limit), kept.makespan);
    let lower_bound = free.lower_bound;
    ListFound { tried, lower_bound, ..if is_better { free } else { kept } }
}

fn excess(peak: i64, limit: Option<i64>) -> i64 {
    limit.map_or(0, |limit| peak.saturating_sub(limit).max(0))
}

fn solve(graph: &LaunchGraph, limit: Option<i64>, seeds: &[Vec<NodeId>], fakes: Fakes) -> ListFound {
    let problem = problem(graph, limit, fakes);
    let jobs = |seed: &Vec<NodeId>| -> Option<Vec<JobId>> {
        let nodes = seed.iter().map(|&node| graph.nodes.get(node)).collect::<Option<Vec<_>>>()?;
        Some(nodes.into_iter().flat_map(|node| node.leaves.clone()).map(JobId::from_index).collect())
    };
    let seeds: Vec<Vec<JobId>> = seeds.iter().filter_map(jobs).collect();
    let solution =
        problem.solve_from_legal(&seeds).expect("a graph is topological, and its times are finite");
    let Solution { order, makespan, peaks, lower_bound, tried, verdicts, .. } = solution;
    let mut order: Vec<NodeId> =
        order.iter().map(|job| graph.leaves[LeafId::from_index(job.index())].node).collect();
    order.dedup();
    ListFound { order, makespan, peak: peaks[0], lower_bound, tried, fakes, verdicts }
}

/// The problem of ordering the nodes of `graph` with at most `limit` bytes alive.
fn problem(graph: &LaunchGraph, limit: Option<i64>, fakes: Fakes) -> Problem {
    let mut problem = Problem { limits: vec![limit], issued_in_order: true, ..Problem::default() };
    let compute = problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Compute });
    let transfer = problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Transfers });
    let definers = definers(graph);
    for leaf in graph.leaves.ids() {
        problem.jobs.push(job(graph, &definers, leaf, [compute, transfer], fakes));
    }
    for (id, buf) in graph.bufs.iter() {
        let users =
            buf.users.iter().flat_map(|&node| graph.nodes[node].leaves.clone()).map(JobId::from_index);
        problem.buffers.push(SearchBuffer {
            device: 0,
            alloc: buf.alloc as i64,
            free: buf.free as i64,
            from_start: buf.definer.is_none(),
            // An input that no node uses is not there at all.
            to_end: buf.is_output && (buf.definer.is_some() || !buf.users.is_empty()),
            touched_by: definers[id].into_iter().chain(users).collect(),
        });
    }
    problem
}

/// By buffer: the job that defines it.
fn definers(graph: &LaunchGraph) -> IdVec<BufId, Option<JobId>> {
    let mut definers: IdVec<BufId, Option<JobId>> = graph.bufs.ids().map(|_| None).collect();
    for (id, leaf) in graph.leaves.iter() {
        for &buf in &leaf.outputs {
            definers[buf] = Some(JobId::from_index(id.index()));
        }
    }
    definers
}

fn job(
    graph: &LaunchGraph,
    definers: &IdVec<BufId, Option<JobId>>,
    id: LeafId,
    lanes: [LaneId; 2],
    fakes: Fakes,
) -> SearchJob {
    let leaf = &graph.leaves[id];
    let fakes: &[BufId] = if fakes == Fakes::Kept { &leaf.fakes } else { &[] };
    // A new name for a storage comes behind the storage, whether or not its definer reads it.
    let renamed = leaf.outputs.iter().filter_map(|&buf| graph.bufs[buf].renames);
    SearchJob {
        lane: lanes[usize::from(leaf.kind.is_collective())],
        cost: leaf.cost,
        unit: Some(leaf.node.index() as u32),
        after: leaf.deps.iter().filter_map(|&buf| definers[buf]).collect(),
        behind: fakes.iter().copied().chain(renamed).filter_map(|buf| definers[buf]).collect(),
        blocks: leaf.kind == LaunchKind::SyncCollective,
    }
}
