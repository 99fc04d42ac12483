//! The passes that move collectives and waits step by step, against results of the reference.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use phalanx_inductor::cases::ListCase;
use phalanx_inductor::mode::PassMode;
use phalanx_inductor::model::{Iterative, IterativePass, LaunchGraph, NodeId, simple_overlap};
use phalanx_ir::Id;
use serde_json::{Value, json};

/// A list with what the reference makes of it.
struct Case {
    id: String,
    list: ListCase,
    graph: LaunchGraph,
    expected: Value,
    newer: Value,
}

fn cases() -> impl Iterator<Item = Case> {
    let lines = BufReader::new(GzDecoder::new(&include_bytes!("data/lists.jsonl.gz")[..])).lines();
    let cases = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    cases.filter(|case| case["type"] == "schedule").map(|mut case| {
        let list: ListCase = serde_json::from_value(case.clone()).unwrap();
        let graph = list.graph().unwrap();
        let (expected, newer) = (case["expected"].take(), case["expected_newer"].take());
        Case { id: case["id"].to_string(), list, graph, expected, newer }
    })
}

impl Case {
    fn run(&self, passes: &[IterativePass], mode: PassMode) -> Iterative {
        let first = Iterative { order: self.graph.order(), stats: Vec::new(), drift: 0 };
        passes.iter().fold(first, |before, pass| pass.run(&self.graph, before.order, &self.list.config, mode))
    }

    fn assert_order(&self, order: &[NodeId], expected: &Value) {
        let found: Vec<_> = order.iter().map(|node| node.index()).collect();
        assert_eq!(json!(found), expected["order"], "{}", self.id);
        assert_eq!(json!(self.graph.memory(order).peak), expected["peak_after"], "{}", self.id);
    }

    fn assert_result(&self, found: &Iterative, expected: &Value) {
        let stats = expected["stats"].as_array().unwrap();
        assert_eq!(found.stats.len(), stats.len(), "{}", self.id);
        for (found, expected) in found.stats.iter().zip(stats) {
            assert_close(&serde_json::to_value(found).unwrap(), expected, &self.id);
        }
        self.assert_order(&found.order, expected);
        assert_eq!(json!(found.drift), expected["tracking_drift_nodes"], "{}", self.id);
    }
}

/// The same keys; times up to rounding, the rest exactly.
fn assert_close(found: &Value, expected: &Value, id: &str) {
    assert_eq!(found.as_object().unwrap().len(), expected.as_object().unwrap().len(), "{id}: {found}");
    let scale = ["comm_time", "comp_time"].map(|key| expected[key].as_f64().unwrap());
    for (key, expected) in expected.as_object().unwrap() {
        match expected.as_f64() {
            Some(time) if key.ends_with("time") || key.ends_with("exposed") => {
                let error = (found[key].as_f64().unwrap() - time).abs();
                assert!(error <= 1e-9 * (scale[0] + scale[1]), "{id} {key}: {found} {expected}");
            }
            _ => assert_eq!(&found[key], expected, "{id} {key}: {found}"),
        }
    }
}

#[test]
fn collectives_rise_as_in_the_reference() {
    for case in cases() {
        let found = case.run(&[IterativePass::Reorder], PassMode::Reference);
        case.assert_result(&found, &case.expected["reorder_communication_preserving_peak_memory"]);
    }
}

#[test]
fn waits_sink_as_in_the_reference() {
    for case in cases() {
        let expected = &case.expected["sink_waits_iterative"];
        case.assert_result(&case.run(&[IterativePass::Sink], PassMode::Reference), expected);
        let changed = case.newer["changed"].get("sink_waits_iterative");
        case.assert_result(&case.run(&[IterativePass::Sink], PassMode::Newer), changed.unwrap_or(expected));
    }
}

#[test]
fn passes_in_a_row_give_what_the_reference_gives() {
    use IterativePass::{Reorder, Sink};
    for case in cases() {
        for (name, passes) in
            [("recommended", &[Reorder, Sink, Reorder][..]), ("sink_then_reorder", &[Sink, Reorder])]
        {
            let expected = &case.expected["pipelines"][name];
            case.assert_order(&case.run(passes, PassMode::Reference).order, expected);
            let changed = case.newer["changed"].get("pipelines").and_then(|changed| changed.get(name));
            case.assert_order(&case.run(passes, PassMode::Newer).order, changed.unwrap_or(expected));
        }
    }
}

#[test]
fn overlap_without_times_is_that_of_the_reference() {
    for case in cases() {
        let found = simple_overlap(&case.graph, case.graph.order(), PassMode::Newer);
        case.assert_order(&found, &case.newer["simple_overlap"]);
    }
}

#[test]
fn repaired_passes_keep_memory_collectives_and_dependencies_of_the_reference_lists() {
    for case in cases() {
        for pass in [IterativePass::Reorder, IterativePass::Sink] {
            let found = pass.run_checked(&case.graph, case.graph.order(), &case.list.config, PassMode::Fixed);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.id));
            assert!(case.graph.is_valid(&found.order, true), "{}", case.id);
            assert_eq!(found.drift, 0, "{}", case.id);
        }
        let found = simple_overlap(&case.graph, case.graph.order(), PassMode::Fixed);
        assert!(case.graph.is_valid(&found, true), "{}", case.id);
    }
}
