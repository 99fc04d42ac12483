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
    assert_eq!(
        train(&["--steps", "9", "--steps", "2", "--nesterov", "--nesterov", "--optimizer", "sgd"]).len(),
        3
    );
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
        (&["--batch", "99999999"], &["TiB of memory", "GiB are free", "smaller"]),
        (&["--kv-heads", "2"], &["kv_heads", "2", "llama"]),
        (&["--lr-floor", "-3"], &["lr-floor", "-3"]),
        (&["--tokenizer", "t.json"], &["tokenizer", "t.json", "data"]),
        (&["--seed", "-1"], &["--seed", "-1"]),
        (&["--layers", "0"], &["layers"]),
        (&["--width", "0"], &["width"]),
        (&["--context", "0"], &["context"]),
        (&["--model", "berta"], &["berta", "gpt2, llama"]),
        (&["--model", "mlp"], &["mlp", "gpt2, llama"]),
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
fn flags_without_effect_are_refused_even_with_their_defaults() {
    for (args, message) in [
        (
            &["--momentum", "0.9"][..],
            "`momentum` is 0.9; it is for `optimizer` sgd, which is adamw: leave it out",
        ),
        (&["--nesterov"], "`nesterov` is true; it is for `optimizer` sgd, which is adamw: leave it out"),
        (
            &["--optimizer", "sgd", "--beta2", "0.95"],
            "`beta2` is 0.95; it is for `optimizer` adamw, adam, which is sgd: leave it out",
        ),
        (&["--eval-share", "0.1"], "`eval_share` is 0.1; it needs `eval_every`, which is not set"),
        (&["--eval-batches", "8"], "`eval_batches` is 8; it needs `eval_every`, which is not set"),
        (&["--keep", "2"], "`keep` is 2; it needs `checkpoint`, which is not set"),
        (
            &["--lr-decay", "0.3"],
            "`lr_decay` is 0.3; it is for `lr_schedule` wsd, which is cosine: leave it out",
        ),
        (
            &["--lr-schedule", "constant", "--lr-floor", "0.1"],
            "`lr_floor` is 0.1; it is for `lr_schedule` cosine, linear, wsd, which is constant: leave it out",
        ),
        (
            &["--stall-seconds", "60"],
            "`stall_seconds` is 60; it is for a job of several processes: leave it out, or start one with `phalanx launch`",
        ),
        (
            &["--devices-per-rank", "1"],
            "`devices_per_rank` is 1; it is for a job of several processes: leave it out, or start one with `phalanx launch`",
        ),
        (
            &["--link", "1ms,1Gbit"],
            "`link` is 1ms,1Gbit; it is about transfers between devices, and there is one device: leave it out, or choose a \
             plan",
        ),
        (
            &["--overlap", "on"],
            "`overlap` is on; it is about transfers between devices, and there is one device: leave it out, or choose a plan",
        ),
        (
            &["--json", "--log-every", "2"],
            "`log_every` is 2, but with --json every step is a line: leave one of them out",
        ),
    ] {
        assert_eq!(error(&[&["train"], SMALL, args].concat(), 2), message);
    }
    let dir = Dir::new("defaults-in-a-file");
    let file =
        dir.write("run.toml", "momentum = 0.9\nstall_seconds = 60\noverlap = \"off\"\nlr_decay = 0.2\n");
    assert_eq!(train(&[&file]).len(), 7, "a file may have all defaults");
}

#[test]
fn more_cores_than_there_are_and_a_warmup_without_end_are_warnings() {
    let output =
        run(&[&["train", "--json", "--steps", "2", "--warmup", "9", "--cores", "1000"], SMALL].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("warning: `cores` is 1000, but this machine has "), "{text}");
    let warmup =
        "warning: `warmup` is 9, but the run ends after 2 steps: the learning rate never reaches 0.003";
    assert!(text.contains(warmup), "{text}");
    // The default is longer than a short run, too; that is no mistake of the user.
    assert_eq!(
        String::from_utf8(run(&[&["train", "--json", "--steps", "2"], SMALL].concat()).stderr).unwrap(),
        ""
    );
}

#[test]
fn a_dry_run_tells_what_a_run_will_take_and_writes_nothing() {
    let dir = Dir::new("dry-run");
    let home = dir.path("home");
    let checkpoint = dir.path("ck");
    let (log, save) = (dir.path("log"), dir.path("model"));
    let args =
        ["--steps", "7", "--checkpoint", &checkpoint, "--every", "2", "--keep", "2", "--log-dir", &log];
    let args = [&["train"], SMALL, &args[..], &["--save", &save]].concat();
    let output =
        phalanx().args(&args).args(["--dry-run", "--json"]).env("XDG_CACHE_HOME", &home).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path("")).unwrap().count(), 0, "nothing is written");
    let forecast: Value = serde_json::from_slice(&output.stdout).unwrap();
    // 7 steps of 8 x 16 tokens; saved after steps 2, 4, 6 and 7.
    assert_eq!((&forecast["tokens"], &forecast["ranks"]), (&896.into(), &1.into()));
    assert_eq!((&forecast["checkpoints"]["count"], &forecast["checkpoints"]["kept"]), (&4.into(), &2.into()));
    // Weights and two moments of each, in four bytes.
    assert_eq!(forecast["checkpoints"]["bytes"], 12 * forecast["parameters"].as_u64().unwrap());
    assert!(forecast["step_seconds"].as_f64().unwrap() > 0.0);
    let writes: Vec<_> = forecast["writes"].as_array().unwrap().iter().map(|write| &write["path"]).collect();
    assert_eq!(writes, [&log, &checkpoint, &save]);
    // The run that follows has the arenas that were told, and as many checkpoints.
    let lines = json_lines(&[&args[..], &["--json"]].concat());
    let summary = &lines.last().unwrap()["summary"];
    let arena: u64 =
        forecast["device_bytes"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(summary["peak_bytes"].as_u64().unwrap() - summary["snapshot_bytes"].as_u64().unwrap(), arena);
    assert_eq!(json_lines(&["ckpt", "list", &checkpoint, "--json"]).len(), 2);
    // Of what is there already, it warns like the run.
    assert!(error(&[&args[..], &["--dry-run"]].concat(), 2).contains("is the log of another run"));
    let plain = stdout(&[&["train", "--dry-run", "--plan", "dp2", "--steps", "3"], SMALL].concat());
    for part in ["steps         3; 384 tokens", " on each of 2 devices", "would write   nothing"] {
        assert!(plain.contains(part), "`{part}` in {plain}");
    }
}

/// Trains with its standard output at `out`: the exit code and what was printed on standard error.
fn train_into(out: Stdio, extra: &[&str]) -> (Option<i32>, String) {
    let args = [&["train", "--json", "--steps", "30"], SMALL, extra].concat();
    let mut child = phalanx().args(args).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn training_goes_on_without_what_cannot_be_written() {
    let dir = Dir::new("sinks");
    let [whole, closed, full, logged] = ["whole", "closed", "full", "logged"].map(|name| dir.path(name));
    assert_eq!(train_into(Stdio::null(), &["--save", &whole]), (Some(0), String::new()));
    let full_disk = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let reader = "standard output was closed by its reader";
    let space = "cannot write to standard output: No space left on device (os error 28)";
    let log_dir = dir.path("log");
    std::fs::create_dir(&log_dir).unwrap();
    std::os::unix::fs::symlink("/dev/full", format!("{log_dir}/rank-0.jsonl")).unwrap();
    let log = format!("cannot write the log {log_dir}/rank-0.jsonl: No space left on device (os error 28)");
    let with_log = ["--save", &logged, "--log-dir", &log_dir, "--overwrite"];
    for (out, flags, problem) in [
        (Stdio::piped(), &["--save", &closed][..], reader),
        (full_disk(), &["--save", &full], space),
        (Stdio::null(), &with_log, &log),
    ] {
        let (code, text) = train_into(out, flags);
        let expected = format!(
            "warning: {problem}; training goes on without it\nerror: the report of the run is not whole: {problem}\n"
        );
        assert_eq!((code, text), (Some(1), expected));
    }
    let weights = |dir: &str| std::fs::read(format!("{dir}/model.safetensors")).unwrap();
    for saved in [closed, full, logged] {
        assert!(
            weights(&saved) == weights(&whole),
            "{saved} has the weights of a run that was not disturbed"
        );
    }
}

#[test]
fn a_strict_run_stops_when_its_output_cannot_be_written() {
    let dir = Dir::new("strict_sinks");
    let [checkpoints, saved] = ["checkpoints", "model"].map(|name| dir.path(name));
    let flags = ["--strict", "--checkpoint", &checkpoints, "--save", &saved, "--steps", "1000000"];
    let (code, text) = train_into(Stdio::piped(), &flags);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("closed by its reader; the run stops, because it is strict"), "{text}");
    assert!(run(&["ckpt", "verify", &checkpoints]).status.success());
    let origin = std::fs::read_to_string(format!("{saved}/phalanx.json")).unwrap();
    let origin: Value = serde_json::from_str(&origin).unwrap();
    assert_eq!(origin["unfinished"][1], 1_000_000, "a model of an unfinished run is marked");
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

#[test]
fn planted_links_beside_a_saved_model_are_not_followed() {
    let dir = Dir::new("planted");
    let (saved, victim) = (dir.path("model"), dir.path("victim"));
    std::fs::create_dir(&victim).unwrap();
    let kept = dir.write("victim/config.json", "mine");
    std::os::unix::fs::symlink(&victim, format!("{saved}.partial")).unwrap();
    let output = run(&[&["train", "--steps", "1", "--save", &saved], SMALL].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "mine", "{text}");
    assert_eq!(std::fs::read_dir(victim).unwrap().count(), 1, "nothing was written there: {text}");
    assert_eq!(output.status.success(), std::path::Path::new(&saved).join("model.safetensors").is_file());
}

#[test]
fn a_path_that_is_no_text_is_refused_before_anything_runs() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"chec\xffpoints");
    for flag in ["--checkpoint", "--data", "--save", "--log-dir", "--costs", "--hf"] {
        let output = phalanx().args(["train", "--steps", "1", flag]).arg(name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag}: {text}");
        assert!(text.starts_with("error: ") && text.contains("UTF-8"), "{flag}: {text}");
    }
}

#[test]
fn endless_files_are_refused() {
    for (args, part) in [
        (
            &["train", "/dev/zero"][..],
            "cannot read /dev/zero: it has more than 64 MiB, which no such file has",
        ),
        (&["train", "--plan", "/dev/zero"], "it has more than 64 MiB"),
        (&["plan", "show", "--plan", "/dev/zero"], "it has more than 64 MiB"),
        (&["opt", "/dev/zero"], "cannot read /dev/zero: it has more than 64 MiB"),
        (&["launch", "-n", "2", "--hosts", "/dev/zero", "--", "train"], "it has more than 64 MiB"),
        (
            &["train", "--data", "/dev/zero"],
            "/dev/zero is a pipe or a device, and data is read more than once",
        ),
    ] {
        let message = error(args, 2);
        assert!(message.contains(part), "{args:?}: {message}");
    }
}

#[test]
fn a_pipe_as_data_is_refused_without_waiting_for_its_writer() {
    let dir = Dir::new("pipe");
    let (pipe, tokens) = (dir.path("pipe"), dir.path("pipe.bin"));
    for path in [&pipe, &tokens] {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        let message = error(&["train", "--data", path], 2);
        let expected = format!(
            "{path} is a pipe or a device, and data is read more than once: write it to a file first, as in \
             `cat {path} > data.txt`"
        );
        assert_eq!(message, expected);
    }
    // A pattern and a directory stand for the regular files among what they match.
    let message = error(&["train", "--data", &dir.path("pip*")], 2);
    assert!(message.contains("has no text"), "{message}");
}
