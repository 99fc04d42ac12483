//! `phalanx ckpt` and `phalanx diff`: what checkpoints say, whether they are whole, weights in and out, and where two
//! runs part.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{Dir, SMALL, error, json_lines, run, stdout};
use serde_json::Value;

/// Runs four steps with a checkpoint after every second one in `name`, and whatever else `extra` asks for.
fn train(dir: &Dir, name: &str, extra: &[&str]) -> Value {
    train_under(&[], dir, name, extra)
}

/// The same under a launcher.
fn train_under(launcher: &[&str], dir: &Dir, name: &str, extra: &[&str]) -> Value {
    let checkpoints = dir.path(name);
    let fixed = ["train", "--json", "--steps", "4", "--cores", "1", "--costs", "modelled"];
    let saved = ["--checkpoint", &checkpoints, "--every", "2"];
    json_lines(&[launcher, &fixed, SMALL, &saved, extra].concat()).pop().unwrap()["summary"].clone()
}

/// Names and contents of all files of a directory.
fn contents(dir: &str) -> Vec<(String, Vec<u8>)> {
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| read(entry.unwrap())).collect();
    // Which run wrote a directory may differ.
    files.retain(|(name, _)| name != "phalanx.json");
    files.sort();
    files
}

/// Changes the last byte of a file, which belongs to its last tensor.
fn damage(path: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_list_and_a_manifest_say_what_was_saved() {
    let dir = Dir::new("ckpt-list");
    let summary = train(&dir, "a", &["--plan", "tp", "--devices", "2"]);
    let checkpoints = dir.path("a");
    let rows = json_lines(&["ckpt", "list", &checkpoints, "--json"]);
    assert_eq!(rows.len(), 2);
    for (row, (step, tokens, latest)) in rows.iter().zip([(2, 256, false), (4, 512, true)]) {
        assert_eq!((&row["step"], &row["tokens"]), (&step.into(), &tokens.into()));
        assert_eq!((&row["latest"], &row["ranks"]), (&latest.into(), &1.into()));
        assert_eq!(row["model"], "gpt2 of 7 664 parameters");
        assert!(row["plan"].as_str().unwrap().ends_with(" on 2 devices"), "{row}");
        let file = Path::new(&checkpoints).join(format!("step-{step:08}/rank-0000.safetensors"));
        assert_eq!(row["bytes"].as_u64().unwrap(), file.metadata().unwrap().len());
    }
    assert_eq!(rows[1]["loss"], summary["loss"]);
    let text = stdout(&["ckpt", "list", &checkpoints]);
    assert!(text.lines().nth(2).unwrap().ends_with(" (latest)"), "{text}");

    // A run that is over has no speed.
    let resumed = ["train", "--steps", "4", "--costs", "modelled", "--checkpoint", &checkpoints, "--resume"];
    let text = stdout(&[&resumed, SMALL].concat());
    assert!(text.contains("steps         4, all of them before: there was nothing left to do\n"), "{text}");
    assert!(!text.contains("speed") && !text.contains("in matmul"), "{text}");
    assert!(text.contains(summary["weights_hash"].as_str().unwrap()), "{text}");

    let single = dir.path("a/step-00000002");
    let shown = json_lines(&["ckpt", "show", &single, "--json"]).remove(0);
    assert_eq!(shown["manifest"]["run"]["step"], 2);
    let text = stdout(&["ckpt", "show", &checkpoints]);
    for part in [
        "  steps = 4\n",
        "  transformer.h.0.attn.q.weight: param f32[16, 16]\n    rank-0000.safetensors: [16, 8] at [0, 0]\n",
        "    rank-0000.safetensors: [16, 8] at [0, 8]\n",
        "step          4, 512 tokens, loss ",
    ] {
        assert!(text.contains(part), "`{part}` in {text}");
    }
}

#[test]
fn the_best_checkpoint_is_marked_in_a_list_and_can_be_saved() {
    let dir = Dir::new("ckpt-best");
    // Weights do not change: of equal losses the first is the best.
    let still = ["--lr", "0", "--eval-every", "2", "--patience", "1", "--steps", "9"];
    let summary = train(&dir, "a", &[&still[..], &["--save", &dir.path("out"), "--save-best"]].concat());
    let stopped = [&summary["steps"], &summary["stopped_by_patience"], &summary["saved_step"]];
    assert_eq!(stopped, [4, 1, 2]);
    assert_eq!((&summary["interrupted"], &summary["best_eval_step"]), (&false.into(), &2.into()));
    let rows = json_lines(&["ckpt", "list", &dir.path("a"), "--json"]);
    let marks: Vec<_> = rows.iter().map(|row| (&row["best"], &row["latest"], &row["eval_loss"])).collect();
    let loss = &summary["eval_loss"];
    assert_eq!(marks, [(&true.into(), &false.into(), loss), (&false.into(), &true.into(), loss)]);
    let text = stdout(&["ckpt", "list", &dir.path("a")]);
    assert!(text.lines().nth(1).unwrap().ends_with(" (best)"), "{text}");
    assert!(stdout(&["ckpt", "show", &dir.path("a")]).contains(", eval loss "));
    let again = [&still[..], &["--resume"]].concat();
    assert_eq!(train(&dir, "a", &again)["steps"], 4, "it has no patience left");
}

#[test]
fn damage_is_found_and_named() {
    let dir = Dir::new("ckpt-verify");
    train(&dir, "a", &[]);
    let (checkpoints, file) = (dir.path("a"), dir.path("a/step-00000002/rank-0000.safetensors"));
    let text = stdout(&["ckpt", "verify", &checkpoints, "--all"]);
    assert_eq!(text.lines().filter(|line| line.contains(" is whole: ")).count(), 2, "{text}");
    damage(&file);
    stdout(&["ckpt", "verify", &checkpoints]);
    let message = error(&["ckpt", "verify", &checkpoints, "--all"], 1);
    let shown = json_lines(&["ckpt", "show", &dir.path("a/step-00000002"), "--json"]).remove(0);
    let expected = shown["manifest"]["files"][0]["xxh3"].as_str().unwrap();
    let says = format!("the manifest says {expected}");
    for part in ["step-00000002 is damaged", "rank-0000.safetensors has the checksum ", &says] {
        assert!(message.contains(part), "`{part}` in {message}");
    }
    assert!(
        error(&["ckpt", "export", &dir.path("a/step-00000002"), "--hf", &dir.path("hf")], 2).contains(&says)
    );

    // A part that is there twice, in a manifest of the first version, which had no checksum.
    let manifest = dir.path("a/step-00000004/manifest.json");
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    let tensors = changed["tensors"].as_array_mut().unwrap();
    let vector = tensors.iter_mut().find(|tensor| tensor["shape"] == serde_json::json!([16])).unwrap();
    let parts = vector["parts"].as_array_mut().unwrap();
    parts.push(parts[0].clone());
    changed["format"] = 1.into();
    std::fs::write(&manifest, changed.to_string()).unwrap();
    let message = error(&["ckpt", "verify", &checkpoints], 1);
    assert!(message.contains("is [16] at [0] and overlaps `parts[0]`, [16] at [0]"), "{message}");
    assert!(error(&["ckpt", "list", &dir.path("none")], 2).contains("none has no checkpoints"));
}

#[test]
fn an_exported_checkpoint_is_what_the_run_saves_and_can_be_imported() {
    let dir = Dir::new("ckpt-export");
    let [hf, out, again, imported] = ["hf", "out", "again", "imported"].map(|name| dir.path(name));
    for family in [&["--model", "gpt2"][..], &["--model", "llama", "--size", "large", "--kv-heads", "1"]] {
        let checkpoints = dir.path(family[1]);
        let summary = train(&dir, family[1], &[family, &["--save", &hf, "--overwrite"]].concat());
        stdout(&["ckpt", "export", &checkpoints, "--hf", &out, "--overwrite"]);
        assert_eq!(contents(&out), contents(&hf), "{family:?}");
        let second = dir.path(&format!("{}/step-00000002", family[1]));
        assert!(error(&["ckpt", "export", &second, "--hf", &out], 2).contains("--overwrite"));
        stdout(&["ckpt", "export", &second, "--hf", &out, "--overwrite"]);
        assert_ne!(contents(&out), contents(&hf), "{family:?}");

        let text = stdout(&["ckpt", "import", "--hf", &hf, "--checkpoint", &imported, "--batch", "8"]);
        let whole = json_lines(&["ckpt", "verify", &imported, "--all", "--json"]);
        assert_eq!((whole.len(), &whole[0]["whole"]), (1, &true.into()));
        // No step has had a loss.
        assert_eq!(json_lines(&["ckpt", "list", &imported, "--json"])[0]["loss"], Value::Null);
        assert!(stdout(&["ckpt", "list", &imported]).contains(" none "));
        assert!(stdout(&["ckpt", "show", &imported]).contains("step          0, before the first one\n"));
        stdout(&["ckpt", "export", &imported, "--hf", &again, "--overwrite"]);
        assert_eq!(contents(&again), contents(&hf), "{family:?}");
        check_zero_state(&imported, summary["parameters"].as_u64().unwrap());

        // The command that is proposed goes on from there.
        let proposed = text
            .lines()
            .find_map(|line| line.strip_prefix("train it with the same flags: phalanx "))
            .unwrap();
        let more = ["--steps", "3", "--batch", "8", "--json", "--costs", "modelled", "--every", "1"];
        let args: Vec<&str> = proposed.split(' ').chain(more).collect();
        let lines = json_lines(&args);
        assert_eq!(lines.len(), 4, "three steps and the summary");
        let (first, before) = (lines[0]["loss"].as_f64().unwrap(), summary["loss"].as_f64().unwrap());
        assert!(first < before + 0.02, "{first} goes on from {before}");
        let steps: Vec<Value> = json_lines(&["ckpt", "list", &imported, "--json"]);
        assert_eq!(steps.last().unwrap()["step"], 3);
        assert!(
            error(&["ckpt", "import", "--hf", &hf, "--checkpoint", &imported], 2).contains("has checkpoints")
        );
        std::fs::remove_dir_all(&imported).unwrap();
    }
    let config = std::fs::read_to_string(Path::new(&hf).join("config.json")).unwrap();
    dir.write("hf/config.json", config.replace("\"silu\"", "\"relu\""));
    stdout(&["ckpt", "import", "--hf", &hf, "--checkpoint", &imported, "--batch", "8"]);
    stdout(&["ckpt", "export", &imported, "--hf", &again, "--overwrite"]);
    assert_eq!(contents(&again), contents(&hf), "no size or function is lost");
}

/// Checks that the file of a checkpoint before the first step ends with two zeros of state for each parameter.
fn check_zero_state(checkpoints: &str, parameters: u64) {
    let bytes = std::fs::read(Path::new(checkpoints).join("step-00000000/rank-0000.safetensors")).unwrap();
    let (weights, state) = bytes.split_at(bytes.len() - 8 * parameters as usize);
    assert!(state.iter().all(|&byte| byte == 0));
    assert!(weights[weights.len() - 4 * parameters as usize..].iter().any(|&byte| byte != 0));
}

#[test]
fn the_first_difference_of_two_runs_is_named() {
    let dir = Dir::new("diff");
    let [a, b, c] = ["a", "b", "c"].map(|name| dir.path(name));
    let [log_a, log_b, log_c] = ["log-a", "log-b", "log-c"].map(|name| dir.path(name));
    train(&dir, "a", &["--log-dir", &log_a]);
    train_under(&["launch", "-n", "2", "--"], &dir, "b", &["--log-dir", &log_b, "--plan", "fsdp"]);
    assert_eq!(json_lines(&["ckpt", "list", &b, "--json"])[0]["ranks"], 2);
    train(&dir, "c", &["--log-dir", &log_c, "--weight-decay", "0.5"]);
    assert_eq!(stdout(&["diff", &a, &b]), "equal in 2 common checkpoints\n");
    assert_eq!(stdout(&["diff", &log_a, &log_b]), "equal in 4 common steps\n");

    let losses = [&log_a, &log_c].map(|log| {
        let text = std::fs::read_to_string(Path::new(log).join("rank-0.jsonl")).unwrap();
        let loss = |line: &str| serde_json::from_str::<Value>(line).unwrap()["loss"].clone();
        text.lines().map(loss).collect::<Vec<_>>()
    });
    let first = (1..=4).find(|step| losses[0][step - 1] != losses[1][step - 1]).unwrap();
    let found = differ(&["diff", &log_a, &log_c, "--json"]);
    assert_eq!((&found["equal"], &found["step"]), (&false.into(), &first.into()));
    assert_eq!(
        found["first"]["left"].as_f64().unwrap() as f32,
        losses[0][first - 1].as_f64().unwrap() as f32
    );
    let found = differ(&["diff", &a, &c, "--json"]);
    assert_eq!((&found["equal"], &found["step"]), (&false.into(), &2.into()));

    let file = dir.path("b/step-00000004/rank-0000.safetensors");
    damage(&file);
    assert!(stdout(&["diff", &dir.path("a/step-00000002"), &b]).contains("equal in 1 common checkpoint"));
    let found = differ(&["diff", &a, &b, "--json"]);
    let first = &found["first"];
    assert_eq!((&found["step"], &first["differing"]), (&4.into(), &1.into()));
    assert_eq!(first["difference"], "elements");
    let [left, right, largest] = ["left", "right", "largest"].map(|field| first[field].as_f64().unwrap());
    // Numbers of JSON are read to the last bit but one.
    assert!(((left - right).abs() / largest - 1.0).abs() < 1e-12, "{first}");
    let text = String::from_utf8(run(&["diff", &a, &b]).stdout).unwrap();
    let name = first["tensor"].as_str().unwrap();
    assert!(text.starts_with(&format!("step 4 differs: tensor `{name}` at [")), "{text}");
    assert!(text.contains("; 1 of "), "{text}");

    for (left, right, part) in [
        (&a, &log_a, "one has checkpoints, the other a log"),
        (&dir.path("a/step-00000002"), &dir.path("a/step-00000004"), "no step in common: 2 and 4"),
        (&a, &dir.path("nothing"), "nothing has neither checkpoints nor a log"),
    ] {
        assert!(error(&["diff", left, right], 2).contains(part), "{left} {right}");
    }
}

/// The JSON of a comparison that finds a difference.
fn differ(args: &[&str]) -> Value {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
