//! The overlap passes against results of the reference.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use phalanx_schedule::cases::ListCase;
use serde_json::{Value, json};

/// All lists with what the reference makes of them.
fn lists() -> impl Iterator<Item = (Value, ListCase)> {
    let lines = BufReader::new(GzDecoder::new(&include_bytes!("data/lists.jsonl.gz")[..])).lines();
    let cases = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    cases.filter(|case| case["type"] == "schedule").map(|case| {
        let list = serde_json::from_value(case.clone()).unwrap();
        (case, list)
    })
}

#[test]
fn memory_and_times_of_the_initial_order_are_those_of_the_reference() {
    for (case, list) in lists() {
        let graph = list.graph().unwrap();
        let order = graph.order();
        let memory = graph.memory(&order);
        let steps: Vec<_> =
            memory.steps.iter().map(|step| json!([step.post_alloc, step.post_free])).collect();
        assert_eq!(json!(memory.peak), case["expected"]["memory"]["peak"], "{}", case["id"]);
        assert_eq!(json!(steps), case["expected"]["memory"]["post_alloc_free"], "{}", case["id"]);
        let times = graph.simulate(&order);
        let expected = &case["expected"]["initial"];
        for (found, key) in [(times.makespan, "makespan_ns"), (times.exposed, "exposed_ns")] {
            let expected = expected[key].as_f64().unwrap();
            assert!((found - expected).abs() <= 1e-9 * expected.abs().max(times.makespan), "{}", case["id"]);
        }
        assert!(graph.is_valid(&order, true));
    }
}
