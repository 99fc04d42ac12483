//! The search on graphs of values, against the orders of the reference's graph-level scheduler.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::search_cases::graphs::{GraphCase, graphs};
use crate::search_cases::lists::ROUNDING;
use phalanx_inductor::fx::{self, FxKind, FxValue};
use serde_json::json;

/// The nodes that a node reads, inputs left out.
fn reads(case: &fx::FxCase, node: usize) -> impl Iterator<Item = usize> {
    case.nodes[node].reads.iter().filter_map(|value| match value {
        FxValue::Node(index) => Some(*index),
        FxValue::Input(_) => None,
    })
}

/// Whether every node is there once and behind all that it reads.
fn is_valid(case: &fx::FxCase, order: &[usize]) -> bool {
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(at, &node)| (node, at)).collect();
    let nodes = 0..case.nodes.len();
    order.len() == case.nodes.len()
        && nodes.clone().all(|node| place.contains_key(&node))
        && nodes.into_iter().all(|node| reads(case, node).all(|read| place[&read] < place[&node]))
}

/// The time of an order on one device stream and one stream a process group.
fn makespan(case: &fx::FxCase, order: &[usize]) -> f64 {
    let mut groups = BTreeMap::new();
    let (mut device, mut ends) = (0.0f64, vec![0.0f64; case.nodes.len()]);
    for &node in order {
        let entry = &case.nodes[node];
        if entry.kind == FxKind::Collective {
            let group = groups.entry(entry.pg).or_insert(0.0f64);
            *group = group.max(device) + entry.runtime_ns;
            ends[node] = *group;
        } else {
            device = reads(case, node).map(|read| ends[read]).fold(device, f64::max) + entry.runtime_ns;
        }
    }
    ends.into_iter().fold(device, f64::max)
}

/// The most bytes alive: every storage from its node, or the start, to the last that reads it under any of its names.
fn peak(case: &fx::FxCase, order: &[usize]) -> u64 {
    let storage = |value: &FxValue| match value {
        FxValue::Node(node) if case.nodes[*node].kind == FxKind::Wait => case.nodes[*node].reads[0].clone(),
        _ => value.clone(),
    };
    let place = |node: usize| order.iter().position(|&other| other == node).unwrap();
    // Bytes that begin and end to live before each place.
    let mut changes = vec![[0_i64; 2]; order.len() + 1];
    let inputs = case.graph_inputs.iter().map(|input| (FxValue::Input(input.name.clone()), input.size));
    let made = (0..case.nodes.len()).filter(|&node| case.nodes[node].kind != FxKind::Wait);
    let made = made.map(|node| (FxValue::Node(node), case.nodes[node].size));
    for (value, size) in inputs.chain(made) {
        let begin = if let FxValue::Node(node) = value { place(node) } else { 0 };
        let readers =
            (0..order.len()).filter(|&node| case.nodes[node].reads.iter().any(|read| storage(read) == value));
        let stays = case.graph_outputs.iter().any(|output| storage(output) == value)
            || case
                .graph_inputs
                .iter()
                .any(|input| FxValue::Input(input.name.clone()) == value && !input.releasable);
        changes[begin][0] += size as i64;
        if let (Some(last), false) = (readers.map(place).max(), stays) {
            changes[last + 1][1] += size as i64;
        }
    }
    let mut live = 0;
    let levels = changes.into_iter().map(|[begin, end]| {
        live += begin - end;
        live
    });
    levels.max().unwrap() as u64
}

/// The order is legal and is what it says it is; nothing beats the bound.
fn check(case: &GraphCase, found: &fx::FxFound) {
    assert!(is_valid(&case.graph, &found.order), "{}", case.id);
    assert_eq!(found.makespan_ns, makespan(&case.graph, &found.order), "{}", case.id);
    assert_eq!(found.rescheduled_peak, peak(&case.graph, &found.order), "{}", case.id);
    assert!(found.lower_bound_ns <= found.makespan_ns * ROUNDING, "{}", case.id);
}

/// The reference has one order a graph; two graphs are faster as they were.
#[test]
fn no_graph_takes_longer_or_more_bytes_than_with_the_reference() {
    let (mut ours, mut best, mut shorter) = (0.0, 0.0, 0);
    for case in graphs() {
        let found = fx::search(&case.graph).unwrap();
        check(&case, &found);
        let is_best = case.makespan <= case.initial_makespan;
        let original: Vec<usize> = (0..case.graph.nodes.len()).collect();
        let limit = peak(&case.graph, if is_best { &case.reference } else { &original });
        assert!(found.rescheduled_peak <= limit, "{}: {} > {limit}", case.id, found.rescheduled_peak);
        assert!(!is_best || case.peak.is_none_or(|peak| peak == limit), "{}", case.id);
        assert!(found.makespan_ns <= case.best() * ROUNDING, "{}", case.id);
        shorter += usize::from(found.makespan_ns * ROUNDING < case.best());
        ours += found.exposed_sim_ns;
        best += case.best_exposed();
    }
    assert!(shorter >= 60, "{shorter}");
    assert!(ours <= 0.825 * best, "{ours} of {best}");
}

#[test]
fn the_order_of_the_reference_is_matched_at_its_peak_without_seeds() {
    for case in graphs() {
        let limit = peak(&case.graph, &case.reference);
        let found = fx::improve(&case.graph, Some(limit), &[]).unwrap();
        check(&case, &found);
        assert!(found.rescheduled_peak <= limit, "{}: {} > {limit}", case.id, found.rescheduled_peak);
        assert!(found.makespan_ns <= case.makespan * ROUNDING, "{}", case.id);
    }
}

/// Two collectives that read the same input run beside each other in two groups, one after the other in one.
fn two_collectives(second_group: i64) -> fx::FxCase {
    let collective = |pg: i64| {
        json!({"kind": "collective", "runtime_ns": 5.0, "reads": ["x"], "size": 64,
               "op": "all_reduce", "pg": pg, "latency_ns": 1.0})
    };
    let wait = |start: usize| json!({"kind": "wait", "runtime_ns": 0.0, "reads": [start], "size": 64});
    serde_json::from_value(json!({
        "params": {"max_compute_pre_fetch": 200, "compute_overlap_multipler": 1.0, "max_coll_distance": 200,
                   "prioritize_bucketing_during_scheduling": true},
        "graph_inputs": [{"name": "x", "size": 10, "releasable": true}],
        "graph_outputs": [1, 3],
        "nodes": [collective(0), wait(0), collective(second_group), wait(2)],
    }))
    .unwrap()
}

#[test]
fn every_process_group_has_a_lane() {
    for (group, makespan) in [(0, 10.0), (7, 5.0)] {
        let found = fx::search(&two_collectives(group)).unwrap();
        assert_eq!((found.makespan_ns, found.lower_bound_ns), (makespan, makespan));
        assert_eq!(found.exposed_sim_ns, makespan);
        // The input goes after its last reader, a collective shares its bytes with the wait.
        assert_eq!(found.rescheduled_peak, 138);
    }
}

#[test]
fn seeds_that_are_no_orders_are_passed_over() {
    let seeds = [vec![1, 0, 2, 3], vec![0, 1, 2], vec![0, 0, 1, 2], vec![0, 1, 2, 9], vec![2, 3, 0, 1]];
    let found = fx::improve(&two_collectives(0), None, &seeds).unwrap();
    assert!(is_valid(&two_collectives(0), &found.order));
    assert_eq!(found.peak_limit, None);
    let empty = fx::FxCase { nodes: Vec::new(), graph_outputs: Vec::new(), ..two_collectives(0) };
    let found = fx::search(&empty).unwrap();
    assert_eq!((found.order.len(), found.makespan_ns, found.rescheduled_peak), (0, 0.0, 10));
}
