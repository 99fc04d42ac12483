//! Fine-tuning: the same losses and gradients as transformers, and the same bits on every plan with frozen parameters and
//! with low-rank adapters. `benches/peers/fine_tune.py` wrote the expected numbers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx::hf::SaveOptions;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, Lora, ModelConfig};
use phalanx::pipeline::{Settings, compile_observed};
use phalanx::{Feed, Goal, Optimizer, PortKind, Session, Trainer, UpdateRule, hf};
use phalanx_testkit::zoo;
use safetensors::SafeTensors;

use crate::training::{self, ONE, PlanCase, VOCAB};

/// The largest difference to transformers in a loss: eight roundings of a loss near 3, to which 24 bits leave 2.4e-7.
const TOLERANCE: f32 = 2e-6;

/// The largest difference in an element of a gradient, relative to the largest one of its tensor: on either side 32 roundings
/// of 6e-8, which sums over some hundred products leave on their way through four of them, as a random walk does.
const GRADIENT_TOLERANCE: f32 = 4e-6;

/// What transformers did.
struct Golden {
    floats: BTreeMap<String, Vec<f32>>,
    /// Tokens of all steps, `[steps, batch, time + 1]`.
    text: Vec<i64>,
    shape: Vec<usize>,
}

fn directory(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fine_tune").join(case)
}

fn golden(case: &str) -> Golden {
    let bytes = fs::read(directory(case).join("steps.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let text = file.tensor("text").unwrap();
    Golden {
        floats: file
            .names()
            .into_iter()
            .filter(|name| *name != "text")
            .map(|name| (name.into(), floats(name)))
            .collect(),
        text: text.data().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        shape: text.shape().to_vec(),
    }
}

/// Repeats the steps of a case; the largest differences of a loss and of a gradient.
fn compare(case: &str, lora: Option<&str>) -> (f32, f32) {
    let (dir, golden) = (directory(case), golden(case));
    let model = hf::read_config(&dir).unwrap();
    let stored = hf::tensors(&model).unwrap();
    let [steps, batch, time] = [0, 1, 2].map(|dim| golden.shape[dim] - usize::from(dim == 2));
    let mut graph = model.training_graph(batch, time).unwrap();
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let mut optimizer = Optimizer::new(rule).decay(0.1).keep_gradients(true);
    if let Some(lora) = lora {
        graph = lora.parse::<Lora>().unwrap().adapt(&graph).unwrap();
        optimizer = optimizer.frozen(["!*.lora_?.weight"]);
    }
    let mut trainer = Trainer::new(&graph, optimizer).unwrap();
    let adapters =
        golden.floats.iter().filter_map(|(name, values)| Some((name.strip_prefix("lora.")?, values)));
    for (name, values) in adapters {
        trainer.session_mut().feed(name, values).unwrap();
    }
    for (name, values) in &hf::read_weights(&dir, &stored).unwrap() {
        trainer.session_mut().feed(name, values).unwrap();
    }
    let (mut loss_difference, mut gradient_difference) = (0f32, 0f32);
    for step in 0..steps {
        let rows = golden.text.chunks_exact(time + 1).skip(step * batch).take(batch);
        let tokens: Vec<i64> = rows.clone().flat_map(|row| row[..time].to_vec()).collect();
        let targets: Vec<i64> = rows.flat_map(|row| row[1..].to_vec()).collect();
        let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
        let loss = trainer.step(&feeds, 3e-3).unwrap().loss;
        loss_difference = loss_difference.max((loss - golden.floats["loss"][step]).abs());
        if step == 0 {
            gradient_difference = gradients(trainer.session(), &stored, &golden);
        }
    }
    (loss_difference, gradient_difference)
}

/// The largest difference of an element of a gradient, relative to the largest one of its tensor.
fn gradients(session: &Session, stored: &[hf::Stored], golden: &Golden) -> f32 {
    let mut largest = 0f32;
    for (name, wanted) in
        golden.floats.iter().filter_map(|(name, values)| Some((name.strip_prefix("grad.")?, values)))
    {
        let parts: Vec<&str> = match stored.iter().find(|stored| stored.name() == name) {
            Some(stored) => stored.parts().iter().map(|(part, _)| part.as_str()).collect(),
            None => vec![name],
        };
        let parts: Vec<_> = parts.iter().map(|part| session.read(&format!("{part}.grad")).unwrap()).collect();
        let parts: Vec<&[f32]> = parts.iter().map(|part| &**part).collect();
        let found = match stored.iter().find(|stored| stored.name() == name) {
            Some(stored) => stored.join(&parts).into_owned(),
            None => parts.concat(),
        };
        assert_eq!(found.len(), wanted.len(), "{name}");
        let scale = wanted.iter().fold(1e-3f32, |most, value| most.max(value.abs()));
        let difference = found.iter().zip(wanted).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        largest = largest.max(difference / scale);
    }
    largest
}

/// Checks a case and prints how near it is.
fn agrees(case: &str, lora: Option<&str>) {
    let (loss, gradient) = compare(case, lora);
    println!("{case}: losses differ by up to {loss:e}, gradients by up to {gradient:e}");
    let near = loss <= TOLERANCE && gradient <= GRADIENT_TOLERANCE;
    assert!(near, "{case}: loss {loss:e}, gradient {gradient:e}");
}

#[test]
fn twenty_steps_of_gpt2_have_the_losses_of_transformers() {
    agrees("gpt2", None);
}

#[test]
fn twenty_steps_of_llama_have_the_losses_of_transformers() {
    agrees("llama", None);
}

#[test]
fn scaled_rotary_positions_have_the_losses_of_transformers() {
    for case in ["llama3", "linear", "dynamic"] {
        agrees(case, None);
    }
}

#[test]
fn adapters_have_the_losses_of_their_definition_in_pytorch() {
    agrees("llama3-lora", Some("2,3,q_proj,v_proj,down_proj"));
    agrees("gpt2-lora", Some("2,3,attn.q,attn.k,attn.v,mlp.c_fc"));
}

#[test]
fn sequences_beyond_the_window_of_dynamic_positions_are_refused() {
    let model = hf::read_config(&directory("dynamic")).unwrap();
    let error = model.training_graph(2, 65).unwrap_err().to_string();
    assert!(error.contains("`time` 65 exceeds `context` 64"), "{error}");
}

#[test]
fn a_written_model_has_the_rotary_scaling_of_the_one_it_was_read_from() {
    for case in ["llama", "llama3", "linear", "dynamic"] {
        let model = hf::read_config(&directory(case)).unwrap();
        let weights = hf::read_weights(&directory(case), &hf::tensors(&model).unwrap()).unwrap();
        let out = std::env::temp_dir().join(format!("phalanx-rope-{case}-{}", std::process::id()));
        for like in [None, Some(directory(case))] {
            let options = SaveOptions { like: like.as_deref(), ..SaveOptions::default() };
            hf::write_model(&out, &model, &weights, options).unwrap();
            assert_eq!(hf::read_config(&out).unwrap(), model, "{case}");
        }
        fs::remove_dir_all(&out).unwrap();
    }
}

/// Plans of every kind, and some of several.
const PLANS: &[PlanCase] = &[
    ("dp", 2, None),
    ("fsdp", 2, None),
    ("zero1", 2, None),
    ("tp", 2, None),
    ("sp", 2, None),
    ("pp", 2, None),
    ("fsdp2-tp2", 4, None),
    ("dp2-sp2-pp2", 8, None),
];

fn gpt2() -> Graph {
    let config =
        Gpt2Config { layers: 2, heads: 4, width: 32, hidden: 64, vocab: VOCAB, context: 16, ..zoo::GPT2 };
    zoo::gpt2(16, config)
}

fn llama() -> Graph {
    let sizes = LlamaConfig { layers: 2, heads: 4, kv_heads: 2, width: 32, hidden: 64, ..zoo::LLAMA };
    zoo::llama(16, LlamaConfig { vocab: VOCAB, context: 16, ..sizes })
}

fn settings(model: &Graph, plan: PlanCase, frozen: &[&str]) -> Settings {
    let optimizer = Optimizer::adamw(0.1).clip(Some(0.5)).frozen(frozen.iter().copied());
    training::settings(model, plan).goal(Goal::Train(optimizer))
}

/// Checks that all plans give the bits of one device.
fn same_bits(model: &Graph, frozen: &[&str]) {
    let answer = |plan| {
        let settings = settings(model, plan, frozen);
        training::train(Trainer::with_settings(model, &settings).unwrap(), model, VOCAB, 3)
    };
    let expected = answer(ONE);
    for &plan in PLANS {
        assert!(answer(plan) == expected, "{plan:?} has other bits");
    }
}

#[test]
fn frozen_parameters_give_the_same_bits_on_every_plan() {
    same_bits(&gpt2(), &["*wte*", "*.h.0.*", "*.ln_f.weight"]);
    same_bits(&llama(), &["!*.layers.1.*"]);
}

#[test]
fn adapters_give_the_same_bits_on_every_plan() {
    let adapters = ["!*.lora_A.weight", "!*.lora_B.weight"];
    let all = "4,6,attn.q,attn.v,attn.c_proj,mlp.c_fc,mlp.c_proj".parse::<Lora>().unwrap();
    same_bits(&all.adapt(&gpt2()).unwrap(), &adapters);
    let all = "3,4,self_attn.*_proj,mlp.*_proj".parse::<Lora>().unwrap();
    same_bits(&all.adapt(&llama()).unwrap(), &adapters);
}

#[test]
fn what_is_frozen_has_no_gradient_no_state_and_stays() {
    let (model, frozen) = (gpt2(), ["*wte*", "*wpe*", "*.h.0.*"]);
    let is_frozen = |name: &str| name.contains("wte") || name.contains("wpe") || name.contains(".h.0.");
    let settings = settings(&model, ("dp", 2, None), &frozen);
    compile_observed(&model, &settings, |stage, level| {
        if ["insert-updates", "split-movements"].contains(&stage) {
            let text = level.to_string();
            assert!(text.contains("transformer.h.1.attn.q.weight.grad"), "{stage}");
            // The norm that follows the frozen part computes a gradient of its input, which no task reads.
            let of_frozen = |line: &&str| {
                line.contains(".h.0.") && line.contains(".grad") && !line.contains("\"transformer.h.0.grad\"")
            };
            assert_eq!(text.lines().find(of_frozen), None, "{stage}");
            assert!(!text.contains("wte.weight.grad"), "{stage}");
        }
    })
    .unwrap();
    let mut trainer = Trainer::with_settings(&model, &settings).unwrap();
    assert!(trainer.session().names(PortKind::State).all(|name| !is_frozen(name)));
    let before = trainer.session().weights().unwrap();
    training::feed(trainer.session_mut(), &model, VOCAB, 0);
    trainer.run(1e-2).unwrap();
    for (name, values) in trainer.session().weights().unwrap() {
        assert_eq!(values == before[&name], is_frozen(&name), "{name}");
    }
}

#[test]
fn freezing_everything_or_nothing_is_an_error() {
    let model = gpt2();
    let error = |frozen: &[&str]| {
        Trainer::with_settings(&model, &settings(&model, ONE, frozen)).err().unwrap().to_string()
    };
    assert!(error(&["*"]).contains("depends on no parameter that is trained"));
    let message = error(&["*.wtee.*"]);
    assert!(message.contains("`*.wtee.*`") && message.contains("`transformer.wte.weight`"), "{message}");
}

#[test]
fn merged_adapters_are_the_same_function() {
    for case in ["llama3-lora", "gpt2-lora"] {
        let (dir, golden) = (directory(case), golden(case));
        let model = hf::read_config(&dir).unwrap();
        let layers = if case.starts_with("gpt2") {
            "attn.q,attn.k,attn.v,mlp.c_fc"
        } else {
            "q_proj,v_proj,down_proj"
        };
        let lora: Lora = format!("2,3,{layers}").parse().unwrap();
        let weights = hf::read_weights(&dir, &hf::tensors(&model).unwrap()).unwrap();
        let factors = golden
            .floats
            .iter()
            .filter_map(|(name, v)| Some((name.strip_prefix("lora.")?.into(), v.clone())));
        let adapted: BTreeMap<String, Vec<f32>> = weights.clone().into_iter().chain(factors).collect();
        let merged = hf::merge_adapters(&model, &lora, adapted.clone()).unwrap();
        assert!(merged.keys().eq(weights.keys()), "{case}: the parameters of the model alone");
        let graph = model.logits_graph(1, 8).unwrap();
        let [expected, found, base] = [
            logits(&lora.adapt(&graph).unwrap(), &adapted),
            logits(&graph, &merged),
            logits(&graph, &weights),
        ];
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart(&expected, &found) < 1e-5, "{case}: {}", apart(&expected, &found));
        assert!(apart(&expected, &base) > 1e-2, "{case}: the adapters do something");
    }
}

fn logits(graph: &Graph, weights: &BTreeMap<String, Vec<f32>>) -> Vec<f32> {
    let mut session = Session::new(graph, &Settings::new(Goal::Infer)).unwrap();
    for (name, values) in weights {
        session.feed(name, values).unwrap();
    }
    session.feed("tokens", &vec![3i64, 1, 4, 1, 5, 9, 2, 6]).unwrap();
    session.run().unwrap();
    session.read("logits").unwrap().into_owned()
}

#[test]
fn adapters_of_gpt2_are_written_as_one_of_c_attn() {
    let (dir, golden) = (directory("gpt2-lora"), golden("gpt2-lora"));
    let model = hf::read_config(&dir).unwrap();
    let ModelConfig::Gpt2(Gpt2Config { width, .. }) = model else { panic!("gpt2") };
    let lora: Lora = "2,3,attn.q,attn.v,mlp.c_fc".parse().unwrap();
    let factors =
        golden.floats.iter().filter_map(|(name, v)| Some((name.strip_prefix("lora.")?.into(), v.clone())));
    let weights: BTreeMap<String, Vec<f32>> = factors.collect();
    let out = std::env::temp_dir().join(format!("phalanx-peft-{}", std::process::id()));
    hf::write_adapters(&out, &model, &lora, &dir, weights.clone()).unwrap();
    let bytes = fs::read(out.join("adapter_model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| {
        let tensor = file.tensor(&format!("base_model.model.transformer.h.1.{name}.weight")).unwrap();
        let values: Vec<f32> =
            tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        (tensor.shape().to_vec(), values)
    };
    let own = |name: &str| &weights[&format!("transformer.h.1.{name}.weight")][..];
    assert_eq!(file.len(), 2 * 2 * 2);
    assert_eq!(
        tensor("attn.c_attn.lora_A"),
        (vec![4, width], [own("attn.q.lora_A"), own("attn.v.lora_A")].concat())
    );
    let (shape, up) = tensor("attn.c_attn.lora_B");
    assert_eq!(shape, [3 * width, 4]);
    for (row, found) in up.chunks_exact(4).enumerate() {
        let part = |name: &str| own(name)[row % width * 2..][..2].to_vec();
        let wanted = match row / width {
            0 => [part("attn.q.lora_B"), vec![0.0; 2]].concat(),
            1 => vec![0.0; 4],
            _ => [vec![0.0; 2], part("attn.v.lora_B")].concat(),
        };
        assert_eq!(found, wanted, "{row}");
    }
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &6.0.into()));
    assert_eq!(config["rank_pattern"]["transformer.h.0.mlp.c_fc"], 2);
    assert_eq!(config["alpha_pattern"]["transformer.h.0.mlp.c_fc"], 3.0);
    assert_eq!(config["target_modules"], serde_json::json!(["c_attn", "c_fc"]));
    fs::remove_dir_all(&out).unwrap();
}
