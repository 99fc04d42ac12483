//! `train --hf`: a run that starts with the weights of a directory, and what happens to directories that are there.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::common::{Dir, SMALL, error, json_lines, run, stdout};
use serde_json::{Value, json};

const LLAMA: &[&str] = &[
    "--model",
    "llama",
    "--layers",
    "1",
    "--heads",
    "2",
    "--kv-heads",
    "1",
    "--width",
    "16",
    "--context",
    "16",
    "--hidden",
    "24",
    "--head-dim",
    "6",
    "--norm-eps",
    "1e-6",
    "--rope-theta",
    "500000",
    "--attention-bias",
    "true",
    "--mlp-bias",
    "true",
    "--tied",
    "false",
    "--activation",
    "gelu",
];

fn train(args: &[&[&str]]) -> Vec<Value> {
    json_lines(&[&["train", "--json", "--batch", "8"][..], &args.concat()].concat())
}

fn hash(lines: &[Value]) -> &str {
    lines.last().unwrap()["summary"]["weights_hash"].as_str().unwrap()
}

fn config(dir: &str) -> Value {
    serde_json::from_slice(&fs::read(format!("{dir}/config.json")).unwrap()).unwrap()
}

#[test]
fn every_size_of_a_directory_is_taken_over_and_survives() {
    let dir = Dir::new("fine-tune");
    let (first, second, third) = (dir.path("first"), dir.path("second"), dir.path("third"));
    train(&[LLAMA, &["--steps", "2", "--save", &first]]);
    let mut edited = config(&first);
    for (key, value) in
        [("bos_token_id", json!(1)), ("eos_token_id", json!([2, 3])), ("pretraining_tp", json!(1))]
    {
        edited[key] = value;
    }
    fs::write(format!("{first}/config.json"), edited.to_string()).unwrap();
    fs::write(format!("{first}/generation_config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    // A step of rate 0 changes nothing.
    let still = ["--steps", "1", "--lr", "0", "--weight-decay", "0"];
    train(&[&["--hf", &first, "--save", &second], &still]);
    let weights = |dir: &str| fs::read(format!("{dir}/model.safetensors")).unwrap();
    assert!(weights(&first) == weights(&second), "the same weights");
    assert_eq!(config(&second), edited, "and the same fields");
    assert!(fs::exists(format!("{second}/generation_config.json")).unwrap());
    let moved = train(&[&["--hf", &first, "--save", &third, "--steps", "2"]]);
    let ranks = json_lines(
        &[
            &["launch", "-n", "2", "--", "train", "--json", "--batch", "8"][..],
            &["--hf", &first, "--steps", "2", "--plan", "fsdp", "--devices", "2"],
        ]
        .concat(),
    );
    assert_eq!(hash(&ranks), hash(&moved), "two ranks start with the same weights");
    assert!(weights(&third) != weights(&first));
}

#[test]
fn a_resumed_fine_tuning_continues_with_the_same_bits() {
    let dir = Dir::new("fine-tune-resume");
    let (model, checkpoints) = (dir.path("model"), dir.path("checkpoints"));
    train(&[&["--steps", "2", "--save", &model], &SMALL[..8]]);
    let whole = train(&[&["--hf", &model, "--steps", "4"]]);
    let parts = ["--hf", &model, "--checkpoint", &checkpoints, "--every", "2", "--resume"];
    let drill =
        run(&[&["train", "--batch", "8", "--steps", "4", "--drill", "panic@0:3"][..], &parts].concat());
    assert!(!drill.status.success());
    assert_eq!(hash(&train(&[&parts, &["--steps", "4"]])), hash(&whole));
}

#[test]
fn a_size_that_contradicts_the_directory_is_refused() {
    let dir = Dir::new("fine-tune-sizes");
    let model = dir.path("model");
    stdout(&[&["train", "--json", "--steps", "1", "--save", &model], SMALL].concat());
    let message = error(&["train", "--hf", &model, "--width", "32"], 2);
    assert!(message.contains("`width` is 32") && message.contains("has 16: leave it out"), "{message}");
    let message = error(&["train", "--model", "gpt2", "--rope-theta", "5"], 2);
    assert!(message.contains("`rope_theta` is 5") && message.contains("only llama has it"), "{message}");
    let message = error(&["train", "--activation", "gelou"], 2);
    assert!(message.contains("gelou") && message.contains("gelu_new"), "{message}");
    let message = error(&["train", "--vocab", "100"], 2);
    assert!(message.contains("`vocab` is 100") && message.contains("256"), "{message}");
}

#[test]
fn a_directory_of_another_run_is_not_replaced_without_asking() {
    let dir = Dir::new("overwrite");
    let save = dir.path("model");
    let quick = [&["train", "--json", "--steps", "1"], SMALL].concat();
    stdout(&[&quick[..], &["--save", &save]].concat());
    fs::write(format!("{save}/tokenizer.json"), "stale").unwrap();
    let before = fs::read(format!("{save}/model.safetensors")).unwrap();
    let message = error(&[&quick[..], &["--save", &save, "--seed", "5"]].concat(), 2);
    assert!(message.contains(&save) && message.contains("--overwrite"), "{message}");
    assert!(fs::read(format!("{save}/model.safetensors")).unwrap() == before, "nothing was touched");
    stdout(&[&quick[..], &["--save", &save, "--seed", "5", "--overwrite"]].concat());
    assert!(fs::read(format!("{save}/model.safetensors")).unwrap() != before);
    assert!(!fs::exists(format!("{save}/tokenizer.json")).unwrap(), "nothing stale is left");
    assert!(!fs::exists(format!("{save}.partial")).unwrap() && !fs::exists(format!("{save}.old")).unwrap());
}

#[test]
fn a_refused_run_leaves_the_log_of_the_one_before() {
    let dir = Dir::new("log-kept");
    let (log, checkpoints) = (dir.path("log"), dir.path("checkpoints"));
    let args = [&["train", "--json", "--steps", "3", "--log-dir", &log], SMALL].concat();
    let saved = [&args[..], &["--checkpoint", &checkpoints]].concat();
    stdout(&saved);
    let lines = || fs::read_to_string(format!("{log}/rank-0.jsonl")).unwrap();
    let before = lines();
    assert_eq!(before.lines().count(), 4);
    assert!(error(&saved, 2).contains("is the log of another run"));
    assert!(error(&[&saved[..], &["--overwrite"]].concat(), 2).contains("--resume"), "checkpoints are there");
    assert_eq!(lines(), before, "a run that is refused writes nothing");
    stdout(&[&saved[..], &["--resume", "--steps", "5"]].concat());
    assert!(lines().starts_with(&before), "a run that is resumed adds to its log");
    stdout(&[&args[..], &["--overwrite"]].concat());
    assert_eq!(lines().lines().count(), 4);
    let events = fs::read_dir(&log).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("events.out.tfevents.")
    });
    assert_eq!(events.count(), 1, "event files of two runs are not mixed");
}

#[test]
fn without_a_terminal_lines_tell_how_far_a_run_is() {
    let text =
        stdout(&[&["train", "--steps", "6", "--log-every", "2", "--eval-every", "5"][..], SMALL].concat());
    let steps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("step ")).collect();
    let numbers: Vec<&str> = steps.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(numbers, ["2/6", "4/6", "5/6", "6/6"], "every second step and each evaluation: {text}");
    assert!(steps[3].contains("eval loss"), "the last step is evaluated, too: {text}");
    let header: Vec<&str> = text.lines().take(2).collect();
    assert!(header[1].contains("tokens of data") && header[1].contains("1 device, f32"), "{header:?}");
}
