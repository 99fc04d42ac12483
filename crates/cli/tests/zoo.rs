//! Models with data of their own, on the command line: weights from directories and into them, plans, steps.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use phalanx::hf::stored_tensors;
use phalanx::ir::Shape;
use serde_json::{Value, json};

use crate::common::{Dir, error, json_lines, stdout};

const FEW: [&str; 6] = ["--batch", "4", "--no-cache", "--json", "--weight-decay", "0"];

/// The summary of a run.
fn train(flags: &[&str]) -> Value {
    json_lines(&[&["train"], flags, &FEW].concat()).pop().unwrap()["summary"].clone()
}

fn config(dir: &str) -> Value {
    serde_json::from_slice(&std::fs::read(Path::new(dir).join("config.json")).unwrap()).unwrap()
}

/// Trained weights: what steps without a learning rate leave alone.
fn trained(dir: &str) -> BTreeMap<String, (Shape, Option<Vec<f32>>)> {
    let mut all = stored_tensors(Path::new(dir)).unwrap();
    all.retain(|name, _| !name.contains("running"));
    all
}

#[test]
fn what_is_saved_is_taken_up() {
    for model in ["bert", "roberta", "t5", "vit", "resnet", "unet", "dlrm"] {
        let dir = Dir::new(&format!("zoo-{model}"));
        let (first, second) = (dir.path("first"), dir.path("second"));
        train(&["--model", model, "--steps", "2", "--save", &first]);
        train(&["--hf", &first, "--steps", "1", "--lr", "0", "--save", &second]);
        assert!(trained(&first) == trained(&second), "{model}");
        assert_eq!(config(&first), config(&second), "{model}");
    }
}

#[test]
fn a_directory_has_the_keys_of_transformers() {
    let dir = Dir::new("zoo-keys");
    let [bert, vit] = ["bert", "vit"].map(|model| {
        let path = dir.path(model);
        train(&["--model", model, "--steps", "1", "--save", &path]);
        config(&path)
    });
    assert_eq!(bert["model_type"], "bert");
    assert_eq!(bert["architectures"], json!(["BertForMaskedLM"]));
    assert_eq!([&bert["hidden_size"], &bert["max_position_embeddings"], &bert["pad_token_id"]], [64, 16, 0]);
    assert_eq!([&vit["image_size"], &vit["patch_size"]], [16, 4]);
    assert_eq!(vit["id2label"].as_object().unwrap().len(), 4);
}

#[test]
fn steps_of_every_plan_have_one_hash() {
    let hash = |more: &[&str]| {
        let flags = ["step", "--model", "resnet", "--steps", "2", "--batch", "4", "--json", "--no-cache"];
        json_lines(&[&flags[..], more].concat())[0]["weights_hash"].clone()
    };
    let one = hash(&[]);
    assert_eq!(hash(&["--plan", "tp2"]), one);
    assert_eq!(hash(&["--plan", "dp2-pp2"]), one);
    assert_ne!(hash(&["--sizes", "{\"classes\": 3}"]), one);
}

#[test]
fn plans_and_stages_are_shown() {
    let plan = stdout(&["plan", "show", "--model", "unet", "--plan", "tp2", "--batch", "4"]);
    assert!(plan.contains("up1.up.weight"), "{plan}");
    let written = stdout(&["plan", "write", "--model", "t5", "--plan", "tp2"]);
    assert!(written.contains("EncDecAttention.q.weight"), "{written}");
    let graph = stdout(&["explain", "--after", "build", "--model", "mobilenet", "--batch", "4"]);
    assert!(graph.contains("hard_swish"), "{graph}");
    let stages = stdout(&["explain", "--model", "convnext", "--batch", "4", "--plan", "dp2"]);
    assert!(stages.contains("program:"), "{stages}");
}

#[test]
fn mistakes_are_named() {
    let dir = Dir::new("zoo-mistakes");
    let vit = dir.path("vit");
    train(&["--model", "vit", "--steps", "1", "--save", &vit]);
    let message = |flags: &[&str]| error(&[&["train"], flags, &FEW].concat(), 2);
    let found = message(&["--model", "resnet", "--hf", &vit]);
    assert!(found.starts_with("`model` is resnet; the model in ") && found.contains("has vit"), "{found}");
    let found = message(&["--hf", &vit, "--width", "32"]);
    assert!(found.contains("\"width\": 32") && found.contains("has 64: leave it out"), "{found}");
    let found = message(&["--model", "vit", "--sizes", "{\"wings\": 2}"]);
    assert!(found.starts_with("`sizes` is wings; vit has none: its sizes are classes, "), "{found}");
    assert!(message(&["--model", "vit", "--sizes", "2"]).contains("it must be a JSON object"));
    assert!(message(&["--sizes", "{}"]).contains("`sizes` is {}; models of text have a flag for each size"));
    let found = message(&["--model", "resnet", "--hf", &dir.write("a.safetensors", "no")]);
    assert!(found.contains("is not a safetensors file"), "{found}");
}
