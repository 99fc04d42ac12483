//! `phalanx train --checkpoint`: killed at any moment, the run goes on where it was, with the same bits.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::common::{Dir, error, phalanx, run};
use serde_json::Value;

/// What is trained.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/resume/run.toml");

/// A run with a checkpoint every second step, of which one is kept.
struct Training {
    dir: Dir,
    text: String,
}

impl Training {
    fn new(test: &str) -> Training {
        let dir = Dir::new(test);
        let text = dir.write("data.txt", "all work and no play makes jack a dull boy. ".repeat(40));
        Training { dir, text }
    }

    fn args<'a>(&'a self, extra: &[&'a str]) -> Vec<&'a str> {
        [&["train", RUN, "--json", "--data", &self.text], extra].concat()
    }

    /// Runs with checkpoints in the directory `name`.
    fn save(&self, name: &str, extra: &[&str]) -> Output {
        let checkpoints = self.dir.path(name);
        let flags = ["--checkpoint", &checkpoints, "--every", "2", "--keep", "1"];
        run(&self.args(&[&flags[..], extra].concat()))
    }
}

/// The summary of a run that must succeed.
fn summary(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["summary"].clone()
}

/// Whether a run was ended by the signal that nothing survives.
fn was_killed(output: &Output) -> bool {
    use std::os::unix::process::ExitStatusExt;
    output.status.signal() == Some(9)
}

fn names(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap().lines().next().unwrap().to_string()
}

#[test]
fn a_run_killed_at_any_call_or_step_ends_with_the_same_weights() {
    let training = Training::new("kills");
    let expected = summary(&run(&training.args(&[])))["weights_hash"].clone();
    let mut kills = 0;
    let mut kill = |name: &str, drill: &str| {
        let killed = training.save(name, &["--resume", "--drill", drill]);
        if !was_killed(&killed) {
            assert_eq!(summary(&killed)["weights_hash"], expected, "{drill}");
            return false;
        }
        kills += 1;
        let resumed = summary(&training.save(name, &["--resume"]));
        assert_eq!((&resumed["weights_hash"], &resumed["steps"]), (&expected, &4.into()), "{drill}");
        let left = names(&training.dir.path(name));
        assert_eq!(left.last().unwrap(), "step-00000004", "{drill}");
        assert!(left.iter().all(|name| !name.starts_with('.')), "{drill}: {left:?}");
        let latest = training.dir.path(&format!("{name}/latest"));
        assert_eq!(first_line(&latest), "step-00000004", "{drill}");
        true
    };
    for step in 1..=4 {
        assert!(kill(&format!("step-{step}"), &format!("kill@0:{step}")), "step {step}");
    }
    let calls = (1..).take_while(|call| kill(&format!("call-{call}"), &format!("kill@save:{call}"))).count();
    assert!(calls >= 40, "{calls} calls");
    // Killed again and again in one directory, somewhere in the first checkpoint that each attempt writes.
    assert!([7, 9, 13, 16].iter().all(|call| {
        let drill = format!("kill@save:{call}");
        was_killed(&training.save("again", &["--resume", "--drill", &drill]))
    }));
    assert_eq!(summary(&training.save("again", &["--resume"]))["weights_hash"], expected);
    assert!(kills >= 44, "{kills} kills");
}

#[test]
fn a_signal_commits_a_checkpoint_and_the_run_can_be_resumed() {
    let training = Training::new("signal");
    let checkpoints = training.dir.path("checkpoints");
    let long = training.args(&["--checkpoint", &checkpoints, "--steps", "1000000"]);
    for (signal, resume) in [("-TERM", &[][..]), ("-INT", &["--resume"])] {
        let mut child = phalanx().args(&long).args(resume).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let last: Value = serde_json::from_str(&lines.last().unwrap().unwrap()).unwrap();
        assert_eq!(last["summary"]["interrupted"], true);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let step = last["summary"]["steps"].as_u64().unwrap();
        assert_eq!(first_line(&format!("{checkpoints}/latest")), format!("step-{step:08}"));
    }
    // A run that has nothing left to do says what it has come to.
    let done = training.save("done", &[]);
    let again = training.save("done", &["--resume"]);
    assert_eq!(summary(&again)["weights_hash"], summary(&done)["weights_hash"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout).lines().count(), 1, "no step is done again");
}

#[test]
fn minutes_count_as_well_as_steps() {
    let training = Training::new("minutes");
    let checkpoints = training.dir.path("checkpoints");
    let flags = ["--checkpoint", &checkpoints, "--every-minutes", "0", "--sync-checkpoints"];
    summary(&run(&training.args(&flags)));
    let found = names(&checkpoints);
    assert_eq!(found.first().unwrap(), "latest");
    assert!(found.len() > 2 && found.last().unwrap() == "step-00000004", "{found:?}");
}

#[test]
fn a_failing_disk_is_a_warning_that_names_file_and_call() {
    let training = Training::new("disk");
    let expected = summary(&run(&training.args(&[])))["weights_hash"].clone();
    let output = training.save("warned", &["--drill", "eio@save:8"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(summary(&output)["weights_hash"], expected);
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in ["warning: step-00000002 is not saved: cannot write ", "rank-0000.safetensors", "os error 5"]
    {
        assert!(text.contains(part), "`{part}` in {text}");
    }
    assert_eq!(names(&training.dir.path("warned")), ["latest", "step-00000004"]);
    let strict = training.dir.path("strict");
    let flags = ["--checkpoint", &strict, "--every", "2", "--strict", "--drill", "rename@save:1"];
    let message = error(&training.args(&flags), 1);
    assert!(message.contains("cannot rename ") && message.contains(".step-00000002.partial"), "{message}");
}

#[test]
fn a_limit_on_file_sizes_is_an_error_of_the_write_and_the_last_checkpoint_survives() {
    let training = Training::new("limit");
    summary(&training.save("checkpoints", &["--steps", "2"]));
    let checkpoints = training.dir.path("checkpoints");
    let flags = ["--steps", "4", "--checkpoint", &checkpoints, "--every", "2", "--keep", "1", "--resume"];
    // Blocks of 512 bytes.
    let limited = ["-c", "ulimit -f 8; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_phalanx")];
    let output = Command::new("sh").args(limited).args(training.args(&flags)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in [
        "step-00000004 is not saved: cannot write ",
        "rank-0000.safetensors: File too large (os error 27)",
        "; the last checkpoint is of step 2\n",
    ] {
        assert!(text.contains(part), "`{part}` in {text}");
    }
    assert_eq!(names(&checkpoints), ["latest", "step-00000002"]);
    assert!(run(&["ckpt", "verify", &checkpoints, "--all"]).status.success());
    let save = training.dir.path("model");
    let args = training.args(&["--steps", "1", "--save", &save]);
    let output = Command::new("sh").args(limited).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("File too large (os error 27)"), "{text}");
    assert!(!std::path::Path::new(&save).exists(), "a model is saved as a whole");
}

#[test]
fn a_run_whose_last_state_is_not_saved_fails_and_names_what_there_is() {
    let training = Training::new("unsaved");
    // Every second of four steps is saved; the calls are those of the first checkpoint, and then those of the last one.
    let calls = (1..60).map(|call| format!("eio@save:{call}"));
    let mut failed = 0;
    for (name, drill) in calls.enumerate().map(|(number, drill)| (format!("unsaved-{number}"), drill)) {
        let output = training.save(&name, &["--drill", &drill]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_string);
        let last = last.and_then(|last| serde_json::from_str::<Value>(&last).ok()).unwrap_or_default();
        if text.contains("step-00000004 is not saved") {
            failed += 1;
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("; the last checkpoint is of step 2\n"), "{text}");
            let problem = last["summary"]["checkpoint_problem"].as_str().unwrap();
            assert!(problem.contains("cannot ") && problem.contains("os error 5"), "{problem}");
            assert_eq!(last["summary"]["checkpoint"], 2);
        } else if last["summary"].is_object() {
            assert_eq!(output.status.code(), Some(0), "{text}");
            assert_eq!(last["summary"]["checkpoint"], 4);
        }
    }
    assert!(failed > 5, "{failed} faults struck the last checkpoint");
}

#[test]
fn a_run_is_not_resumed_with_other_data_unless_that_is_accepted() {
    let training = Training::new("other_data");
    summary(&training.save("ck", &[]));
    let checkpoint = training.dir.path("ck");
    training.dir.write("data.txt", "no work and all play makes jack a mere toy. ".repeat(40));
    let resume = ["--checkpoint", &checkpoint, "--every", "2", "--keep", "1", "--resume", "--steps", "6"];
    let message = error(&training.args(&resume), 2);
    for part in [
        "step-00000004 was trained on 1760 tokens with the hash ",
        "has 1760 tokens with",
        "--accept-data-change",
    ] {
        assert!(message.contains(part), "`{part}` in {message}");
    }
    let accepted = run(&training.args(&[&resume[..], &["--accept-data-change"]].concat()));
    assert_eq!(summary(&accepted)["steps"], 6);
}

#[test]
fn mistakes_are_named() {
    let training = Training::new("resume_mistakes");
    let taken = training.dir.path("taken");
    summary(&training.save("taken", &[]));
    let file = training.dir.write("file", "");
    for (args, parts) in [
        (&["--resume"][..], &["`resume`", "`checkpoint`"][..]),
        (&["--every", "2"], &["`every` is 2", "needs `checkpoint`"]),
        (&["--drill", "eio@save:3"], &["eio@save:3", "needs `checkpoint`"]),
        (&["--checkpoint", "c", "--every", "0"], &["'0'", "--every <N>", "at least 1"]),
        (&["--checkpoint", "c", "--keep", "0"], &["'0'", "--keep", "at least 1"]),
        (&["--checkpoint", "c", "--every-minutes", "-1"], &["'-1'", "--every-minutes", "below a million"]),
        (&["--every", "2", "--every-minutes", "1"], &["--every", "--every-minutes"]),
        (&["--drill", "flood@save:3"], &["flood@save:3", "KIND@save:CALL", "enospc"]),
        (&["--drill", "kill@1:3"], &["rank 1", "this one has 1"]),
        (&["--checkpoint", &taken], &["taken", "step 4", "--resume"]),
    ] {
        let message = error(&training.args(args), 2);
        parts.iter().for_each(|part| assert!(message.contains(part), "{args:?}: `{part}` in: {message}"));
    }
    let deeper = training.args(&["--checkpoint", &taken, "--resume", "--layers", "2"]);
    let message = error(&deeper, 2);
    assert!(message.contains("layers") && message.contains("is 1 in the checkpoint, but 2"), "{message}");
    let below = format!("{file}/c");
    let message = error(&training.args(&["--checkpoint", &below]), 2);
    assert!(message.contains("file/c") && message.contains("Not a directory"), "{message}");
}
