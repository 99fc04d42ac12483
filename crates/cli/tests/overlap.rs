//! `plan overlap`, `train --trace` and `--memory`: what they print and write. Times are not judged.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines, stdout};
use serde_json::Value;

const LINK: [&str; 6] = ["--plan", "dp2", "--link", "50us,1Gbit", "--costs", "modelled"];

#[test]
fn every_transfer_has_a_verdict_and_totals_fall() {
    let overview = &json_lines(&[&["plan", "overlap", "--json"], SMALL, &LINK].concat())[0];
    let transfers = overview["transfers"].as_array().unwrap();
    assert!(transfers.len() > 1);
    let limits = ["data dependency", "memory", "order", "bandwidth", "nothing left"];
    for row in transfers {
        assert!(limits.contains(&row["limit"].as_str().unwrap()), "{row}");
        assert!(row["hidden_ns"].as_u64() <= row["time_ns"].as_u64(), "{row}");
        let is_hidden = row["hidden_share"].as_f64().unwrap() >= 0.99;
        assert_eq!(row["limit"] == "nothing left", is_hidden, "{row}");
    }
    let of = |when: &str, what: &str| overview[when][what].as_u64().unwrap();
    assert!(of("after", "step_ns") < of("before", "step_ns"));
    assert!(of("after", "exposed_ns") < of("before", "exposed_ns"));
    assert!(of("after", "lower_bound_ns") <= of("after", "step_ns"));
    let table = stdout(&[&["plan", "overlap", "--all"], SMALL, &LINK].concat());
    assert_eq!(table.lines().filter(|line| line.contains(" %  ")).count(), transfers.len(), "{table}");
    assert!(table.contains("exposed communication") && table.contains("peak of a device"), "{table}");
}

#[test]
fn a_run_is_drawn_as_predicted_and_as_measured() {
    let dir = Dir::new("drawn");
    let (trace, page) = (dir.path("step.json"), dir.path("step.html"));
    let drawn = ["--steps", "3", "--trace", &trace, "--report", &page];
    stdout(&[&["train"], SMALL, &LINK, &drawn[..]].concat());
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let names: Vec<&str> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    for wanted in ["predicted dev0", "predicted dev1", "measured dev0", "measured dev1"] {
        assert!(names.contains(&wanted), "{names:?}");
    }
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(
        page.to_lowercase().starts_with("<!doctype html>") && page.contains("measured"),
        "{}",
        &page[..200]
    );
    let message =
        error(&[&["train"], SMALL, &["--steps", "1", "--trace", "/no/such/place.json"]].concat(), 2);
    assert!(message.contains("cannot write /no/such/place.json"), "{message}");
}

#[test]
fn what_does_not_fit_or_makes_no_sense_is_refused() {
    let message = error(&[&["train"], SMALL, &["--memory", "100KiB"]].concat(), 2);
    for part in ["dev0 needs", "may have 100.00 KiB", "Largest at its fullest moment", "(--accumulate)"] {
        assert!(message.contains(part), "{message}");
    }
    // It computes again all that it can.
    assert!(!message.contains("--recompute"), "{message}");
    for (flags, part) in [
        (["--memory", "2"], "it must be a size above 0 like 512MiB"),
        (["--link", "1ms"], "it has no comma"),
        (["--overlap", "maybe"], "auto, on, off"),
        (["--recompute", "some"], "none, auto, full"),
    ] {
        let message = error(&[&["train"], SMALL, &flags[..]].concat(), 2);
        assert!(message.contains(part), "{message}");
    }
}
