//! `phalanx schedule`: cases in, answers out.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Output, Stdio};

use crate::common::{Dir, error, json_lines, phalanx, stdout};
use serde_json::Value;

const LIST: &str = r#"{"id": "list", "type": "schedule", "unknown": 1, "graph_inputs": [], "graph_outputs": [], "nodes": [
{"name": "op0", "kind": "collective", "runtime_ns": 9, "outputs": [{"buf": "a", "size": 8}]},
{"name": "op1", "kind": "wait", "runtime_ns": 0, "reads": ["a"], "outputs": [{"buf": "b", "size": 0, "mutates": "a"}]},
{"name": "op2", "kind": "compute", "runtime_ns": 4, "outputs": [{"buf": "c", "size": 8}]}]}"#;
const ALIGN: &str =
    r#"{"id": 2, "type": "align", "rank": 0, "rank_runtimes_ns": [[0.1], [0.3], [0.2]], "mm_like": [true]}"#;
const COST: &str = r#"{"collective": "all_gather", "bytes": 0, "group_size": 2, "gpu": "hopper"}"#;

/// What the command says of these lines.
fn answered(args: &[&str], lines: &[&str]) -> Output {
    let mut command = phalanx();
    command.arg("schedule").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines: Vec<String> = lines.iter().map(|line| line.replace('\n', "") + "\n").collect();
    child.stdin.take().unwrap().write_all(lines.concat().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn values(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn lines_are_answered_in_order_around_wrong_ones() {
    let wrong = ALIGN.replace("[0.3]", "[\"slow\"]");
    let output = answered(&[], &[LIST, "", "{", ALIGN, &wrong, COST]);
    let found = values(&output);
    assert_eq!(found.len(), 3);
    assert_eq!((&found[0]["id"], &found[1]["id"]), (&"list".into(), &2.into()));
    assert_eq!(found[0]["sink_waits"]["order"], serde_json::json!([0, 2, 1]));
    assert_eq!(found[1]["aligned_runtime_ns"], serde_json::json!([0.2]));
    let milliseconds = found[2]["ms"].as_f64().unwrap();
    assert!((milliseconds - 0.0072).abs() < 1e-12, "6.6 + 0.6 us: {milliseconds}");
    let errors = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = errors.lines().collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("error: line 3: the case: EOF"), "{errors:?}");
    assert!(errors[1].starts_with("error: line 5: rank_runtimes_ns[1][0]: invalid type"), "{errors:?}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn no_case_at_all_is_an_error() {
    for lines in [&[][..], &["", " "]] {
        let output = answered(&[], lines);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message, "error: standard input has no cases: give one JSON object a line\n");
        assert_eq!((output.stdout.len(), output.status.code()), (0, Some(2)));
    }
    let dir = Dir::new("schedule-empty");
    assert!(error(&["schedule", &dir.write("empty.jsonl", "")], 2).contains("empty.jsonl has no cases"));
}

/// A collective and its wait beside two tasks that do not need them.
const GRAPH: &str = r#"{"id": "graph", "type": "fx_overlap", "params": {"max_compute_pre_fetch": 0,
"compute_overlap_multipler": 1.0, "max_coll_distance": 0, "prioritize_bucketing_during_scheduling": true},
"graph_inputs": [{"name": "x", "size": 64, "releasable": true}], "graph_outputs": [3], "nodes": [
{"kind": "compute", "runtime_ns": 6, "reads": ["x"], "size": 64, "gemm_like": true},
{"kind": "collective", "runtime_ns": 5, "reads": ["x"], "size": 64, "op": "all_reduce", "pg": 0, "latency_ns": 1},
{"kind": "wait", "runtime_ns": 0, "reads": [1], "size": 64},
{"kind": "compute", "runtime_ns": 2, "reads": [0, 2], "size": 64, "gemm_like": true}]}"#;

#[test]
fn a_graph_of_values_is_searched() {
    let output = answered(&["--passes", "search"], &[GRAPH]);
    let answer = &values(&output)[0];
    assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["id", "search"]);
    let found = &answer["search"];
    assert_eq!((found["makespan_ns"].as_f64(), found["lower_bound_ns"].as_f64()), (Some(8.0), Some(8.0)));
    assert_eq!(found["order"], serde_json::json!([1, 0, 2, 3]));
    assert_eq!(found["exposed_sim_ns"].as_f64(), Some(0.0));
    assert!(found["rescheduled_peak"].as_u64() <= found["peak_limit"].as_u64());
}

#[test]
fn many_lines_keep_their_order() {
    let lines: Vec<String> = (0..500).map(|id| LIST.replace("\"list\"", &id.to_string())).collect();
    let output = answered(&["--passes", "initial"], &lines.iter().map(String::as_str).collect::<Vec<_>>());
    let ids: Vec<u64> = values(&output).iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..500).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn passes_and_modes_are_chosen_by_name() {
    let dir = Dir::new("schedule");
    let file = dir.write("cases.jsonl", [ALIGN, COST].join("\n"));
    let time =
        |mode: &str| json_lines(&["schedule", "--mode", mode, &file])[0]["aligned_runtime_ns"][0].clone();
    assert_eq!(time("reference"), f64::from(0.2_f32));
    assert_eq!(time("newer"), f64::from(0.2_f32));
    assert_eq!(time("fixed"), 0.2);
    let lines = json_lines(&["schedule", "--passes", "ms,sink_waits", &file]);
    assert_eq!(lines[0], serde_json::json!({ "id": 2 }));
    assert_eq!(lines[1].as_object().unwrap().keys().collect::<Vec<_>>(), ["ms"]);
    for (args, parts) in [
        (&["--passes", "magic"][..], &["magic", "raise_comms"][..]),
        (&["--mode", "magic"], &["magic", "newer"]),
        (&["/nonexistent.jsonl"], &["/nonexistent.jsonl"]),
    ] {
        let message = error(&[&["schedule"], args].concat(), 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{args:?}: {message}");
    }
    assert!(stdout(&["schedule", "--help"]).contains("Examples:"));
}
