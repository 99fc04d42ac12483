//! `bench checkpoints`: one short run, and what it refuses. The printed rows are tested beside their printer.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::common::{Dir, SMALL, error, json_lines, phalanx};

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
fn an_interrupt_leaves_nothing_behind_either() {
    let dir = Dir::new("bench_checkpoints_interrupt");
    let path = dir.path("");
    let mut child =
        phalanx().args(args(&path, &["--every", "4000000000"])).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Its directory is there while it trains.
    lines.next().unwrap().unwrap();
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    signal::kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_file_is_no_directory() {
    let dir = Dir::new("bench_checkpoints_file");
    let file = dir.write("file", "");
    let message = error(&args(&file, &[]), 2);
    assert!(message.contains("--dir") && message.contains("file"), "{message}");
}
