//! `phalanx train --hash-every` and what `phalanx diff` makes of it.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{Dir, SMALL, error, json_lines, run, stdout};
use serde_json::Value;

/// Six steps with a log in `name` unless `extra` says otherwise; the lines of the log. The learning rate still rises after
/// six steps, so that it does not depend on how many there are.
fn train(dir: &Dir, name: &str, extra: &[&str]) -> Vec<Value> {
    let log = dir.path(name);
    let fixed = ["train", "--json", "--cores", "1", "--costs", "modelled", "--log-dir", &log];
    let steps: &[&str] = if extra.contains(&"--steps") { &[] } else { &["--steps", "6"] };
    let printed = json_lines(&[&fixed, SMALL, steps, extra].concat());
    let text = std::fs::read_to_string(format!("{log}/rank-0.jsonl")).unwrap();
    let logged: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (printed, logged) in printed.iter().zip(&logged) {
        assert_eq!((&printed["hash"], printed.get("hashes")), (&logged["hash"], None));
        assert_eq!(logged["hash"].is_string(), logged["hashes"].is_object());
    }
    logged
}

/// The hashes of each tensor by step.
fn hashes(log: &[Value]) -> BTreeMap<u64, Value> {
    let hashed = log.iter().filter(|line| line["hashes"].is_object());
    hashed.map(|line| (line["step"].as_u64().unwrap(), line["hashes"].clone())).collect()
}

/// The JSON of a comparison that finds a difference.
fn differ(left: &str, right: &str) -> Value {
    let output = run(&["diff", left, right, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_resumed_run_has_the_same_hashes_at_the_same_steps() {
    let dir = Dir::new("hashes-resume");
    let whole = hashes(&train(&dir, "whole", &["--hash-every", "2"]));
    assert_eq!(whole.keys().copied().collect::<Vec<_>>(), [2, 4, 6]);
    let checkpoints = dir.path("ck");
    train(&dir, "first", &["--steps", "3", "--checkpoint", &checkpoints]);
    let resumed = ["--hash-every", "2", "--checkpoint", &checkpoints, "--resume"];
    let plan = ["--plan", "fsdp", "--devices", "2"];
    let resumed = hashes(&train(&dir, "resumed", &[&resumed[..], &plan].concat()));
    assert_eq!(resumed.into_iter().collect::<Vec<_>>(), [(4, whole[&4].clone()), (6, whole[&6].clone())]);
    let [whole, resumed, first] = ["whole", "resumed", "first"].map(|name| dir.path(name));
    assert_eq!(stdout(&["diff", &whole, &resumed]), "equal in 3 common steps, 2 of them with hashes\n");
    assert_eq!(stdout(&["diff", &whole, &first]), "equal in 3 common steps\n");
}

#[test]
fn the_first_difference_is_a_loss_or_the_hash_of_a_tensor() {
    let dir = Dir::new("hashes-diff");
    let one = train(&dir, "one", &["--hash-every", "1"]);
    let other = train(&dir, "other", &["--hash-every", "1", "--weight-decay", "0.5"]);
    let [left, right] = [&one, &other].map(|log| hashes(log)[&1].as_object().unwrap().clone());
    // The first gradients are the same, and only matrices decay.
    let changed: Vec<&String> = left.keys().filter(|name| left[*name] != right[*name]).collect();
    assert!(changed.iter().any(|name| *name == "transformer.wte.weight"), "{changed:?}");
    assert!(changed.iter().all(|name| name.ends_with(".weight") && !name.contains("ln_")), "{changed:?}");

    let [one_log, other_log, rare_log] = ["one", "other", "rare"].map(|name| dir.path(name));
    let tensor = changed.iter().min().unwrap().as_str();
    let found = differ(&one_log, &other_log);
    assert_eq!((&found["step"], &found["first"]["difference"]), (&1.into(), &"hash".into()));
    assert_eq!(found["first"]["tensor"], tensor);
    assert_eq!((&found["first"]["left"], &found["first"]["right"]), (&left[tensor], &right[tensor]));
    let text = String::from_utf8(run(&["diff", &one_log, &other_log]).stdout).unwrap();
    assert!(text.starts_with(&format!("step 1 differs: the hash of tensor `{tensor}` is ")), "{text}");

    // Where hashes are rare, a loss tells first.
    train(&dir, "rare", &["--hash-every", "6", "--weight-decay", "0.5"]);
    let first = one.iter().zip(&other).find(|(one, other)| one["loss"] != other["loss"]).unwrap().0;
    let found = differ(&one_log, &rare_log);
    assert_eq!((&found["step"], &found["first"]["difference"]), (&first["step"], &"loss".into()));
    assert_eq!(stdout(&["diff", &other_log, &rare_log]), "equal in 6 common steps, 1 of them with hashes\n");
}

#[test]
fn checkpoints_are_compared_with_the_hashes_of_a_log() {
    let dir = Dir::new("hashes-mixed");
    let [checkpoints, log, other, plain] = ["ck", "log", "other", "plain"].map(|name| dir.path(name));
    let saved = ["--checkpoint", &checkpoints, "--every", "2", "--plan", "tp", "--devices", "2"];
    train(&dir, "plain", &saved);
    train(&dir, "log", &["--hash-every", "3"]);
    train(&dir, "other", &["--hash-every", "2", "--seed", "1"]);
    assert_eq!(stdout(&["diff", &checkpoints, &log]), "equal in 1 common checkpoint\n");
    let found = differ(&other, &checkpoints);
    assert_eq!((&found["step"], &found["first"]["difference"]), (&2.into(), &"hash".into()));
    assert!(found["first"]["tensor"].is_string(), "{found}");
    let message = error(&["diff", &checkpoints, &plain], 2);
    assert!(message.contains("a log without hashes") && message.contains("--hash-every"), "{message}");
}

#[test]
fn what_train_prints_is_a_log_without_tensors() {
    let dir = Dir::new("hashes-printed");
    let args = ["train", "--json", "--steps", "2", "--hash-every", "2", "--costs", "modelled", "--lr", "0"];
    let print = |name: &str, extra: &[&str]| dir.write(name, stdout(&[&args, SMALL, extra].concat()));
    // Without learning the losses are the same, and the moments of Adam are not.
    let [one, other] = [print("one", &[]), print("other", &["--beta1", "0.8"])];
    let found = differ(&one, &other);
    assert_eq!((&found["step"], found["first"].get("tensor")), (&2.into(), None));
    let text = String::from_utf8(run(&["diff", &one, &other]).stdout).unwrap();
    assert!(text.starts_with("step 2 differs: the hash of weights and optimizer state is "), "{text}");
}

#[test]
fn hashes_without_an_output_are_refused() {
    let message = error(&[&["train", "--hash-every", "2"], SMALL].concat(), 2);
    assert!(message.contains("`hash_every` is 2") && message.contains("--log-dir"), "{message}");
    let message = error(&[&["train", "--json", "--hash-every", "0"], SMALL].concat(), 2);
    assert!(
        message.contains("invalid value '0' for '--hash-every <STEPS>': it must be at least 1"),
        "{message}"
    );
}
