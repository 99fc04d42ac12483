//! A run compiled once: shown, checked, compared, trained; and what is said where that cannot be.

use crate::common::{Dir, SMALL, error, json_lines, stdout};

/// Compiles a small run into a directory.
fn compile(out: &str, extra: &[&str]) -> serde_json::Value {
    let args = ["compile", "--json", "--costs", "modelled", "--steps", "4", "--out", out];
    json_lines(&[&args[..], SMALL, extra].concat()).remove(0)
}

fn hash(args: &[&str]) -> serde_json::Value {
    json_lines(args).last().map(|line| line["summary"]["weights_hash"].clone()).unwrap_or_default()
}

#[test]
fn a_compiled_run_is_shown_checked_compared_and_trained() {
    let dir = Dir::new("artifact");
    let (one, other) = (dir.path("one"), dir.path("other"));
    let compiled = compile(&one, &["--plan", "dp2", "--dropout", "0.1"]);
    assert_eq!((compiled["devices"].as_u64(), compiled["ranks"].as_u64()), (Some(2), Some(2)));
    let again = dir.path("again");
    assert_eq!(compile(&again, &["--plan", "dp2", "--dropout", "0.1"])["hash"], compiled["hash"]);
    let verified = json_lines(&["artifact", "verify", &one, "--again", "--json"]).remove(0);
    assert_eq!((&verified["valid"], &verified["hash"]), (&true.into(), &compiled["hash"]));
    let shown = stdout(&["artifact", "show", &one, "--all"]);
    for part in ["plan dp2 on 2 devices of", "kernels of train", "matmul", "tensors of evaluate", "begins as"]
    {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    assert_eq!(stdout(&["artifact", "diff", &one, &again]), "equal\n");

    let train = ["train", "--json", "--steps", "4", "--plan", "dp2", "--dropout", "0.1"];
    let source = hash(&[&train[..], SMALL].concat());
    assert_eq!(hash(&["run", &one, "--json"]), source);
    assert_eq!(hash(&["run", &one, "--json", "--stepped", "5"]), source);
    // Stopped, saved and resumed.
    let saved = dir.path("saved");
    let save = ["run", &one, "--json", "--checkpoint", &saved, "--every", "2"];
    assert_eq!(hash(&save), source);
    std::fs::remove_dir_all(dir.path("saved/step-00000004")).unwrap();
    assert_eq!(hash(&[&save[..], &["--resume"]].concat()), source);

    compile(&other, &["--plan", "dp2", "--dropout", "0.1", "--seed", "3"]);
    let output = crate::common::run(&["artifact", "diff", &one, &other]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("settings.seed: 0 | 3\n"), "{text}");
}

#[test]
fn what_cannot_be_compiled_or_run_is_refused() {
    let dir = Dir::new("artifact_errors");
    let out = dir.path("run");
    compile(&out, &[]);
    let refused = |args: &[&str], told: &str| {
        let message = error(args, 2);
        assert!(message.contains(told), "{message}\nshould tell\n{told}");
    };
    let zoo = ["compile", "--model", "vit", "--out", "x"];
    refused(&zoo, "`model` is vit: `phalanx compile` takes models of text");
    refused(&["compile", "--out", &out], "is there already: choose another directory with --out");
    let ranks = ["compile", "--ranks", "2", "--out", "x"];
    refused(&ranks, "--ranks is 2, but the plan has 1 devices: give from 1 to 1");
    refused(&["run", &out, "--width", "32"], "unexpected argument '--width'");
    refused(&["run", &dir.path("no")], "manifest.json: No such file or directory");
    let program = std::fs::read_to_string(dir.path("run/train.program")).unwrap();
    dir.write("run/train.program", program.replacen("dev0", "dev1", 1));
    refused(&["run", &out], "the manifest says");
    refused(&["artifact", "verify", &out], "train.program has ");
}
