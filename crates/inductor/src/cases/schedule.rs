//! What the passes make of a list.

use phalanx_ir::Id;
use serde_json::{Map, Value, json};

use super::{Answer, CaseError, Keys, ListCase, ListConfig, parse};
use crate::mode::PassMode;
use crate::model::{self, Iterative, LaunchGraph, NodeId};
use crate::search::improve_freely;

type Entry = (&'static str, fn(&LaunchGraph, &ListConfig, PassMode) -> Value);

/// Every key and how it is answered.
const ANSWERS: &[Entry] = &[
    ("memory", memory),
    ("initial", |graph, _, _| Value::Object(times(graph, &graph.order()))),
    ("decide_global_ordering_of_comms", |graph, _, _| links(graph)),
    ("sink_waits", |graph, _, mode| outcome(graph, &model::sink_waits(graph, &graph.order(), mode))),
    ("raise_comms", |graph, _, mode| outcome(graph, &model::raise_comms(graph, &graph.order(), mode))),
    ("reorder_compute_for_overlap", |graph, _, mode| {
        outcome(graph, &model::reorder_compute_for_overlap(graph, &graph.order(), mode))
    }),
    ("reorder_communication_preserving_peak_memory", |graph, config, mode| {
        iterative(
            graph,
            model::reorder_communication_preserving_peak_memory(graph, graph.order(), config, mode),
        )
    }),
    ("sink_waits_iterative", |graph, config, mode| {
        iterative(graph, model::sink_waits_iterative(graph, graph.order(), config, mode))
    }),
    ("simple_overlap", |graph, _, mode| outcome(graph, &model::simple_overlap(graph, graph.order(), mode))),
    ("pipelines", pipelines),
    ("search", |graph, config, _| search(graph, config)),
    ("reorder_for_peak_memory", |graph, _, mode| {
        outcome(graph, &model::reorder_for_peak_memory(graph, &graph.order(), 0, mode).order)
    }),
    ("visualize_overlap", |graph, _, mode| {
        let overlap = model::visualize_overlap(graph, &graph.order(), mode);
        json!({ "est_runtime_ms": overlap.runtime / 1e6, "overlapped_steps": overlap.hidden })
    }),
];

pub(super) fn keys() -> Vec<&'static str> {
    ANSWERS.iter().map(|&(key, _)| key).collect()
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Answer, CaseError> {
    let case: ListCase = parse(line)?;
    let mut graph = case.checked_graph()?;
    if mode == PassMode::Fixed {
        graph.resolve_outputs();
    }
    let wanted = ANSWERS.iter().filter(|(key, _)| keys.has(key));
    Ok(wanted.map(|(key, answer)| ((*key).into(), answer(&graph, &case.config, mode))).collect())
}

/// Several passes in a row.
fn pipelines(graph: &LaunchGraph, config: &ListConfig, mode: PassMode) -> Value {
    let named = in_a_row(graph, config, mode).map(|(name, order)| (name.to_string(), outcome(graph, &order)));
    Value::Object(named.into_iter().collect())
}

fn in_a_row(graph: &LaunchGraph, config: &ListConfig, mode: PassMode) -> [(&'static str, Vec<NodeId>); 3] {
    let reorder =
        |order| model::reorder_communication_preserving_peak_memory(graph, order, config, mode).order;
    let sink = |order| model::sink_waits_iterative(graph, order, config, mode).order;
    let greedy = model::raise_comms(graph, &model::sink_waits(graph, &graph.order(), mode), mode);
    [
        ("recommended", reorder(sink(reorder(graph.order())))),
        ("sink_then_reorder", reorder(sink(graph.order()))),
        ("greedy_then_reorder", reorder(greedy)),
    ]
}

/// Our own order, with no more bytes than the best one that the reference's passes find.
fn search(graph: &LaunchGraph, config: &ListConfig) -> Value {
    let reference = orders(graph, config, PassMode::Reference);
    let makespan = |order: &Vec<NodeId>| graph.simulate(order).makespan;
    let shortest = reference.iter().map(makespan).fold(f64::INFINITY, f64::min);
    let best = reference.iter().filter(|order| makespan(order) <= shortest);
    let limit = best.map(|order| graph.memory(order).peak).min();
    let seeds = [reference.clone(), orders(graph, config, PassMode::Fixed)].concat();
    let found = improve_freely(graph, limit, &seeds);
    let mut value = outcome(graph, &found.order);
    value["peak_limit"] = json!(limit);
    value["lower_bound_ns"] = found.lower_bound.into();
    value
}

/// What every pass makes of a list.
fn orders(graph: &LaunchGraph, config: &ListConfig, mode: PassMode) -> Vec<Vec<NodeId>> {
    let initial = graph.order();
    let mut orders = vec![
        model::sink_waits(graph, &initial, mode),
        model::raise_comms(graph, &initial, mode),
        model::reorder_compute_for_overlap(graph, &initial, mode),
        model::reorder_communication_preserving_peak_memory(graph, graph.order(), config, mode).order,
        model::sink_waits_iterative(graph, graph.order(), config, mode).order,
        model::simple_overlap(graph, graph.order(), mode),
        initial,
    ];
    orders.extend(in_a_row(graph, config, mode).map(|(_, order)| order));
    orders
}

/// What an iterative pass gives, with what it did to each node.
fn iterative(graph: &LaunchGraph, result: Iterative) -> Value {
    let mut value = outcome(graph, &result.order);
    value["stats"] = json!(result.stats);
    value["tracking_drift_nodes"] = result.drift.into();
    value
}

fn memory(graph: &LaunchGraph, _: &ListConfig, mode: PassMode) -> Value {
    let order = graph.order();
    let memory = graph.memory(&order);
    let steps: Vec<_> = memory.steps.iter().map(|step| [step.post_alloc, step.post_free]).collect();
    json!({
        "peak": memory.peak,
        "post_alloc_free": steps,
        "estimate_peak_memory_legacy": graph.older_peak(&order, mode),
    })
}

fn links(graph: &LaunchGraph) -> Value {
    let links = graph.collective_links().into_iter().map(|(leaf, buf, by)| {
        json!([leaf.index(), graph.bufs[buf].name, by.map(|by| &graph.bufs[by].name)])
    });
    links.collect()
}

/// What can be said of an order: its times and its peak, and what it keeps.
fn outcome(graph: &LaunchGraph, order: &[NodeId]) -> Value {
    let mut outcome = times(graph, order);
    let comms = |order: &[NodeId]| -> Vec<NodeId> {
        order.iter().copied().filter(|&node| graph.contains_collective(node)).collect()
    };
    outcome.insert("order".into(), order.iter().map(|node| node.index()).collect());
    outcome.insert("peak_after".into(), graph.memory(order).peak.into());
    outcome.insert("valid".into(), graph.is_valid(order, false).into());
    outcome.insert("fake_deps_respected".into(), graph.is_valid(order, true).into());
    outcome.insert("collective_order_preserved".into(), comms(order).is_sorted().into());
    Value::Object(outcome)
}

fn times(graph: &LaunchGraph, order: &[NodeId]) -> Map<String, Value> {
    let times = graph.simulate(order);
    Map::from_iter([
        ("makespan_ns".into(), times.makespan.into()),
        ("exposed_ns".into(), times.exposed.into()),
    ])
}
