//! The other commands: step, explain, doctor, generate, bench.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::Stdio;

use crate::common::{Dir, SMALL, batch, error, json_lines, phalanx, run, stdout};
use serde_json::Value;

/// A small trained model.
fn trained(dir: &Dir) -> String {
    let save = dir.path("model");
    stdout(&[&["train", "--json", "--steps", "5", "--save", &save], SMALL].concat());
    save
}

#[test]
fn step_lowers_the_loss_of_a_saved_model_and_writes_tensors() {
    let dir = Dir::new("step");
    let (model, batch, out) =
        (trained(&dir), dir.write("batch.safetensors", batch(4, 16)), dir.path("out.safetensors"));
    let args = ["step", "--hf", &model, "--batch", &batch, "--steps", "4", "--out", &out];
    let line = &json_lines(&[&args[..], &["--json"]].concat())[0];
    let losses: Vec<f64> =
        line["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert_eq!(losses.len(), 4);
    assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    let text = stdout(&[&args[..], &["--cores", "1", "--accumulate", "2"]].concat());
    assert!(
        text.contains(line["weights_hash"].as_str().unwrap()),
        "same bits on one core in two parts: {text}"
    );
    let file = std::fs::read(&out).unwrap();
    let header = String::from_utf8_lossy(&file);
    for name in ["\"loss\"", "\"grad.transformer.wte.weight\"", "\"weight.transformer.ln_f.bias\""] {
        assert!(header.contains(name), "{name}");
    }
}

#[test]
fn step_names_what_is_wrong() {
    let dir = Dir::new("step-wrong");
    let (model, good, out) =
        (trained(&dir), dir.write("good.safetensors", batch(2, 16)), dir.path("o.safetensors"));
    let long = dir.write("long.safetensors", batch(2, 17));
    let junk = dir.write("junk.safetensors", "junk");
    for (hf, batch, out, extra, part) in [
        ("/nonexistent", &good, &out, &["--steps", "1"], "/nonexistent"),
        (&model, &junk, &out, &["--steps", "1"], "junk.safetensors"),
        (&model, &long, &out, &["--steps", "1"], "17"),
        (&model, &good, &out, &["--steps", "0"], "--steps"),
        (&model, &good, &"/nonexistent/o".to_string(), &["--steps", "1"], "/nonexistent/o"),
    ] {
        let message = error(&[&["step", "--hf", hf, "--batch", batch, "--out", out], &extra[..]].concat(), 2);
        assert!(message.contains(part), "`{part}` in: {message}");
    }
}

#[test]
fn explain_prints_every_stage_as_text_that_parses() {
    let list = stdout(&[&["explain"], SMALL].concat());
    let stages: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let (program, stages) = stages.split_last().unwrap();
    assert_eq!(*program, "program:");
    assert!(stages.len() > 5);
    for stage in stages {
        let text = stdout(&[&["explain", "--after", stage], SMALL].concat());
        let parsed = match text.split_whitespace().next().unwrap() {
            "graph" => phalanx::ir::graph::Graph::parse(&text, phalanx::ops::operators())
                .map(|level| level.to_string()),
            "parallel" => phalanx::ir::parallel::ParallelGraph::parse(&text, phalanx::ops::operators())
                .map(|level| level.to_string()),
            "sharded" => text.parse::<phalanx::ir::sharded::ShardedGraph>().map(|level| level.to_string()),
            "tasks" => text.parse::<phalanx::ir::tasks::TaskGraph>().map(|level| level.to_string()),
            "program" => text.parse::<phalanx::Program>().map(|level| level.to_string()),
            "schedule" => text.parse::<phalanx::Schedule>().map(|level| level.to_string()),
            other => panic!("{stage} prints `{other}`"),
        };
        assert_eq!(parsed.unwrap().trim(), text.trim(), "{stage}");
    }
}

#[test]
fn an_mlp_is_explained_and_not_trained_on_text() {
    let mlp = ["--model", "mlp", "--layers", "2", "--width", "16", "--batch", "8"];
    let text = stdout(&[&["explain", "--after", "build"], &mlp[..]].concat());
    assert!(text.contains("%layers.1.weight = param init=uniform(0.25) f32[16, 16]"), "{text}");
    assert!(stdout(&[&["explain"], &mlp[..]].concat()).contains("emit"), "it compiles");
    let message = error(&[&["train"], &mlp[..]].concat(), 2);
    assert!(message.contains("`model` is mlp; it reads no text"), "{message}");
    let message = error(&[&["explain", "--heads", "2"], &mlp[..]].concat(), 2);
    assert!(message.contains("`heads` is 2; an mlp has none"), "{message}");
    let message = error(&["explain", "--model", "mlp", "--layers", "99999999999"], 2);
    assert!(message.contains("`layers` is 99999999999; use at most 16384"), "{message}");
}

#[test]
fn explain_lists_the_stages_when_one_is_unknown() {
    let message = error(&["explain", "--after", "magic"], 2);
    assert!(
        message.contains("`magic`") && message.contains("build, parallelize") && message.contains("emit")
    );
    let dir = Dir::new("explain");
    let model = trained(&dir);
    assert!(stdout(&["explain", "--hf", &model, "--after", "build"]).contains("f32[256, 16]"));
    assert!(error(&["explain", "--hf", &model, "--layers", "2"], 2).contains("--hf"));
}

#[test]
fn doctor_ends_with_its_counts() {
    let text = stdout(&["doctor", "--isa", "portable", "--cores", "2"]);
    let last: Vec<&str> = text.lines().last().unwrap().split(' ').collect();
    let [_, "passed,", "0", "failed,", _, "unsupported"] = last[..] else { panic!("{last:?}") };
    assert!(text.lines().next().unwrap().contains("portable"));
}

#[test]
fn doctor_counts_wrong_results_and_malformed_lines_as_failed() {
    let dir = Dir::new("doctor");
    let case = |id: &str, result: f64| {
        let tensor = |value: f64| format!("{{\"dtype\":\"f32\",\"shape\":[1],\"data\":[{value}]}}");
        format!(
            "{{\"id\":\"{id}\",\"op\":\"element_unary\",\"attrs\":{{\"kind\":\"relu\"}},\"inputs\":{{\"input\":{}}},\
             \"outputs\":{{\"output\":{}}},\"output_grads\":{{\"output\":{}}},\"input_grads\":{{\"input\":{}}}}}",
            tensor(2.0),
            tensor(result),
            tensor(1.0),
            tensor(1.0)
        )
    };
    let unknown = case("unknown", 2.0).replace("relu", "frobnicate");
    let ops = dir
        .write("ops.jsonl", format!("{}\nnot json\n{}\n\n{unknown}\n", case("good", 2.0), case("bad", 3.0)));
    let output = run(&["doctor", "--ops", &ops]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().skip(3).collect();
    assert!(lines[0].starts_with("line 2: not an operator case"), "{text}");
    assert!(lines[1].starts_with("bad (reference): ") && lines[2].starts_with("bad (fast): "), "{text}");
    assert_eq!(lines[3], "operators that are not supported, with their cases: element_unary (1)");
    assert_eq!(lines[4], "1 passed, 2 failed, 1 unsupported");
    assert!(error(&["doctor", "--ops", "/nonexistent"], 2).contains("/nonexistent"));
    assert!(
        error(&["doctor", "--ops", &dir.write("empty.jsonl", "\n")], 2).contains("empty.jsonl has no cases")
    );
}

#[test]
fn generated_text_depends_on_the_seed_alone() {
    let dir = Dir::new("generate");
    let model = trained(&dir);
    let write = |extra: &[&str]| {
        let args =
            ["generate", "--hf", &model, "--prompt", "a prompt longer than the context", "--tokens", "12"];
        stdout(&[&args[..], extra].concat())
    };
    let greedy = write(&["--temperature", "0"]);
    assert_eq!(greedy, write(&["--temperature", "0", "--seed", "5"]), "greedy needs no seed");
    assert_eq!(greedy, write(&["--top-k", "1", "--seed", "5"]), "one candidate is the likeliest");
    assert_eq!(greedy, write(&["--top-p", "0.000001", "--seed", "6"]));
    let warm = write(&["--temperature", "1", "--seed", "5"]);
    assert_eq!(warm, write(&["--temperature", "1", "--seed", "5", "--cores", "1"]));
    assert_ne!(warm, write(&["--temperature", "1", "--seed", "6"]));
    assert!(warm.starts_with("a prompt longer than the context"));
    assert!(error(&["generate", "--hf", &model, "--prompt", ""], 2).contains("at least one character"));
    assert!(error(&["generate", "--hf", &model, "--prompt", "a", "--temperature", "-1"], 2).contains("-1"));
    assert!(error(&["generate", "--hf", &model, "--prompt", "a", "--top-p", "2"], 2).contains("top-p is 2"));
    assert!(error(&["generate", "--hf", "/nonexistent", "--prompt", "a"], 2).contains("/nonexistent"));
}

#[test]
fn a_conversation_is_kept_until_it_is_reset() {
    let dir = Dir::new("chat");
    let model = trained(&dir);
    let greedy = ["generate", "--hf", &model, "--tokens", "5", "--temperature", "0", "--json"];
    let said = |lines: &str| -> Vec<Value> {
        let mut chat = phalanx();
        let mut chat = chat.args([&greedy[..], &["--chat"]].concat());
        chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut chat = chat.spawn().unwrap();
        chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = chat.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let written = |prompt: &str| {
        let line = json_lines(&[&greedy[..], &["--prompt", prompt]].concat()).remove(0);
        let text = line["text"].as_str().unwrap().strip_prefix(prompt).unwrap().to_string();
        text.split("\nUser:").next().unwrap().trim().to_string()
    };
    let answers: Vec<Value> =
        said("hello\n\nwhy\n/reset\nhello\n/quit\nno").iter().map(|line| line["answer"].clone()).collect();
    let first = written("User: hello\nAssistant:");
    let second = written(&format!("User: hello\nAssistant: {first}\nUser: why\nAssistant:"));
    assert_eq!(answers, [first.clone(), second, first]);
    assert!(error(&[&greedy[..], &["--chat", "--prompt", "a"]].concat(), 2).contains("--prompt"));
    assert!(error(&greedy, 2).contains("--prompt"));
}

#[test]
fn text_is_written_by_one_process() {
    let rank = |rank: &str| {
        let mut command = phalanx();
        command.args(["generate", "--hf", "/nonexistent", "--prompt", "a"]);
        command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "2").output().unwrap()
    };
    let first = rank("0");
    let message = String::from_utf8(first.stderr).unwrap();
    assert!(first.status.code() == Some(2) && message.contains("one process"), "{message}");
    let other = rank("1");
    assert!(other.status.success() && other.stdout.is_empty() && other.stderr.is_empty());
}

#[test]
fn bench_prints_rates() {
    let sizes =
        ["--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "2", "--steps", "3"];
    let line = &json_lines(&[&["bench", "train", "--json"], &sizes[..]].concat())[0];
    for key in ["tokens_per_s", "best_tokens_per_s", "ms_per_step", "gflops", "fma_peak_gflops", "peak_share"]
    {
        assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
    }
    assert!(!line["kernels"].as_array().unwrap().is_empty());
    let lines = json_lines(&["bench", "gemm", "--json", "--filter", "256x256x256", "--rounds", "2"]);
    assert!(lines[0]["gflops"].as_f64().unwrap() > 0.0);
    assert!(error(&["bench", "gemm", "--blas", "/nonexistent.so"], 2).contains("/nonexistent.so"));
}

#[test]
fn the_version_names_commit_and_processor_features() {
    let version = format!("phalanx {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&["-V"]), format!("{version}\n"));
    let text = stdout(&["--version"]);
    let [first, kernels] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    // A build without git and outside of a package knows no commit.
    let commit = first.strip_prefix(&version).unwrap();
    let is_commit = |text: &str| text.len() == 12 && text.chars().all(|c| c.is_ascii_hexdigit());
    let named = commit.strip_prefix(" (commit ").and_then(|rest| rest.strip_suffix(')'));
    assert!(commit.is_empty() || named.is_some_and(is_commit), "{first}");
    assert!(kernels.starts_with("kernels: ") && kernels.contains(", using "), "{kernels}");
}

#[test]
fn help_teaches_with_an_example() {
    for command in [
        &["train"][..],
        &["step"],
        &["explain"],
        &["doctor"],
        &["generate"],
        &["bench", "train"],
        &["bench", "gemm"],
    ] {
        let text = stdout(&[command, &["--help"]].concat());
        assert!(text.contains("Example") && text.contains("--json"), "{command:?}: {text}");
    }
}
