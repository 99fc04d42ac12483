//! `--precision`: what says it, and what does not mix.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines, run, stdout};
use serde_json::Value;

/// The summary of two steps.
fn summary(extra: &[&str]) -> Value {
    let lines = json_lines(&[&["train", "--json", "--steps", "2"], SMALL, extra].concat());
    lines.last().unwrap()["summary"].clone()
}

#[test]
fn every_hash_has_the_name_of_its_precision() {
    let [single, tiles, pairs] = ["f32", "bf16", "bf16-pair"].map(|name| {
        let summary = summary(&["--precision", name]);
        assert_eq!(summary["precision"], name);
        summary["weights_hash"].as_str().unwrap().to_string()
    });
    assert!(single != tiles && tiles != pairs && pairs != single, "{single} {tiles} {pairs}");
    let text = stdout(&[&["train", "--steps", "2", "--precision", "bf16"], SMALL].concat());
    assert!(text.lines().nth(1).unwrap().ends_with("; 1 device, bf16"), "{text}");
    assert!(text.contains(&format!("weights hash  {tiles} (precision bf16)\n")), "{text}");
    let text = stdout(&[&["train", "--steps", "2"], SMALL].concat());
    assert!(text.contains(&format!("weights hash  {single}\n")), "{text}");

    let sizes =
        ["--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--blocks-feature", "2"];
    let step = [&["step", "--batch", "8", "--steps", "2", "--precision", "bf16-pair"], &sizes[..]].concat();
    let line = &json_lines(&[&step[..], &["--json"]].concat())[0];
    assert_eq!(line["precision"], "bf16-pair");
    let text = stdout(&step);
    let hash = line["weights_hash"].as_str().unwrap();
    assert!(text.contains(&format!("weights_hash {hash} (precision bf16-pair)\n")), "{text}");
}

#[test]
fn the_compiler_shows_the_precision_of_products() {
    let explain = |extra: &[&str]| stdout(&[&["explain"], SMALL, extra].concat());
    let bf16 = ["--precision", "bf16"];
    assert!(explain(&bf16).ends_with(" (precision bf16)\n"));
    let text = explain(&[&bf16[..], &["--after", "expand-passes"]].concat());
    let linear: Vec<_> = text.lines().filter(|line| line.contains("= linear")).collect();
    assert!(!linear.is_empty() && linear.iter().all(|line| line.contains("precision=bf16")), "{text}");
    assert!(!explain(&["--after", "expand-passes"]).contains("precision"));

    let dir = Dir::new("precision-opt");
    let file = dir.write("parallel.ir", explain(&["--after", "parallelize"]));
    let text = stdout(&["opt", &file, "--pass", "expand-passes", "--precision", "bf16-pair"]);
    assert!(text.contains("precision=bf16-pair"), "{text}");
}

#[test]
fn a_file_sets_it_and_another_name_is_refused() {
    let dir = Dir::new("precision-file");
    let file = dir.write("run.toml", "precision = \"bf16\"\n");
    let lines = json_lines(&[&["train", &file, "--json", "--steps", "1"], SMALL].concat());
    assert_eq!(lines.last().unwrap()["summary"]["precision"], "bf16");
    let wrong = dir.write("wrong.toml", "precision = \"bf61\"\n");
    let message = error(&[&["train", &wrong, "--steps", "1"], SMALL].concat(), 2);
    let parts = ["line 1", "`precision` is \"bf61\"", "one of f32, bf16, bf16-pair", "did you mean bf16?"];
    parts.iter().for_each(|part| assert!(message.contains(part), "`{part}` in {message}"));
}

#[test]
fn a_run_is_resumed_in_its_precision_unless_a_change_is_asked_for() {
    let dir = Dir::new("precision-resume");
    let checkpoints = dir.path("ck");
    let train = |precision: &str, extra: &[&str]| {
        let fixed = ["train", "--json", "--checkpoint", &checkpoints, "--precision", precision];
        [&fixed, SMALL, extra].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let args = |args: &[String]| run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(args(&train("f32", &["--steps", "2"])).status.success());
    let other = train("bf16", &["--steps", "4", "--resume"]);
    let message = error(&other.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    let expected = "step-00000002 was trained with --precision f32, but this run has bf16; give it f32, or go on in bf16 \
                    with --change-precision";
    assert!(message.ends_with(expected), "{message}");

    let output = args(&train("bf16", &["--steps", "4", "--resume", "--change-precision"]));
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && note.contains("precision is \"bf16\" (was \"f32\")"), "{note}");
    // From here on it is a run in bf16, without the flag.
    assert!(args(&train("bf16", &["--steps", "5", "--resume"])).status.success());
    let message = error(&[&["train", "--change-precision"], SMALL].concat(), 2);
    assert!(message.contains("`change_precision` is true; it needs `resume`"), "{message}");
}

#[test]
fn a_difference_between_runs_is_told_with_their_precisions() {
    let dir = Dir::new("precision-diff");
    let train = |name: &str| {
        let log = dir.path(name);
        let args = ["train", "--steps", "2", "--hash-every", "1", "--log-dir", &log, "--precision", name];
        stdout(&[&args[..], SMALL].concat());
        log
    };
    let [single, tiles] = ["f32", "bf16"].map(train);
    let output = run(&["diff", &single, &tiles]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("; the runs have precisions f32 and bf16\n"), "{text}");
    let output = run(&["diff", &single, &tiles, "--json"]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["precisions"], serde_json::json!(["f32", "bf16"]));
    assert_eq!(stdout(&["diff", &tiles, &tiles]), "equal in 2 common steps, 2 of them with hashes\n");
}

#[test]
fn text_is_generated_in_either_precision() {
    let dir = Dir::new("precision-generate");
    let model = dir.path("model");
    stdout(&[&["train", "--json", "--steps", "2", "--save", &model], SMALL].concat());
    for precision in ["f32", "bf16", "bf16-pair"] {
        let args = ["generate", "--hf", &model, "--prompt", "Max", "--tokens", "4", "--precision", precision];
        let line = &json_lines(&[&args[..], &["--json"]].concat())[0];
        assert_eq!((&line["precision"], line["tokens"].as_array().unwrap().len()), (&precision.into(), 4));
    }
}

#[test]
fn weights_are_saved_in_16_bits_and_loaded_again() {
    let dir = Dir::new("save-dtype");
    let [single, brain, half] = ["f32", "bf16", "f16"].map(|dtype| {
        let save = dir.path(dtype);
        stdout(
            &[&["train", "--json", "--steps", "2", "--save", &save, "--save-dtype", dtype], SMALL].concat(),
        );
        std::fs::metadata(format!("{save}/model.safetensors")).unwrap().len()
    });
    assert!(brain < single * 6 / 10 && half < single * 6 / 10, "{single} {brain} {half}");
    let text = |dtype: &str| {
        let args = ["generate", "--hf", &dir.path(dtype), "--prompt", "Max", "--tokens", "4", "--json"];
        json_lines(&args)[0]["tokens"].as_array().unwrap().len()
    };
    assert_eq!(["bf16", "f16"].map(text), [4, 4]);

    let (checkpoints, export) = (dir.path("ck"), dir.path("export"));
    stdout(&[&["train", "--json", "--steps", "2", "--checkpoint", &checkpoints], SMALL].concat());
    let line =
        &json_lines(&["ckpt", "export", &checkpoints, "--hf", &export, "--save-dtype", "bf16", "--json"])[0];
    assert_eq!(line["dtype"], "bf16");
    let read = |dir: &str| std::fs::read(format!("{dir}/model.safetensors")).unwrap();
    assert!(read(&export) == read(&dir.path("bf16")), "the checkpoint has the weights of the run");

    let message = error(&[&["train", "--save-dtype", "f16"], SMALL].concat(), 2);
    assert!(message.contains("`save_dtype` is f16; it needs `save`"), "{message}");
    let message = error(&["train", "--save", "out", "--save-dtype", "f61"], 2);
    assert!(message.contains("f61") && message.contains("f16"), "{message}");
}
