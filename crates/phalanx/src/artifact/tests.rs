use std::sync::LazyLock;

use phalanx_testkit::cases;
use serde_json::{Value, json};

use super::*;
use crate::train::Run;

fn config() -> TrainConfig {
    let config = TrainConfig::default().layers(Some(1)).heads(Some(2)).width(Some(16)).context(Some(8));
    let config = config.batch(4).dropout(0.1).plan(Some("dp2".into())).cores_per_device(1);
    config.steps(3).link(Some("10us,10Gbit".into()))
}

static SMALL: LazyLock<Artifact> =
    LazyLock::new(|| Artifact::compile(config(), None, &mut |_| ()).expect("the run compiles"));

fn files() -> ArtifactFiles {
    SMALL.to_files().unwrap()
}

fn refused(files: &ArtifactFiles) -> String {
    Artifact::of_files(files).map(|_| ()).unwrap_err().to_string()
}

/// The message about a manifest in which `change` has changed something.
fn with_manifest(change: impl FnOnce(&mut Value)) -> String {
    let mut files = files();
    let mut manifest: Value = serde_json::from_slice(&files.0[read::MANIFEST]).unwrap();
    manifest.as_object_mut().unwrap().remove("xxh3");
    change(&mut manifest);
    files.replace(read::MANIFEST, serde_json::to_string_pretty(&manifest).unwrap().into_bytes()).unwrap();
    refused(&files)
}

/// The message about a file with another text.
fn with_text(name: &str, change: impl FnOnce(&str) -> String) -> String {
    let mut files = files();
    let text = change(str::from_utf8(&files.0[name]).unwrap());
    files.replace(name, text.into_bytes()).unwrap();
    refused(&files)
}

#[test]
fn what_is_loaded_is_written_as_the_same_bytes() {
    let files = files();
    let again = Artifact::of_files(&files).unwrap();
    assert_eq!(again.to_files().unwrap(), files);
    assert_eq!(again.hash(), SMALL.hash());
    let ranks = again.certificate().unwrap().map(|certificate| certificate.parts().len());
    assert_eq!(ranks, Some(2));
    again.check_again().unwrap();
}

#[test]
fn a_run_of_an_artifact_has_the_bits_of_its_source() {
    let hash = |run: crate::Result<Run>| {
        let mut run = run.unwrap();
        while !run.is_done() {
            run.step().unwrap();
        }
        (run.summary().unwrap().weights_hash, run.losses().to_vec(), run.eval_losses())
    };
    let source = hash(Run::new(config().eval_every(Some(2)).eval_batches(1)));
    let config = SMALL.config().unwrap().clone().eval_every(Some(2)).eval_batches(1);
    assert_eq!(hash(Run::of_artifact(&SMALL, config.clone(), &mut |_| ())), source);
    let stepped = config.clone().stepped(Some(3));
    assert_eq!(hash(Run::of_artifact(&SMALL, stepped, &mut |_| ())), source);
    let other = Run::of_artifact(&SMALL, config.batch(8), &mut |_| ()).map(|_| ()).unwrap_err();
    let message = "`batch` is 4 in the artifact, and 8 was asked for: compile it again with that";
    assert_eq!(other.to_string(), message);
}

/// Every byte counts: a change of one is refused, wherever it is.
#[test]
fn a_change_of_any_byte_is_refused() {
    let whole = files();
    let names: Vec<&String> = whole.0.keys().collect();
    let total: u64 = whole.0.values().map(|bytes| bytes.len() as u64).sum();
    let mut random = testkit_random(7);
    let mut changed = whole.clone();
    for case in 0..cases(10_000) {
        // The first ones are in the manifest, whose bytes are the fewest.
        let place = if case % 4 == 0 { None } else { Some(random() % total) };
        let (name, at) = match place {
            None => (read::MANIFEST, random() as usize % whole.0[read::MANIFEST].len()),
            Some(mut at) => {
                let name = names.iter().find(|name| {
                    let length = whole.0[**name].len() as u64;
                    let is_here = at < length;
                    at -= if is_here { 0 } else { length };
                    is_here
                });
                (name.unwrap().as_str(), at as usize)
            }
        };
        let byte = &mut changed.0.get_mut(name).unwrap()[at];
        let before = *byte;
        *byte ^= 1 << (random() % 8);
        let loaded = Artifact::of_files(&changed);
        assert!(loaded.is_err(), "{name}, byte {at}: {before} is changed and nothing is said");
        changed.0.get_mut(name).unwrap()[at] = before;
    }
}

/// Checksums protect from damage, not from other numbers: whatever a text says, it is refused or loaded, and no panic.
#[test]
fn a_digit_changed_on_purpose_is_refused_or_loaded() {
    let (whole, mut random) = (files(), testkit_random(11));
    let names = ["train.program", "evaluate.program", "train.graph", "plan.toml"];
    let mut loaded = 0;
    for _ in 0..cases(5_000) {
        let (name, mut changed) = (names[random() as usize % names.len()], whole.clone());
        let mut text = whole.0[name].clone();
        let digits: Vec<usize> = (0..text.len()).filter(|&at| text[at].is_ascii_digit()).collect();
        text[digits[random() as usize % digits.len()]] = b'0' + (random() % 10) as u8;
        changed.replace(name, text).unwrap();
        loaded += usize::from(Artifact::of_files(&changed).is_ok());
    }
    assert!(loaded > 0, "some digits are only about speed, or stay what they were");
}

/// Numbers that look random.
fn testkit_random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    }
}

#[test]
fn every_field_is_checked_and_the_message_names_both_sides() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (|m| m["format"] = json!(2), "it is in format 2, and this build reads format 1: compile it again"),
        (|m| m["phalanx"] = json!("0.0.9"), "phalanx 0.0.9 compiled it, and this is phalanx "),
        (|m| m["name"] = json!("x"), "`name` is \"x\", but it must be \"gpt2\""),
        (|m| m["settings"]["seed"] = json!(1), "`settings.seed` is 1, but it must be 0"),
        (|m| m["settings"]["devices"] = json!(3), "`settings.devices` is 3, but it must be 2"),
        (|m| m["settings"]["cores"] = json!(2), "`settings.cores` is 2, but it must be 1"),
        (|m| m["settings"]["precision"] = json!("bf16"), "`steps[0].kernels["),
        (|m| m["settings"]["wish"] = json!(1), "manifest.json: `settings.wish`: unknown field `wish`"),
        (|m| m["settings"]["goal"] = json!("Infer"), "`settings.goal` is \"Infer\", but it must be \"Train("),
        (|m| m["settings"]["memory"] = json!(1), "`settings.memory` is 1, but it must be null"),
        (|m| m["run"]["config"]["lr"] = json!(-1.0), "`lr` is -1"),
        (|m| m["run"]["config"]["seed"] = json!(5), "`settings.seed` is 0, but it must be 5"),
        (|m| m["run"]["config"]["wish"] = json!(5), "manifest.json: `run.config`: unknown field `wish`"),
        (|m| m["run"]["model"] = json!({}), "manifest.json: `run.model`: "),
        (
            |m| m["steps"][0]["name"] = json!("run"),
            "`steps.name` is `run`, but it must be `train` or `evaluate`",
        ),
        (|m| m["steps"][0]["operations"] = json!(1), "`steps[0].operations` is 1, but it must be "),
        (|m| m["steps"][0]["initial"][0]["stream"] = json!(9), "`steps[0].initial[0].stream` is 9, but"),
        (
            |m| m["steps"][0]["ports"][0]["kind"] = json!("table"),
            "`steps[0].ports[0].kind` is \"table\", but",
        ),
        (|m| m["files"][0]["name"] = json!("../x"), "manifest.json lists `../x`, which is no file"),
        (|m| m["files"][0]["bytes"] = json!(1), "certificate.txt has "),
        (|m| _ = m["files"].as_array_mut().unwrap().remove(2), "evaluate.program is missing"),
    ];
    for (change, told) in cases {
        let message = with_manifest(change);
        assert!(message.starts_with(told), "{message}\nshould begin with\n{told}");
    }
}

#[test]
fn an_unsound_program_and_one_of_other_kernels_are_refused() {
    let message = with_text("train.program", |text| text.replacen("after 0/", "after 1/", 1));
    assert!(message.starts_with("train.program: "), "{message}");
    let message = with_text("train.program", |text| text.replace("run matmul ", "run matmul9 "));
    assert!(message.contains("matmul9"), "{message}");
    let message = with_text("train.graph", |text| text.replacen("f32[", "f32[9", 1));
    assert!(message.starts_with("train.graph: "), "{message}");
    let message = with_text("plan.toml", |text| text.replacen('=', "-", 1));
    assert!(message.starts_with("plan.toml: "), "{message}");
    let mut files = files();
    files.0.remove("train.program");
    assert_eq!(refused(&files), "train.program is missing: copy the whole directory");
}

#[test]
fn an_unknown_kernel_is_named() {
    let (graph, settings) = (SMALL.graph(TRAIN).unwrap(), SMALL.compiling(SMALL.config().unwrap()).unwrap());
    let text = SMALL.program(TRAIN).unwrap().to_string().replace("run matmul ", "run matmul9 ");
    let other = Artifact::of_program(graph, &text.parse().unwrap(), &settings);
    let message = refused(&other.to_files().unwrap());
    let told = "train.program needs the kernel `matmul9`, which this build of phalanx ";
    assert!(message.starts_with(told), "{message}");
}

#[test]
fn large_tables_are_kept_beside_the_model() {
    let numbers: Vec<u8> = (0..4096).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let hash = xxhash_rust::xxh3::xxh3_128(&numbers);
    let text = format!(
        "graph @tabled {{\n  %x = input f32[64, 64]\n  %t = table hash={hash:032x} f32[64, 64]\n  \
         %y = add %x, %t : f32[64, 64]\n  return %y\n}}"
    );
    let mut graph = Graph::parse(&text, crate::ops::operators()).unwrap();
    assert_eq!(graph.provide_table(numbers), 1);
    let settings = Settings::new(Goal::Infer).cores(1);
    let program = compile(&graph, &settings).unwrap();
    let files = Artifact::of_program(&graph, &program, &settings).to_files().unwrap();
    assert_eq!(files.0.keys().filter(|name| name.ends_with(".table")).count(), 1);
    let loaded = Artifact::of_files(&files).unwrap();
    assert_eq!(loaded.graph(EVALUATE).unwrap().tables().next().unwrap().1.elements().unwrap()[7], 7.0);
    assert!(loaded.config().is_none());
}
