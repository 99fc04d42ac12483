//! `phalanx train`: the lines it prints, that they are the same every time, and how it stops.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Dir, SMALL, error, json_lines, phalanx, run, stdout};
use serde_json::Value;

fn train(extra: &[&str]) -> Vec<Value> {
    json_lines(&[&["train", "--json", "--steps", "6"], SMALL, extra].concat())
}

/// What must not change between runs.
fn bits(lines: &[Value]) -> (Vec<f64>, String) {
    let (summary, steps) = lines.split_last().unwrap();
    let losses = steps.iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    (losses, summary["summary"]["weights_hash"].as_str().unwrap().to_string())
}

#[test]
fn json_is_a_line_a_step_and_a_summary() {
    let lines = train(&[]);
    assert_eq!(lines.len(), 7);
    for (index, line) in lines[..6].iter().enumerate() {
        assert_eq!(line["step"], index + 1);
        for key in ["loss", "tokens_per_s", "lr"] {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
        }
    }
    let summary = &lines[6]["summary"];
    assert_eq!(summary["steps"], 6);
    assert_eq!(summary["interrupted"], false);
    for key in ["loss", "entropy", "tokens_per_s", "peak_bytes", "matmul_share"] {
        assert!(summary[key].as_f64().unwrap() > 0.0, "{key} in {summary}");
    }
}

#[test]
fn the_bits_depend_on_neither_run_nor_cores_nor_accumulation() {
    let first = bits(&train(&["--cores", "1"]));
    assert_eq!(first, bits(&train(&["--cores", "1"])), "two runs");
    assert_eq!(first, bits(&train(&["--cores", "2"])), "two cores");
    assert_eq!(first, bits(&train(&["--cores", "3"])), "three cores");
    assert_eq!(first.1, bits(&train(&["--accumulate", "4"])).1, "four parts");
    assert_ne!(first.1, bits(&train(&["--seed", "1"])).1, "another seed");
}

#[test]
fn every_optimizer_and_model_trains() {
    for extra in [
        &["--optimizer", "sgd", "--nesterov", "--clip", "0"][..],
        &["--optimizer", "adam", "--dropout", "0.1"],
        &["--model", "llama", "--kv-heads", "1", "--blocks-feature", "4"],
    ] {
        assert_eq!(train(extra).len(), 7, "{extra:?}");
    }
}

#[test]
fn the_summary_for_people_has_a_plot_and_all_measures() {
    let text = stdout(&[&["train", "--steps", "4"], SMALL].concat());
    for part in ["│", "best possible", "tokens/s", "arena", "% of the time", "weights hash"] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
}

#[test]
fn flags_win_over_the_file_and_the_file_over_the_defaults() {
    let dir = Dir::new("flags");
    let config =
        dir.write("run.toml", "layers = 1\nheads = 2\nwidth = 16\ncontext = 16\nbatch = 2\nsteps = 3\n");
    assert_eq!(json_lines(&["train", &config, "--json"]).len(), 4);
    assert_eq!(json_lines(&["train", &config, "--json", "--steps", "2"]).len(), 3);
}

#[test]
fn the_last_of_equal_flags_counts_and_a_switch_may_be_repeated() {
    assert_eq!(train(&["--steps", "9", "--steps", "2", "--nesterov", "--nesterov"]).len(), 3);
}

#[test]
fn former_names_of_flags_are_understood() {
    let hash = |flag: &str| train(&[flag, "1"])[6]["summary"]["weights_hash"].clone();
    assert_eq!(hash("--leaves-batch"), hash("--blocks-batch"));
    assert_ne!(hash("--leaves-batch"), train(&[])[6]["summary"]["weights_hash"]);
    let dir = Dir::new("former");
    let config = dir.write("run.toml", "leaves_batch = 1\n");
    assert_eq!(train(&[&config])[6]["summary"]["weights_hash"], hash("--blocks-batch"));
}

#[test]
fn help_has_groups_defaults_and_no_former_names() {
    let help = stdout(&["train", "--help"]);
    let line = |flag: &str| {
        let from = help.find(&format!("{flag} <")).unwrap_or_else(|| panic!("{flag} in {help}"));
        help[from..].split("\n      --").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("--batch"), "--batch <N> Sequences in a step [default: 16]");
    assert_eq!(
        line("--eps"),
        "--eps <F> Added to the root of the second moment (adam, adamw) [default: 1e-8]"
    );
    let rules = "--optimizer <RULE> Update rule [default: adamw] [possible values: adamw, adam, sgd]";
    assert_eq!(line("--optimizer"), rules);
    for group in ["Model:", "Step:", "Devices:", "Run:", "Watching:", "Checkpoints:", "Ranks (", "Debugging:"]
    {
        assert!(help.contains(&format!("\n{group}")), "{group} in {help}");
    }
    assert!(!help.contains("--leaves"), "{help}");
    assert!(stdout(&["step", "--help"]).contains("[default: 128]"), "`step` has another model");
}

#[test]
fn text_of_the_user_is_trained_on() {
    let dir = Dir::new("text");
    let text = dir.write("a.txt", "all work and no play ".repeat(40));
    let lines = train(&["--data", &text]);
    assert!(lines[6]["summary"]["entropy"].is_null());
}

#[test]
fn mistakes_in_a_file_are_named() {
    let dir = Dir::new("mistakes");
    let typo = error(&["train", &dir.write("typo.toml", "stepz = 3\n")], 2);
    assert!(
        typo.contains("typo.toml")
            && typo.contains("line 1")
            && typo.contains("no option `stepz`: did you mean `steps`?"),
        "{typo}"
    );
    let kind = error(&["train", &dir.write("kind.toml", "steps = \"many\"\n")], 2);
    assert!(kind.contains("line 1: `steps` is \"many\"; it must be a whole number, at least 1"), "{kind}");
    let gone = error(&["train", &dir.path("gone.toml")], 2);
    assert!(gone.contains("gone.toml") && gone.contains("No such file"), "{gone}");
}

#[test]
fn mistakes_in_flags_are_named() {
    for (args, parts) in [
        (&["--steps", "many"][..], &["--steps", "many"][..]),
        (&["--steps", "0"], &["'0'", "--steps", "at least 1"]),
        (&["--stepz", "3"], &["--stepz", "--steps"]),
        (&["--batch", "0"], &["'0'", "--batch", "at least 1"]),
        (&["--batch", "3", "--accumulate", "2"], &["3", "2"]),
        (&["--heads", "3", "--width", "16"], &["16", "3", "heads"]),
        (&["--batch", "99999999"], &["bytes of memory", "smaller"]),
        (&["--kv-heads", "2"], &["kv_heads", "2", "llama"]),
        (&["--lr-floor", "-3"], &["lr-floor", "-3"]),
        (&["--tokenizer", "t.json"], &["tokenizer", "t.json", "data"]),
        (&["--seed", "-1"], &["--seed", "-1"]),
        (&["--layers", "0"], &["layers"]),
        (&["--width", "0"], &["width"]),
        (&["--context", "0"], &["context"]),
        (&["--model", "bert"], &["bert", "gpt2, llama"]),
        (&["--model", "mlp"], &["mlp", "gpt2 or llama"]),
        (&["--size", "vast"], &["vast", "nano, tiny"]),
        (&["--dropout", "1.5"], &["dropout", "1.5"]),
        (&["--lr", "-1"], &["lr", "-1"]),
        (&["--lr", "nan"], &["lr", "nan"]),
        (&["--clip", "-2"], &["clip", "-2"]),
        (&["--weight-decay", "inf"], &["weight-decay", "inf"]),
        (&["--optimizer", "lion"], &["lion", "adamw, adam, sgd"]),
        (&["--cores", "100000"], &["cores", "100000", "1024"]),
        (&["--blocks-batch", "3"], &["blocks-batch", "3", "power of two"]),
        (&["--bits", "strickt"], &["strickt", "strict, free", "similar", "'strict'"]),
        (&["--data", "/nonexistent.txt"], &["/nonexistent.txt", "a pattern such as"]),
        (&["--save", "/proc/nonexistent"], &["cannot save to /proc/nonexistent", "another directory"]),
    ] {
        let message = error(&[&["train"], args].concat(), 2);
        parts.iter().for_each(|part| assert!(message.contains(part), "{args:?}: `{part}` in: {message}"));
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let args = [&["train", "--json", "--steps", "2000"], SMALL].concat();
    let mut child = phalanx().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_after_the_step_and_saves() {
    let dir = Dir::new("interrupt");
    let save = dir.path("model");
    let args = [&["train", "--json", "--steps", "1000000", "--save", &save], SMALL].concat();
    let mut child = phalanx().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let last: Value = serde_json::from_str(&lines.last().unwrap().unwrap()).unwrap();
    assert_eq!(last["summary"]["interrupted"], true);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let generated = run(&["generate", "--hf", &save, "--prompt", "a", "--tokens", "2"]);
    assert!(generated.status.success(), "the saved model loads");
}

#[test]
fn an_operation_that_fails_breaks_the_run_off() {
    let output = run(&[&["train", "--steps", "3", "--drill", "panic@0:2"], SMALL].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("error: ") && text.contains("fire drill"), "{text}");
}
