//! The file tests of all levels.

use std::path::Path;

use phalanx_testkit::filetest;

fn check(folder: &str) {
    filetest::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests").join(folder), &[]);
}

#[test]
fn graphs() {
    check("graph");
}

#[test]
fn parallel_graphs() {
    check("parallel");
}

#[test]
fn task_graphs() {
    check("tasks");
}

#[test]
fn wide_graphs() {
    check("sharded");
}
