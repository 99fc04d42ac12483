//! `bench tasks`: what it prints, and what it refuses. Times are not judged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, json_lines, stdout};
use serde_json::Value;

/// Flags of graphs that run in microseconds.
const SMALL: &[&str] = &["bench", "tasks", "--steps", "8", "--widths", "2"];

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn every_graph_has_a_line_and_so_have_the_parts() {
    let flags = ["--patterns", "trivial,stencil_1d", "--processors", "1,2", "--repeat", "3", "--json"];
    let lines = json_lines(&[SMALL, &flags].concat());
    assert_eq!(lines.len(), 6, "{lines:?}");
    let (graphs, parts) = lines.split_at(4);
    let both = [1, 2].map(|processors| ["trivial", "stencil_1d"].map(|pattern| (pattern, processors)));
    for (line, (pattern, processors)) in graphs.iter().zip(both.concat()) {
        assert_eq!(line["pattern"], pattern);
        assert_eq!([&line["width"], &line["steps"], &line["processors"]], [2, 8, processors], "{line}");
        for cost in [&line["replay"], &line["immediate"]] {
            assert!(positive(&cost["empty_ns"]["median"]) && positive(&cost["empty_ns"]["best"]), "{line}");
            for key in ["metg50_us", "metg75_us"] {
                assert!(cost[key].is_null() || positive(&cost[key]), "{key} in {line}");
            }
            assert_eq!(cost.as_object().unwrap().len(), 3, "{line}");
        }
    }
    for (line, processors) in parts.iter().zip([1, 2]) {
        assert_eq!(line["processors"], processors);
        for key in
            ["chain_ns", "fused_chain_ns", "empty_graph_us", "one_task_graph_us", "spawn_ns", "event_ns"]
        {
            let part = &line["parts"][key];
            assert!(positive(&part["median"]) && positive(&part["best"]), "{key} in {line}");
        }
    }
}

#[test]
fn a_point_is_answered_as_the_peers_answer() {
    let point = "--point --json --pattern stencil_1d --width 3 --steps 4 --workers 1 --grain 1 --repeat 1";
    let args: Vec<&str> = ["bench", "tasks"].into_iter().chain(point.split(' ')).collect();
    let [line] = &json_lines(&args)[..] else { panic!("one line for a point") };
    assert_eq!(line["system"], "phalanx");
    assert!(positive(&line["seconds"]), "{line}");
    assert_eq!(line["graph"], "e2154acee43ed97d");
    let message = error(&[SMALL, &["--point"]].concat(), 2);
    assert!(message.contains("8 patterns, 1 width and 1 number of processors"), "{message}");
}

#[test]
fn flows_are_frozen_at_every_size() {
    let lines = json_lines(&["bench", "tasks", "--compile", "--operations", "100,1000", "--json"]);
    let sizes: Vec<_> =
        lines.iter().map(|line| (line["flow"].as_str(), line["operations"].as_u64())).collect();
    let expected =
        ["chain", "stencil", "random"].map(|flow| [(Some(flow), Some(100)), (Some(flow), Some(1000))]);
    assert_eq!(sizes, expected.concat());
    for line in &lines {
        assert!(positive(&line["ms"]["median"]) && positive(&line["ns_per_operation"]), "{line}");
    }
}

#[test]
fn wrong_values_are_named() {
    for (flag, value, part) in [
        ("--patterns", "stencil_1d,butterfly", "there is no pattern `butterfly`"),
        ("--widths", "2,0", "at least 1"),
        ("--processors", "0", "from 1 to"),
        ("--grain", "5", "--point"),
    ] {
        let message = error(&["bench", "tasks", flag, value], 2);
        assert!(message.contains(part), "`{part}` in: {message}");
    }
}

#[test]
fn what_would_not_be_read_is_refused() {
    for flag in ["--patterns=fft", "--widths=2", "--steps=3", "--processors=1,2", "--repeat=2", "--point"] {
        let message = error(&["bench", "tasks", "--compile", flag], 2);
        assert!(message.contains("cannot be used with"), "{flag}: {message}");
    }
    let message = error(&[SMALL, &["--patterns=fft", "--point", "--processors=1,2"]].concat(), 2);
    assert!(message.contains("2 numbers of processors"), "{message}");
}

#[test]
fn help_says_why_there_are_two_shares() {
    let text = stdout(&["bench", "tasks", "--help"]);
    for part in ["three quarters need both", "Example", "--json"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
}
