//! `train --hf`: a run that starts with the weights of a directory, and what happens to directories that are there.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;

use crate::common::{Dir, SMALL, batch, error, json_lines, phalanx, run, stdout};
use serde_json::{Value, json};

const LLAMA: &[&str] = &[
    "--model",
    "llama",
    "--layers",
    "1",
    "--heads",
    "2",
    "--kv-heads",
    "1",
    "--width",
    "16",
    "--context",
    "16",
    "--hidden",
    "24",
    "--head-dim",
    "6",
    "--norm-eps",
    "1e-6",
    "--rope-theta",
    "500000",
    "--attention-bias",
    "true",
    "--mlp-bias",
    "true",
    "--tied",
    "false",
    "--activation",
    "gelu",
];

fn train(args: &[&[&str]]) -> Vec<Value> {
    json_lines(&[&["train", "--json", "--batch", "8"][..], &args.concat()].concat())
}

fn hash(lines: &[Value]) -> &str {
    lines.last().unwrap()["summary"]["weights_hash"].as_str().unwrap()
}

fn config(dir: &str) -> Value {
    serde_json::from_slice(&fs::read(format!("{dir}/config.json")).unwrap()).unwrap()
}

#[test]
fn every_size_of_a_directory_is_taken_over_and_survives() {
    let dir = Dir::new("fine-tune");
    let (first, second, third) = (dir.path("first"), dir.path("second"), dir.path("third"));
    train(&[LLAMA, &["--steps", "2", "--save", &first]]);
    let mut edited = config(&first);
    for (key, value) in
        [("bos_token_id", json!(1)), ("eos_token_id", json!([2, 3])), ("pretraining_tp", json!(1))]
    {
        edited[key] = value;
    }
    fs::write(format!("{first}/config.json"), edited.to_string()).unwrap();
    fs::write(format!("{first}/generation_config.json"), r#"{"eos_token_id": 2}"#).unwrap();
    // A step of rate 0 changes nothing.
    let still = ["--steps", "1", "--lr", "0", "--weight-decay", "0"];
    train(&[&["--hf", &first, "--save", &second], &still]);
    let weights = |dir: &str| fs::read(format!("{dir}/model.safetensors")).unwrap();
    assert!(weights(&first) == weights(&second), "the same weights");
    assert_eq!(config(&second), edited, "and the same fields");
    assert!(fs::exists(format!("{second}/generation_config.json")).unwrap());
    let moved = train(&[&["--hf", &first, "--save", &third, "--steps", "2"]]);
    let ranks = json_lines(
        &[
            &["launch", "-n", "2", "--", "train", "--json", "--batch", "8"][..],
            &["--hf", &first, "--steps", "2", "--plan", "fsdp", "--devices", "2"],
        ]
        .concat(),
    );
    assert_eq!(hash(&ranks), hash(&moved), "two ranks start with the same weights");
    assert!(weights(&third) != weights(&first));
}

#[test]
fn a_resumed_fine_tuning_continues_with_the_same_bits() {
    let dir = Dir::new("fine-tune-resume");
    let (model, checkpoints) = (dir.path("model"), dir.path("checkpoints"));
    train(&[&["--steps", "2", "--save", &model], &SMALL[..8]]);
    let whole = train(&[&["--hf", &model, "--steps", "4"]]);
    let parts = ["--hf", &model, "--checkpoint", &checkpoints, "--every", "2", "--resume"];
    let drill =
        run(&[&["train", "--batch", "8", "--steps", "4", "--drill", "panic@0:3"][..], &parts].concat());
    assert!(!drill.status.success());
    assert_eq!(hash(&train(&[&parts, &["--steps", "4"]])), hash(&whole));
}

#[test]
fn a_size_that_contradicts_the_directory_is_refused() {
    let dir = Dir::new("fine-tune-sizes");
    let model = dir.path("model");
    stdout(&[&["train", "--json", "--steps", "1", "--save", &model], SMALL].concat());
    let message = error(&["train", "--hf", &model, "--width", "32"], 2);
    assert!(message.contains("`width` is 32") && message.contains("has 16: leave it out"), "{message}");
    let message = error(&["train", "--model", "gpt2", "--rope-theta", "5"], 2);
    assert!(message.contains("`rope_theta` is 5") && message.contains("gpt2 has none"), "{message}");
    let message = error(&["train", "--activation", "gelou"], 2);
    assert!(message.contains("gelou") && message.contains("gelu_new"), "{message}");
    let message = error(&["train", "--vocab", "100"], 2);
    assert!(message.contains("`vocab` is 100") && message.contains("256"), "{message}");
}

#[test]
fn a_directory_of_another_run_is_not_replaced_without_asking() {
    let dir = Dir::new("overwrite");
    let save = dir.path("model");
    let quick = [&["train", "--json", "--steps", "1"], SMALL].concat();
    stdout(&[&quick[..], &["--save", &save]].concat());
    fs::write(format!("{save}/tokenizer.json"), "stale").unwrap();
    let before = fs::read(format!("{save}/model.safetensors")).unwrap();
    let message = error(&[&quick[..], &["--save", &save, "--seed", "5"]].concat(), 2);
    assert!(message.contains(&save) && message.contains("--overwrite"), "{message}");
    assert!(fs::read(format!("{save}/model.safetensors")).unwrap() == before, "nothing was touched");
    stdout(&[&quick[..], &["--save", &save, "--seed", "5", "--overwrite"]].concat());
    assert!(fs::read(format!("{save}/model.safetensors")).unwrap() != before);
    assert!(!fs::exists(format!("{save}/tokenizer.json")).unwrap(), "nothing stale is left");
    assert!(!fs::exists(format!("{save}.partial")).unwrap() && !fs::exists(format!("{save}.old")).unwrap());
}

#[test]
fn a_refused_run_leaves_the_log_of_the_one_before() {
    let dir = Dir::new("log-kept");
    let (log, checkpoints) = (dir.path("log"), dir.path("checkpoints"));
    let args = [&["train", "--json", "--steps", "3", "--log-dir", &log], SMALL].concat();
    let saved = [&args[..], &["--checkpoint", &checkpoints]].concat();
    stdout(&saved);
    let lines = || fs::read_to_string(format!("{log}/rank-0.jsonl")).unwrap();
    let before = lines();
    assert_eq!(before.lines().count(), 4);
    assert!(error(&saved, 2).contains("is the log of another run"));
    assert!(error(&[&saved[..], &["--overwrite"]].concat(), 2).contains("--resume"), "checkpoints are there");
    assert_eq!(lines(), before, "a run that is refused writes nothing");
    stdout(&[&saved[..], &["--resume", "--steps", "5"]].concat());
    assert!(lines().starts_with(&before), "a run that is resumed adds to its log");
    stdout(&[&args[..], &["--overwrite"]].concat());
    assert_eq!(lines().lines().count(), 4);
    let events = fs::read_dir(&log).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("events.out.tfevents.")
    });
    assert_eq!(events.count(), 1, "event files of two runs are not mixed");
}

#[test]
fn without_a_terminal_lines_tell_how_far_a_run_is() {
    let text =
        stdout(&[&["train", "--steps", "6", "--log-every", "2", "--eval-every", "5"][..], SMALL].concat());
    let steps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("step ")).collect();
    let numbers: Vec<&str> = steps.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(numbers, ["2/6", "4/6", "5/6", "6/6"], "every second step and each evaluation: {text}");
    assert!(steps[3].contains("eval loss"), "the last step is evaluated, too: {text}");
    let header: Vec<&str> = text.lines().take(2).collect();
    assert!(header[1].contains("tokens of data") && header[1].contains("1 device, f32"), "{header:?}");
}

/// The tensors of a safetensors file, as bytes by name.
fn tensors(path: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let range = |entry: &Value| {
        let [start, end] = [0, 1].map(|side| entry["data_offsets"][side].as_u64().unwrap() as usize);
        data[start..end].to_vec()
    };
    entries.map(|(name, entry)| (name, range(&entry))).collect()
}

fn model(dir: &str) -> BTreeMap<String, Vec<u8>> {
    tensors(&format!("{dir}/model.safetensors"))
}

/// Names of tensors that differ between two models.
fn changed(left: &str, right: &str) -> Vec<String> {
    let (left, right) = (model(left), model(right));
    assert!(left.keys().eq(right.keys()));
    left.into_iter().filter(|(name, bytes)| right[name] != *bytes).map(|(name, _)| name).collect()
}

/// A run that is stopped and resumed, and one of two ranks, end with the weights of `whole`, which is one run of `args`.
fn continues_and_runs_on_ranks(dir: &Dir, args: &[&str], whole: &[Value]) {
    let checkpoints = dir.path("checkpoints");
    let saved = [args, &["--checkpoint", &checkpoints, "--every", "2"]].concat();
    let drill = run(&[&["train", "--batch", "8", "--drill", "panic@0:3"][..], &saved].concat());
    assert!(!drill.status.success());
    let resumed = train(&[&saved, &["--resume", "--plan", "fsdp2"]]);
    assert_eq!(hash(&resumed), hash(whole), "resumed on two devices");
    let launched =
        [&["launch", "-n", "2", "--", "train", "--json", "--batch", "8", "--plan", "fsdp"][..], args];
    assert_eq!(hash(&json_lines(&launched.concat())), hash(whole), "two ranks");
}

/// Names of the optimizer's states in the newest checkpoint.
fn states(dir: &Dir) -> Vec<String> {
    let manifest = fs::read(dir.path("checkpoints/step-00000004/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let tensors = manifest["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["kind"] == "state");
    tensors.map(|tensor| tensor["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn frozen_parameters_stay_on_any_devices_and_have_no_state() {
    let dir = Dir::new("freeze");
    let (base, tuned) = (dir.path("base"), dir.path("tuned"));
    train(&[&["--steps", "1", "--save", &base], &SMALL[..8]]);
    let args = ["--hf", &base, "--steps", "4", "--freeze", "*wte*, *.mlp.*"];
    let output = run(&[&["train", "--json", "--batch", "8", "--save", &tuned], &args[..]].concat());
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("note: training ") && notes.contains("the others are frozen"), "{notes}");
    let lines: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let changed = changed(&base, &tuned);
    assert!(changed.contains(&"transformer.h.0.attn.c_attn.weight".into()), "{changed:?}");
    let is_frozen = |name: &String| name.contains("wte") || name.contains(".mlp.");
    assert!(!changed.iter().any(is_frozen), "{changed:?}");
    continues_and_runs_on_ranks(&dir, &args, &lines);
    let states = states(&dir);
    assert!(!states.is_empty() && !states.iter().any(is_frozen), "{states:?}");
    let message = error(&["train", "--hf", &base, "--freeze", "*wtee*"], 2);
    assert!(message.contains("`*wtee*`") && message.contains("`transformer.wte.weight`"), "{message}");
    let checkpoints = dir.path("checkpoints");
    let resumed = ["train", "--hf", &base, "--batch", "8", "--checkpoint", &checkpoints, "--resume"];
    let message = error(&resumed, 2);
    assert!(
        message.contains("`transformer.wte.weight.m` is absent") && message.contains("--freeze"),
        "{message}"
    );
}

#[test]
fn adapters_are_trained_alone_and_saved_in_the_weights_or_apart() {
    let dir = Dir::new("lora");
    let (base, still, merged, apart) =
        (dir.path("base"), dir.path("still"), dir.path("merged"), dir.path("apart"));
    train(&[LLAMA, &["--steps", "1", "--save", &base]]);
    let lora = ["--hf", &base, "--lora", "2,4", "--steps", "4"];
    train(&[&lora, &["--lr", "0", "--save", &still]]);
    assert!(model(&base) == model(&still), "adapters that are not trained add nothing");
    let whole = train(&[&lora, &["--save", &merged]]);
    let adapted = ["q_proj", "v_proj"].map(|layer| format!("model.layers.0.self_attn.{layer}.weight"));
    assert_eq!(changed(&base, &merged), adapted);
    // Ranks times inputs and outputs: 16 to 2 heads of 6, 16 to one head of 6.
    assert_eq!(whole.last().unwrap()["summary"]["trained_parameters"], json!(2 * (16 + 12) + 2 * (16 + 6)));
    continues_and_runs_on_ranks(&dir, &lora, &whole);
    let states = states(&dir);
    assert_eq!(states.len(), 2 * 2 * 2, "two of each factor: {states:?}");
    assert!(states.iter().all(|name| name.contains(".lora_")), "{states:?}");
    let exported = dir.path("exported");
    stdout(&["ckpt", "export", &dir.path("checkpoints"), "--hf", &exported]);
    assert!(model(&exported) == model(&merged), "a checkpoint has the same model");
    train(&[&lora, &["--lora-save", "separate", "--save", &apart]]);
    let factors = tensors(&format!("{apart}/adapter_model.safetensors"));
    let key = |layer: &str, factor: char| {
        format!("base_model.model.model.layers.0.self_attn.{layer}.lora_{factor}.weight")
    };
    let keys = [key("q_proj", 'A'), key("q_proj", 'B'), key("v_proj", 'A'), key("v_proj", 'B')];
    assert!(factors.keys().eq(&keys), "{:?}", factors.keys());
    let peft: Value =
        serde_json::from_slice(&fs::read(format!("{apart}/adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&peft["r"], &peft["lora_alpha"]), (&json!(2), &json!(4.0)));
    assert_eq!(peft["target_modules"], json!(["q_proj", "v_proj"]));
    assert_eq!(peft["base_model_name_or_path"], json!(base));
    let message = error(&["train", "--hf", &base, "--lora", "2,2,q_prj"], 2);
    assert!(message.contains("`q_prj`") && message.contains("q_proj`"), "{message}");
    let message = error(&["train", "--lora", "2", "--lora-save", "separate"], 2);
    assert!(message.contains("`lora_save`") && message.contains("needs `hf`"), "{message}");
    assert!(error(&["train", "--lora", "2,x"], 2).contains("RANK[,ALPHA"));
}

#[test]
fn the_steps_of_a_frozen_model_write_the_gradients_of_what_is_trained() {
    let dir = Dir::new("step-frozen");
    let (base, out) = (dir.path("base"), dir.path("out.safetensors"));
    train(&[&["--steps", "1", "--save", &base], &SMALL[..8]]);
    let batch = dir.write("batch.safetensors", batch(8, 16));
    let step = ["step", "--hf", &base, "--batch", &batch, "--steps", "1", "--out", &out];
    let gradients = |flags: &[&str]| -> Vec<String> {
        stdout(&[&step[..], flags].concat());
        let names =
            tensors(&out).into_keys().filter_map(|name| Some(name.strip_prefix("grad.")?.to_string()));
        names.collect()
    };
    assert_eq!(
        gradients(&["--freeze", "!*.attn.q.*,!*ln_f*"]),
        [
            "transformer.h.0.attn.q.bias",
            "transformer.h.0.attn.q.weight",
            "transformer.ln_f.bias",
            "transformer.ln_f.weight"
        ]
    );
    let factors = ["A", "B"].map(|factor| format!("transformer.h.0.attn.v.lora_{factor}.weight"));
    assert_eq!(gradients(&["--lora", "2,2,attn.v"]), factors);
}

#[test]
fn scaled_rotary_positions_are_taken_over_and_saved() {
    let dir = Dir::new("rope");
    let (first, second) = (dir.path("first"), dir.path("second"));
    let scaling = "llama3:8,1,4,8";
    let scaled = train(&[LLAMA, &["--steps", "1", "--rope-scaling", scaling, "--save", &first]]);
    assert_ne!(hash(&scaled), hash(&train(&[LLAMA, &["--steps", "1"]])), "positions differ");
    let rope = json!({
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8,
        "rope_theta": 500_000.0, "rope_type": "llama3",
    });
    assert_eq!((&config(&first)["rope_parameters"], &config(&first)["rope_scaling"]), (&rope, &rope));
    train(&[&["--hf", &first, "--steps", "1", "--rope-scaling", "llama3:8.0,1,4,8", "--save", &second]]);
    assert_eq!(config(&first), config(&second));
    let message = error(&["train", "--hf", &first, "--rope-scaling", "linear:2"], 2);
    assert!(message.contains("`rope_scaling` is linear:2") && message.contains(scaling), "{message}");
    let message = error(&["train", "--model", "llama", "--rope-scaling", "yarn:2"], 2);
    assert!(message.contains("yarn:2") && message.contains("llama3:FACTOR,LOW,HIGH,POSITIONS"), "{message}");
    let message = error(&[&["train", "--rope-scaling", "dynamic:2", "--positions", "8"], LLAMA].concat(), 2);
    assert!(message.contains("`time` 16 exceeds `context` 8"), "{message}");
}

#[test]
fn another_name_of_the_same_activation_is_accepted() {
    let dir = Dir::new("activation");
    let base = dir.path("base");
    train(&[&["--steps", "1", "--save", &base], &SMALL[..8]]);
    train(&[&["--hf", &base, "--steps", "1", "--activation", "gelu_pytorch_tanh"]]);
    let message = error(&["train", "--hf", &base, "--activation", "relu"], 2);
    assert!(message.contains("`activation` is relu") && message.contains("has gelu_new"), "{message}");
}

#[test]
fn a_directory_to_save_to_may_end_with_a_slash_but_must_have_a_name() {
    let dir = Dir::new("save-names");
    let quick = [&["train", "--json", "--steps", "1"], SMALL].concat();
    stdout(&[&quick[..], &["--save", &dir.path("model/")]].concat());
    let mut names: Vec<_> =
        fs::read_dir(dir.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["model"], "nothing is left beside it");
    let here = |flags: &[&str]| {
        let output = phalanx().args(&quick).args(flags).current_dir(dir.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = here(&["--save", "."]);
    assert!(text.contains("is there already"), "{text}");
    let text = here(&["--save", ".", "--overwrite"]);
    assert!(text.contains("cannot save to .") && text.contains("no name"), "{text}");
    assert!(fs::exists(dir.path("model/model.safetensors")).unwrap(), "nothing was touched");
}

#[test]
fn an_imported_checkpoint_has_the_settings_that_were_given() {
    let dir = Dir::new("import-flags");
    let (base, checkpoints) = (dir.path("base"), dir.path("checkpoints"));
    train(&[&["--steps", "1", "--dropout", "0.25", "--save", &base], &SMALL[..8]]);
    let import = ["ckpt", "import", "--hf", &base, "--checkpoint", &checkpoints, "--batch", "8"];
    let output = run(&[&import[..], &["--lr", "0.5", "--freeze", "*wte*"]].concat());
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("dropout is off") && notes.contains("--dropout 0.25"), "{notes}");
    let manifest: Value =
        serde_json::from_slice(&fs::read(format!("{checkpoints}/step-00000000/manifest.json")).unwrap())
            .unwrap();
    let config = &manifest["run"]["config"];
    assert_eq!(
        (&config["lr"], &config["freeze"], &config["dropout"]),
        (&json!(0.5), &json!("*wte*"), &json!(0.0))
    );
    fs::remove_dir_all(&checkpoints).unwrap();
    let kept = run(&[&import[..], &["--dropout", "0.25"]].concat());
    assert!(kept.status.success() && kept.stderr.is_empty(), "{}", String::from_utf8_lossy(&kept.stderr));
}

#[test]
fn a_tokenizer_that_moved_is_an_error_and_the_model_is_not_lost() {
    let dir = Dir::new("tokenizer-moved");
    let tokenizer = dir.write("tokenizer.json", crate::data::TOKENIZER);
    let text = dir.write("text.txt", "a cat sat ".repeat(100));
    let (checkpoints, exported) = (dir.path("checkpoints"), dir.path("exported"));
    let data = ["--data", &text, "--tokenizer", &tokenizer, "--checkpoint", &checkpoints, "--steps", "1"];
    stdout(&[&["train", "--json"], SMALL, &data[..]].concat());
    fs::rename(&tokenizer, dir.path("elsewhere.json")).unwrap();
    let message = error(&["ckpt", "export", &checkpoints, "--hf", &exported], 1);
    assert!(message.contains("cannot copy the tokenizer") && message.contains(&tokenizer), "{message}");
    assert!(message.contains("exported.partial"), "{message}");
    assert!(!fs::exists(&exported).unwrap(), "no model without its tokenizer");
    assert!(fs::exists(format!("{exported}.partial/model.safetensors")).unwrap());
}
