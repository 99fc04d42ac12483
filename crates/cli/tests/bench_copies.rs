//! `bench copies`: one short run, and what it refuses. The printed rows are tested beside their printer.

use crate::common::{error, json_lines};

#[test]
fn every_copy_of_every_size_has_a_line_and_so_have_the_replayed_ones() {
    let lines = json_lines(&["bench", "copies", "--largest", "256", "--rounds", "1", "--json"]);
    let shown: Vec<_> = lines
        .iter()
        .map(|line| (line["shape"].as_str().unwrap_or("replayed"), line["bytes"].as_u64()))
        .collect();
    let shapes = ["contiguous", "strided", "transposed", "reduced"];
    let copies = shapes.into_iter().flat_map(|shape| [(shape, Some(64)), (shape, Some(256))]);
    assert_eq!(shown, copies.chain([("replayed", None)]).collect::<Vec<_>>());
    assert_eq!(lines[8]["replayed"]["bytes"], 256);
}

#[test]
fn wrong_sizes_are_named() {
    for size in ["63", "64KB", "KiB", "-1", "99999999999999GiB"] {
        let message = error(&["bench", "copies", &format!("--largest={size}")], 2);
        assert!(message.contains("at least 64"), "{message}");
    }
}
