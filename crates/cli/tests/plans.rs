//! Plans from the command line: train, step, explain, opt, plan.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, batch, error, json_lines, run, stdout};

/// A model and batch small enough for milliseconds, cut finely enough for every plan below.
const MODEL: &[&str] =
    &["--layers", "2", "--heads", "4", "--width", "32", "--context", "16", "--batch", "8", "--steps", "3"];

fn hash(command: &[&str], plan: &[&str]) -> String {
    let line = &json_lines(&[command, plan, &["--json"]].concat())[0];
    line["weights_hash"].as_str().unwrap().to_string()
}

#[test]
fn step_prints_one_hash_for_every_plan() {
    let dir = Dir::new("plan-step");
    let command = [&["step"], MODEL].concat();
    let one = hash(&command, &[]);
    let file = dir.path("plan.toml");
    stdout(&[&["plan", "write", "--plan", "dp2-tp2", "--out", &file], &MODEL[..10]].concat());
    for plan in [
        &["--plan", "dp", "--devices", "2"][..],
        &["--plan", "fsdp2-tp2"],
        &["--plan", "sp", "--devices", "4"],
        &["--plan", "pp2", "--cores-per-device", "2"],
        &["--plan", &file, "--devices", "4"],
        &["--plan", "zero1", "--devices", "4", "--accumulate", "2"],
    ] {
        assert_eq!(hash(&command, plan), one, "{plan:?}");
    }
    assert_ne!(hash(&command, &["--seed", "1"]), one, "the hash tells weights apart");
}

#[test]
fn step_from_given_weights_follows_a_plan_too() {
    let dir = Dir::new("plan-hf");
    let (model, batch, out) =
        (dir.path("model"), dir.write("b.safetensors", batch(4, 16)), dir.path("o.safetensors"));
    stdout(&[&["train", "--json", "--steps", "2", "--save", &model], SMALL].concat());
    let command = ["step", "--hf", &model, "--batch", &batch, "--steps", "2", "--out", &out];
    let one = hash(&command, &[]);
    let written = std::fs::read(&out).unwrap();
    assert_eq!(hash(&command, &["--plan", "dp2-tp2", "--devices", "4"]), one);
    assert_eq!(std::fs::read(&out).unwrap(), written, "gradients and weights are the same bytes");
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_remedy() {
    let dir = Dir::new("plan-wrong");
    let broken =
        dir.write("broken.toml", "[mesh]\ndp = 2\n[[rule]]\nmatch = \"nothing\"\nshard = { 0 = \"dp\" }\n");
    let empty = dir.write("empty.toml", "\n");
    let zero = dir.write("zero.toml", "[mesh]\ntp = 0\n");
    let typo = dir.write("typo.toml", "microbatch = 2\n");
    for (plan, parts) in [
        (&["--devices", "4"][..], &["4", "--plan"][..]),
        (&["--plan", "dp3", "--devices", "4"], &["dp3", "4"]),
        (&["--plan", "magic", "--devices", "2"], &["magic", "dp"]),
        (&["--plan", "/nonexistent.toml"], &["/nonexistent.toml"]),
        (&["--plan", &broken], &["nothing"]),
        (&["--plan", "dp", "--devices", "3"], &["8", "3"]),
        (&["--plan", "tp4", "--blocks-feature", "2"], &["--blocks-feature 4", "--bits free"]),
        (&["--plan", "dp2", "--devices", "0"], &["--devices"]),
        (&["--plan", "dp"], &["`dp`", "--devices"]),
        (&["--plan", &empty], &["empty.toml", "empty"]),
        (&["--cores-per-device", "99999"], &["cores-per-device", "99999", "1024"]),
        (
            &["--batch", "12", "--accumulate", "3"],
            &["a power of two ways: use 2 or 4 (devices along it times --acc"],
        ),
        (
            &["--batch", "12", "--plan", "dp3"],
            &["a power of two ways: use 2 or 4 (devices along it times --acc"],
        ),
        (
            &["--batch", "12", "--plan", "dp5"],
            &["cannot be cut into 5 (dp=5); use 2 or 4, or another divisor with"],
        ),
        (
            &["--width", "48", "--heads", "6", "--plan", "tp3"],
            &["features of 48 can be cut", "use 2, 4 or 8 (devices"],
        ),
        (&["--plan", "pd2"], &["the plan `pd2` is neither a file nor a preset; presets are one, dp"]),
        (&["--plan", &zero], &["plan `", "zero.toml`: mesh axis `tp` has 0 places; give it at least 1"]),
        (
            &["--plan", &typo],
            &["line 1: there is no key `microbatch` of a plan: did you mean `microbatches`?"],
        ),
    ] {
        let message = error(&[&["step"], MODEL, plan].concat(), 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{plan:?}: {message}");
    }
    // What the message advises works.
    let advised = [&["step"], MODEL, &["--batch", "12"][..]].concat();
    assert_eq!(hash(&advised, &["--accumulate", "4"]), hash(&advised, &["--plan", "dp2"]));
    let free = ["--plan", "tp4", "--blocks-feature", "2", "--bits", "free"];
    assert_eq!(hash(&[&["step"], MODEL].concat(), &free).len(), 32);
}

#[test]
fn train_runs_a_plan_and_a_file_can_choose_it() {
    let dir = Dir::new("plan-train");
    let config = dir.write("run.toml", "plan = \"dp2-tp2\"\ndevices = 4\nsteps = 2\n");
    let last = |args: &[&str]| json_lines(&[&["train"], args, SMALL, &["--json"]].concat()).pop().unwrap();
    let (one, four) = (last(&["--steps", "2"]), last(&[&config]));
    assert_eq!(one["summary"]["weights_hash"], four["summary"]["weights_hash"]);
}

#[test]
fn plan_show_accounts_for_every_device() {
    let args = [&["plan", "show", "--plan", "fsdp", "--devices", "4"], &MODEL[..10]].concat();
    let shown = &json_lines(&[&args[..], &["--json"]].concat())[0];
    let devices = shown["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4);
    let bytes = |key: &str| devices.iter().map(|row| row[key].as_u64().unwrap()).collect::<Vec<_>>();
    let params: u64 = shown["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["op"] == "param")
        .flat_map(|row| row["parts"].as_array().unwrap())
        .map(|part| {
            4 * part["extents"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>()
        })
        .sum();
    assert_eq!(bytes("param_bytes").iter().sum::<u64>(), params, "stored once in all");
    assert_eq!(bytes("state_bytes").iter().sum::<u64>(), 2 * params, "two moments");
    let kinds: Vec<_> =
        shown["movements"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"all_gather") && kinds.contains(&"reduce_scatter"), "{kinds:?}");
    // What the gradient norm needs of every parameter moves together.
    let all = shown["tensors"].as_array().unwrap().iter().filter(|row| row["op"] == "param").count();
    let bucket = format!("bucket of {all}: transformer.wte.weight.squares … transformer.ln_f.bias.squares");
    let movements = shown["movements"].as_array().unwrap();
    assert!(movements.iter().any(|row| row["layer"] == *bucket), "{movements:?}");
    let text = stdout(&args);
    for part in ["transformer.wte.weight", "f32[256/4, 32]", "[64..128,0..32]", "reduce_scatter", "dev3"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
    assert_eq!(shown["left_whole"], serde_json::json!([]));
    // 32 features and 256 tokens are not divisible by 3, a context of 15 is.
    let three = ["--layers", "1", "--heads", "4", "--width", "32", "--context", "15", "--batch", "6"];
    let args = [&["plan", "show", "--plan", "fsdp", "--devices", "3", "--bits", "free"], &three[..]].concat();
    let said = "19 of 20 parameters are whole on every device along fsdp=3, because what could be cut of them is not \
                divisible by 3: `transformer.wte.weight`, `transformer.h.*.ln_1.weight`, \
                `transformer.h.*.ln_1.bias`, `transformer.h.*.attn.q.weight` and 15 more";
    let text = stdout(&args);
    assert!(text.contains(said), "{text}");
    let left = &json_lines(&[&args[..], &["--json"]].concat())[0]["left_whole"];
    assert_eq!((&left[0]["axis"], &left[0]["size"]), (&"fsdp".into(), &3.into()));
    assert_eq!(left[0]["parameters"].as_array().unwrap().len(), 19);
    let train =
        [&["train", "--plan", "fsdp", "--devices", "3", "--bits", "free", "--steps", "1"], &three[..]]
            .concat();
    let train_log = String::from_utf8(run(&train).stderr).unwrap();
    assert!(train_log.contains(&format!("note: {said}\n")), "said once at the start: {train_log}");
    assert!(stdout(&[&train[..], &["--dry-run"]].concat()).contains(said));
    let one = stdout(&[&["plan", "show"], &MODEL[..10]].concat());
    assert!(one.contains("nothing moves"), "{one}");
    assert!(stdout(&["plan", "presets"]).lines().count() >= 7);
}

#[test]
fn opt_runs_passes_on_what_explain_prints() {
    let dir = Dir::new("plan-opt");
    let plan = ["--plan", "tp", "--devices", "2", "--blocks-feature", "2"];
    let explain = |after: &str| stdout(&[&["explain", "--after", after], &plan[..], SMALL].concat());
    let parallel = dir.write("p.ir", explain("parallelize"));
    let passes = "expand-passes,insert-loss";
    let opt = stdout(&["opt", &parallel, "--pass", passes, "--blocks-feature", "2"]);
    assert_eq!(opt, explain("insert-loss"));
    let copies = dir.write("c.ir", explain("insert-copies"));
    let opt = stdout(&["opt", &copies, "--pass", "expand-shards,fuse-movements,split-movements"]);
    assert_eq!(opt, explain("split-movements"));
    assert_eq!(stdout(&["opt", &parallel]), explain("parallelize"));
    for (args, part) in [
        (&["--pass", "magic"][..], "`magic` is unknown"),
        (&["--pass", "split-movements"], "does not work on this level"),
        (&["--pass", "expand-passes,expand-passes"], "does not work on this level"),
    ] {
        let message = error(&[&["opt", &parallel][..], args].concat(), 2);
        assert!(
            message.contains(part) || message.contains("does not work on this level"),
            "{args:?}: {message}"
        );
    }
    let junk = dir.write("junk.ir", "junk");
    assert!(error(&["opt", &junk], 2).contains("junk"));
}
