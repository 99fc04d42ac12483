//! Our own order of a value graph: the search of [`phalanx_schedule::search`] on one lane that computes and one lane a process group.
//!
//! Times are those of [`super::simulate`], bytes those of [`super::memory`]. Inputs and output are no jobs: they take no
//! time and are there, or stay, anyway.

use std::collections::BTreeMap;

use phalanx_ir::{Id, IdVec};
use serde::Serialize;

use super::case::{FxCase, FxCaseError, FxKind};
use super::graph::{FxNodeId, Graph};
use super::memory::{Memory, Storages};
use super::simulate::simulate;
use super::{FxOutcome, run};
use crate::mode::PassMode;
use phalanx_schedule::search::{
    JobId, LaneId, LaneKind, Problem, SearchBuffer, SearchBufferId, SearchJob, SearchLane,
};

/// What was found for a graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FxFound {
    /// The case's nodes.
    pub order: Vec<usize>,
    /// The simulated time of the order.
    pub makespan_ns: f64,
    /// Of which the device neither computes nor runs waits.
    pub exposed_sim_ns: f64,
    /// The most bytes alive; above the limit only if no order was found that keeps it.
    pub rescheduled_peak: u64,
    /// The most bytes that were allowed.
    pub peak_limit: Option<u64>,
    /// No order takes less.
    pub lower_bound_ns: f64,
}

/// The best order found with no more bytes alive than in the faster of two orders: the original one and that of the
/// reference, if it has one. It is never slower than these.
pub fn search(case: &FxCase) -> Result<FxFound, FxCaseError> {
    case.check()?;
    let graph = Graph::new(case);
    let storages = Storages::new(case, &graph);
    let [reference, repaired] = [PassMode::Reference, PassMode::Fixed].map(|mode| planned(case, mode));
    let original = (0..case.nodes.len()).collect();
    let given: Vec<Vec<usize>> = reference.into_iter().chain([original]).collect();
    let price = |order: &Vec<usize>| (makespan(case, &graph, order), peak(&graph, &storages, order));
    let best = given.iter().map(price).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let seeds: Vec<Vec<usize>> = given.into_iter().chain(repaired).collect();
    improve(case, best.map(|(_, peak)| peak), &seeds)
}

/// The best order found with at most `limit` bytes alive, starting from `seeds`, of which those that are no legal orders
/// are passed over.
pub fn improve(case: &FxCase, limit: Option<u64>, seeds: &[Vec<usize>]) -> Result<FxFound, FxCaseError> {
    case.check()?;
    let graph = Graph::new(case);
    let storages = Storages::new(case, &graph);
    let seeds = seeds.iter().filter(|order| is_legal(case, &graph, order));
    let seeds: Vec<Vec<JobId>> =
        seeds.map(|order| order.iter().map(|&node| job_of(node)).collect()).collect();
    let problem = problem(case, &graph, &storages, limit);
    let solution = problem.solve(&seeds).expect("a checked case is a sound problem with legal seeds");
    let order: Vec<usize> = solution.order.iter().map(|job| job.index()).collect();
    let times = simulate(case, &graph, nodes(&graph, &order));
    Ok(FxFound {
        makespan_ns: times.makespan,
        exposed_sim_ns: times.exposed,
        rescheduled_peak: peak(&graph, &storages, &order),
        peak_limit: limit,
        lower_bound_ns: solution.lower_bound,
        order,
    })
}

/// The order of the graph-level scheduler, if it has one.
fn planned(case: &FxCase, mode: PassMode) -> Option<Vec<usize>> {
    match run(case, mode).outcome {
        FxOutcome::Planned(plan) => Some(plan.order),
        FxOutcome::Failed { .. } => None,
    }
}

fn nodes(graph: &Graph, order: &[usize]) -> impl Iterator<Item = FxNodeId> {
    order.iter().map(|&index| FxNodeId::from_index(graph.n_inputs + index))
}

fn job_of(node: usize) -> JobId {
    JobId::from_index(node)
}

fn makespan(case: &FxCase, graph: &Graph, order: &[usize]) -> f64 {
    simulate(case, graph, nodes(graph, order)).makespan
}

fn peak(graph: &Graph, storages: &Storages, order: &[usize]) -> u64 {
    let mut memory = Memory::new(storages);
    for node in nodes(graph, order) {
        memory.step(node);
    }
    memory.peak
}

/// Whether every node is there once and behind all that it reads.
fn is_legal(case: &FxCase, graph: &Graph, order: &[usize]) -> bool {
    let mut seen: IdVec<FxNodeId, bool> = graph.roles.ids().map(|node| graph.is_input(node)).collect();
    order.len() == case.nodes.len()
        && order.iter().all(|&node| node < case.nodes.len())
        && nodes(graph, order).all(|node| {
            let ready = graph.reads[node].iter().all(|&value| seen[value]);
            ready && !std::mem::replace(&mut seen[node], true)
        })
}

/// The problem of ordering the case's nodes with at most `limit` bytes alive; jobs are numbered as the nodes are.
fn problem(case: &FxCase, graph: &Graph, storages: &Storages, limit: Option<u64>) -> Problem {
    let limits = vec![limit.map(|bytes| bytes.min(i64::MAX as u64) as i64)];
    let mut problem = Problem { limits, issued_in_order: true, ..Problem::default() };
    let compute = problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Compute });
    let mut groups: BTreeMap<Option<i64>, LaneId> = BTreeMap::new();
    for (index, node) in case.nodes.iter().enumerate() {
        let id = FxNodeId::from_index(graph.n_inputs + index);
        let reads = graph.reads[id].iter().filter_map(|&value| graph.case_index(value)).map(job_of).collect();
        problem.jobs.push(match node.kind {
            // The device waits before it starts a collective only if another node makes it wait.
            FxKind::Collective => {
                let fresh = || problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Transfers });
                let lane = *groups.entry(node.pg).or_insert_with(fresh);
                SearchJob { behind: reads, ..SearchJob::new(lane, node.runtime_ns) }
            }
            FxKind::Compute | FxKind::Wait => {
                SearchJob { after: reads, ..SearchJob::new(compute, node.runtime_ns) }
            }
        });
    }
    problem.buffers = buffers(case, graph, storages);
    problem
}

/// Every storage, with the nodes that make and read it.
fn buffers(case: &FxCase, graph: &Graph, storages: &Storages) -> IdVec<SearchBufferId, SearchBuffer> {
    let buffer = |node: FxNodeId| {
        let alloc = case.graph_inputs.get(node.index()).map_or(storages.made(node), |input| input.size);
        SearchBuffer {
            device: 0,
            alloc: alloc as i64,
            free: storages.freed(node).unwrap_or(0) as i64,
            from_start: graph.is_input(node),
            to_end: storages.freed(node).is_none(),
            touched_by: graph.case_index(node).map(job_of).into_iter().collect(),
        }
    };
    let mut buffers: IdVec<FxNodeId, SearchBuffer> = graph.roles.ids().map(buffer).collect();
    for node in graph.roles.ids() {
        for &storage in storages.reads(node) {
            buffers[storage].touched_by.extend(graph.case_index(node).map(job_of));
        }
    }
    buffers.into_iter().filter(|buffer| buffer.alloc > 0).collect()
}
