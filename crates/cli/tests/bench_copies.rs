//! `bench copies`: what it prints, and what it refuses. Times are not judged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{error, json_lines, stdout};
use serde_json::Value;

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn every_copy_of_every_size_has_a_line_and_so_have_the_replayed_ones() {
    let lines = json_lines(&["bench", "copies", "--largest", "64KiB", "--rounds", "1", "--json"]);
    let (replayed, copies): (Vec<_>, Vec<_>) = lines.iter().partition(|line| !line["replayed"].is_null());
    let sizes = [64, 256, 1024, 4096, 16384, 65536];
    let expected: Vec<(&str, u64)> = ["contiguous", "strided", "transposed", "reduced"]
        .into_iter()
        .flat_map(|shape| sizes.map(|bytes| (shape, bytes)))
        .collect();
    let shown: Vec<_> = copies
        .iter()
        .map(|line| (line["shape"].as_str().unwrap(), line["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(shown, expected);
    for line in copies {
        for key in ["ns", "reference_ns", "gb_per_s", "reference_gb_per_s", "share"] {
            assert!(positive(&line[key]), "{key} in {line}");
        }
        assert_eq!(line.as_object().unwrap().len(), 7, "{line}");
    }
    let bytes: Vec<_> = replayed.iter().map(|line| line["replayed"]["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [256, 16384]);
    for line in replayed {
        let line = &line["replayed"];
        assert!(
            positive(&line["copies"]) && positive(&line["us"]) && positive(&line["reference_us"]),
            "{line}"
        );
        let over = line["us"].as_f64().unwrap() - line["reference_us"].as_f64().unwrap();
        assert!((line["over_us"].as_f64().unwrap() - over).abs() < 1e-9, "{line}");
    }
}

#[test]
fn people_get_a_table() {
    let text = stdout(&["bench", "copies", "--largest", "256", "--rounds", "1"]);
    let first: Vec<_> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    let expected = ["copy", "contiguous", "contiguous", "strided", "strided", "transposed", "transposed"];
    assert_eq!(first[..7], expected, "{text}");
    assert_eq!(first[7..], ["reduced", "reduced", "chain"], "{text}");
}

#[test]
fn wrong_sizes_are_named() {
    for size in ["63", "64KB", "KiB", "-1", "99999999999999GiB"] {
        let message = error(&["bench", "copies", &format!("--largest={size}")], 2);
        assert!(message.contains("at least 64"), "{message}");
    }
}
