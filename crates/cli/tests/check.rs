//! `--check kernels` on `train` and `step`.

use crate::common::{Dir, SMALL, error, json_lines, stdout};

#[test]
fn checked_steps_have_the_same_weights() {
    let run = |more: &[&str]| {
        let args = [&["step", "--steps", "2"], SMALL, more].concat();
        stdout(&args).lines().last().map(str::to_string)
    };
    let want = run(&[]);
    assert!(want.is_some());
    assert_eq!(run(&["--check", "kernels"]), want);
    assert_eq!(run(&["--check", "none"]), want);
}

#[test]
fn a_file_can_ask_for_it() {
    let dir = Dir::new("check");
    let file = dir.path("run.toml");
    std::fs::write(&file, "check = \"kernels\"\nsteps = 1\n").expect("the directory is ours");
    let lines = json_lines(&[&["train", &file, "--json"], SMALL].concat());
    assert_eq!(lines.len(), 2);
}

#[test]
fn other_words_are_refused() {
    let text = error(&["train", "--check", "everything"], 2);
    assert!(text.contains("everything") && text.contains("none, kernels"), "{text}");
}
