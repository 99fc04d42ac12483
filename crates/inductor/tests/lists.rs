//! The passes against results of the reference, in both of its versions.
#![allow(clippy::unwrap_used)]

use crate::golden::{answered, cases, compare};
use phalanx_inductor::mode::PassMode;
use serde_json::Value;

const FILE: &[u8] = include_bytes!("data/lists.jsonl.gz");

/// Keys that an answer must have, by kind of case.
fn keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "schedule" => &[
            "memory",
            "initial",
            "decide_global_ordering_of_comms",
            "sink_waits",
            "raise_comms",
            "reorder_compute_for_overlap",
            "reorder_communication_preserving_peak_memory",
            "sink_waits_iterative",
            "pipelines",
            "visualize_overlap",
        ],
        "align" => &["aligned_runtime_ns"],
        _ => &["new_order", "fake_deps"],
    }
}

#[test]
fn every_answer_is_that_of_the_reference() {
    let mut count = 0;
    for case in cases(FILE) {
        let found = answered(&case, PassMode::Reference);
        let present = |key: &&str| found.get(key).is_some();
        assert!(keys(case["type"].as_str().unwrap()).iter().all(present), "{}", case["id"]);
        assert_eq!(found["id"], case["id"]);
        compare(&found, &case["expected"], case["id"].as_str().unwrap());
        count += 1;
    }
    assert_eq!(count, 220);
}

/// `changed` over `expected`.
fn merge(expected: &mut Value, changed: &Value) {
    match (expected, changed) {
        (Value::Object(expected), Value::Object(changed)) => {
            changed.iter().for_each(|(key, value)| merge(&mut expected[key], value));
        }
        (expected, changed) => *expected = changed.clone(),
    }
}

#[test]
fn every_answer_of_the_newer_version_is_that_of_its_reference() {
    for mut case in cases(FILE) {
        let newer = case["expected_newer"].take();
        let mut expected = case["expected"].take();
        merge(&mut expected, newer.get("changed").unwrap_or(&Value::Object(Default::default())));
        compare(&answered(&case, PassMode::Newer), &expected, case["id"].as_str().unwrap());
    }
}

#[test]
fn repaired_passes_give_valid_orders_that_keep_the_order_of_collectives() {
    let passes = ["sink_waits", "raise_comms", "reorder_compute_for_overlap"];
    for case in cases(FILE).filter(|case| case["type"] == "schedule") {
        let found = answered(&case, PassMode::Fixed);
        for pass in passes {
            for flag in ["valid", "fake_deps_respected"] {
                assert_eq!(found[pass][flag], true, "{} {pass} {flag}", case["id"]);
            }
            if case["global_ordering"] == true {
                assert_eq!(found[pass]["collective_order_preserved"], true, "{} {pass}", case["id"]);
            }
        }
    }
}
