//! `bench tasks`: one short run, and what it refuses. The printed rows are tested beside their printer.

use crate::common::{error, json_lines, stdout};

/// Flags of graphs that run in microseconds.
const SMALL: &[&str] = &["bench", "tasks", "--steps", "8", "--widths", "2"];

#[test]
fn a_point_is_answered_as_the_peers_answer() {
    let point = "--point --json --pattern stencil_1d --width 3 --steps 4 --workers 1 --grain 1 --repeat 1";
    let args: Vec<&str> = ["bench", "tasks"].into_iter().chain(point.split(' ')).collect();
    let [line] = &json_lines(&args)[..] else { panic!("one line for a point") };
    assert_eq!(line["system"], "phalanx");
    assert_eq!(line["graph"], "e2154acee43ed97d");
    let message = error(&[SMALL, &["--point"]].concat(), 2);
    assert!(message.contains("8 patterns, 1 width and 1 number of processors"), "{message}");
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
