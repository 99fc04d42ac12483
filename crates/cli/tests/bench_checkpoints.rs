//! `bench checkpoints`: one short run, and what it refuses. The printed rows are tested beside their printer.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines};

fn args<'a>(dir: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["bench", "checkpoints", "--every", "2", "--rounds", "1", "--cores", "1", "--dir", dir];
    [&fixed[..], SMALL, extra].concat()
}

#[test]
fn a_checkpoint_has_weights_and_moments_and_nothing_stays_behind() {
    let dir = Dir::new("bench_checkpoints");
    let lines = json_lines(&args(&dir.path(""), &["--json"]));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(line["every"], 2);
    // 7664 weights and two moments of each, in four bytes, and the list of tensors.
    let bytes = line["writing"]["bytes"].as_u64().unwrap();
    assert!((7664 * 12..7664 * 12 + 20_000).contains(&bytes), "{bytes}");
    assert_eq!(std::fs::read_dir(dir.path("")).unwrap().count(), 0);
}

#[test]
fn a_file_is_no_directory() {
    let dir = Dir::new("bench_checkpoints_file");
    let file = dir.write("file", "");
    let message = error(&args(&file, &[]), 2);
    assert!(message.contains("--dir") && message.contains("file"), "{message}");
}
