//! What `phalanx train` shows while it runs and why it stops: logs, evaluations, a loss low enough, a loss no more.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines, stdout};
use crate::mpi::Launcher;
use serde_json::Value;

fn train<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--json", "--steps", "6"], SMALL, extra].concat()
}

/// Every line's number called `key`, where it has one.
fn numbers(lines: &[Value], key: &str) -> Vec<f64> {
    lines.iter().filter_map(|line| line[key].as_f64()).collect()
}

/// A learning rate with which the second step is not finite.
const WILD: &[&str] = &["--optimizer", "sgd", "--lr", "1e30", "--warmup", "0", "--clip", "0"];

#[test]
fn a_log_directory_has_lines_and_an_event_file() {
    let dir = Dir::new("watch_logs");
    let logs = dir.path("logs");
    let printed = json_lines(&train(&["--log-dir", &logs, "--eval-every", "3"]));
    let mut names: Vec<String> = std::fs::read_dir(&logs)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert!(names.len() == 2 && names[1] == "rank-0.jsonl", "{names:?}");
    let parts: Vec<&str> = names[0].splitn(4, '.').collect();
    assert_eq!(parts[..3], ["events", "out", "tfevents"]);
    assert!(parts[3].len() > 12 && parts[3][..10].bytes().all(|byte| byte.is_ascii_digit()), "{names:?}");
    let log = std::fs::read_to_string(format!("{logs}/rank-0.jsonl")).unwrap();
    let log: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for key in ["loss", "eval_loss"] {
        assert_eq!(numbers(&log, key), numbers(&printed, key));
    }
    let events = std::fs::read(format!("{logs}/{}", names[0])).unwrap();
    for name in
        ["brain.Event:2", "loss", "eval_loss", "lr", "gradient_norm", "tokens_per_s", "memory/resident_bytes"]
    {
        assert!(events.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
    }
}

#[test]
fn a_run_is_watched_by_its_logs() {
    let dir = Dir::new("watch_dashboard");
    let logs = dir.path("logs");
    let printed = json_lines(&train(&["--log-dir", &logs, "--eval-every", "3"]));
    let view = &json_lines(&["watch", &logs, "--json"])[0];
    assert_eq!((&view["step"], &view["steps"], &view["health"]), (&6.into(), &6.into(), &"finished".into()));
    for key in ["loss", "eval_loss", "eval_perplexity", "lr"] {
        assert_eq!(view[key], printed[5][key], "{key}");
    }
    let lane = &view["lanes"][0];
    assert!(lane[0] == "dev0" && (0.0..=1.0).contains(&lane[1].as_f64().unwrap()), "{view}");
    assert!(
        view["arena_bytes"].as_u64() > Some(0)
            && view["resident_bytes"].as_u64() > view["arena_bytes"].as_u64()
    );
    let picture = stdout(&["watch", &logs]);
    assert_eq!(picture, stdout(&["watch", &logs, "--once"]), "there is no terminal");
    assert_eq!(picture.lines().count(), 24);
    for part in ["logs  finished", "step 6/6", "busy lanes", "rank 0  step 6"] {
        assert!(picture.contains(part), "{part} in:\n{picture}");
    }
    let message = error(&["watch", &dir.path("none")], 2);
    assert!(message.contains("none") && message.contains("--log-dir"), "{message}");
}

#[test]
fn evaluations_are_in_lines_and_summary_and_change_no_loss() {
    let plain = json_lines(&train(&[]));
    let lines = json_lines(&train(&["--eval-every", "2", "--eval-batches", "3"]));
    assert_eq!(numbers(&lines, "loss"), numbers(&plain, "loss"));
    let steps: Vec<&Value> =
        lines.iter().filter(|line| line["eval_loss"].is_number()).map(|line| &line["step"]).collect();
    assert_eq!(steps, [2, 4, 6]);
    let summary = &lines[6]["summary"];
    assert_eq!(summary["eval_loss"], lines[5]["eval_loss"]);
    assert!(summary["eval_peak_bytes"].as_u64().unwrap() > 0);
    assert!(plain[6]["summary"].get("eval_loss").is_none());
    let people = [&["train", "--steps", "2", "--eval-every", "2"], SMALL].concat();
    let text = stdout(&people);
    assert_eq!(summary["eval_perplexity"], lines[5]["eval_perplexity"]);
    for (loss, perplexity) in numbers(&lines, "eval_loss").iter().zip(numbers(&lines, "eval_perplexity")) {
        assert!((perplexity.ln() - loss).abs() < 1e-6, "{perplexity} but {loss}");
    }
    for part in ["held-back windows", "eval loss", "perplexity", "best eval", "after step 2", "of evaluating"]
    {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
}

#[test]
fn a_loss_low_enough_ends_the_run_well() {
    let losses = numbers(&json_lines(&train(&[])), "loss");
    let wanted = losses[3];
    let steps = losses.iter().position(|&loss| loss <= wanted).unwrap() + 1;
    let lines = json_lines(&train(&["--stop-at-loss", &wanted.to_string()]));
    let summary = &lines.last().unwrap()["summary"];
    assert_eq!((lines.len(), &summary["steps"]), (steps + 1, &Value::from(steps)));
    assert_eq!(
        (&summary["interrupted"], summary["stopped_at_loss"].is_number()),
        (&Value::from(false), true)
    );
    let text = stdout(&[&["train", "--steps", "6", "--stop-at-loss", "99"], SMALL].concat());
    assert!(text.contains("1 of 6, stopped at a loss of 99 or less"), "{text}");
}

#[test]
fn a_loss_that_is_no_number_saves_nothing_and_debugging_says_where_it_begins() {
    let dir = Dir::new("watch_nan");
    let save = dir.path("model");
    let message = error(&train(&[WILD, &["--save", &save]].concat()), 1);
    assert!(message.contains("step 2") && message.contains("step 1 was the last good one"), "{message}");
    assert!(!std::fs::exists(&save).unwrap(), "there is no directory");
    let message = error(&train(&[WILD, &["--debug", "nan", "--plan", "dp", "--devices", "2"]].concat()), 1);
    for part in ["is not finite: operation ", "of layer `transformer.", "on dev", "element ["] {
        assert!(message.contains(part), "`{part}` in {message}");
    }
}

#[test]
fn mistakes_are_named() {
    for (args, parts) in [
        (&["--eval-every", "0"][..], &["'0'", "--eval-every", "at least 1"][..]),
        (&["--eval-share", "1"], &["'1'", "--eval-share", "below 1"]),
        (&["--eval-batches", "0"], &["'0'", "--eval-batches", "at least 1"]),
        (&["--stop-at-loss", "nan"], &["'nan'", "--stop-at-loss", "finite"]),
        (&["--debug", "inf"], &["--debug", "inf", "nan"]),
        (&["--patience", "2"], &["`patience` is 2", "needs `eval_every`"]),
        (&["--save-best"], &["`save_best` is true", "needs `save`"]),
        (&["--log-dir", "/proc/none"], &["/proc/none", "--log-dir"]),
    ] {
        let message = error(&train(args), 2);
        parts.iter().for_each(|part| assert!(message.contains(part), "{args:?}: `{part}` in: {message}"));
    }
}

#[test]
fn a_job_evaluates_and_stops_like_one_process_and_refuses_to_debug() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let args = ["--plan", "fsdp", "--devices", "2", "--eval-every", "2", "--eval-batches", "2"];
    let alone = json_lines(&train(&args));
    let wanted = numbers(&alone, "eval_loss")[1].to_string();
    let dir = Dir::new("watch_job");
    let logs = dir.path("logs");
    let ended =
        launcher.run(2, &train(&[&args[..], &["--stop-at-loss", &wanted, "--log-dir", &logs]].concat()));
    let summary = &ended.json()["summary"];
    let lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(numbers(&lines, "eval_loss"), numbers(&alone, "eval_loss")[..2]);
    assert_eq!((&summary["steps"], &summary["interrupted"]), (&4.into(), &false.into()));
    assert_eq!(std::fs::read_dir(&logs).unwrap().count(), 3, "a log for each rank and one event file");
    launcher.run(2, &train(&["--debug", "nan"])).fails(&["`debug` is nan", "leave out the launcher"]);
}
