//! Families of decoders: the losses, gradients and weights of transformers, the same bits on every plan, and caches with
//! the bits of whole passes. `benches/peers/decoders.py` wrote the expected numbers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use phalanx::generate::Decoder;
use phalanx::hf::{SaveOptions, Stored};
use phalanx::ir::Precision;
use phalanx::models::{DecoderFamily, LanguageModel, LlamaConfig, ModelConfig};
use phalanx::pipeline::Settings;
use phalanx::{Feed, Goal, Optimizer, Session, Trainer, UpdateRule, hf};
use serde::Deserialize;

use crate::training::{self, ONE, PlanCase};

const GOLDEN: &[u8] = include_bytes!("golden/decoders.json.gz");

/// Sequences in a batch.
const BATCH: usize = 4;
/// Tokens in a sequence.
const TIME: usize = 11;

/// The largest difference to transformers in a loss: some forty roundings of a loss near 4, to which 24 bits leave 2.4e-7.
const LOSS_TOLERANCE: f64 = 1e-5;
/// Of a gradient, as a share of the norm of all of them.
const GRADIENT_TOLERANCE: f64 = 2e-5;
/// Of a weight after the last step.
const WEIGHT_TOLERANCE: f64 = 2e-5;

/// What transformers did with a model.
#[derive(Deserialize)]
struct Case {
    config: serde_json::Value,
    loss: Vec<f64>,
    gradient: BTreeMap<String, [f64; 4]>,
    weights: BTreeMap<String, [f64; 4]>,
}

fn cases() -> BTreeMap<String, Case> {
    serde_json::from_reader(GzDecoder::new(GOLDEN)).unwrap()
}

/// 64 bits for each index: splitmix64 from the FNV-1a hash of the name on.
fn words(name: &str, count: usize) -> impl Iterator<Item = u64> + use<> {
    let start = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (1..=count as u64).map(move |index| {
        let z = start.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// The elements that a tensor starts with.
fn start(stored: &Stored) -> Vec<f32> {
    let (name, shape) = (stored.name(), stored.shape());
    let is_scale = shape.rank() == 1 && name.ends_with(".weight");
    let uniform = words(name, shape.elements()).map(|word| (word >> 40) as f32 / 8_388_608.0 - 1.0);
    uniform.map(|value| if is_scale { 1.0 + 0.25 * value } else { 0.5 * value }).collect()
}

fn batch(step: usize, vocab: usize) -> [Vec<i64>; 2] {
    let text: Vec<i64> = words(&format!("tokens {step}"), BATCH * (TIME + 1))
        .map(|word| (word % vocab as u64) as i64)
        .collect();
    let skipped = words(&format!("ignored {step}"), BATCH * TIME).map(|word| word % 7 == 0);
    let rows = || text.chunks(TIME + 1);
    let tokens = rows().flat_map(|row| row[..TIME].to_vec()).collect();
    let labels = rows().flat_map(|row| row[1..].to_vec());
    [tokens, labels.zip(skipped).map(|(label, skipped)| if skipped { -100 } else { label }).collect()]
}

/// The norm of a tensor, and its products with three vectors of signs.
pub fn summary(name: &str, values: &[f32]) -> [f64; 4] {
    let signed = |k: usize| {
        let signs = words(&format!("{name} {k}"), values.len());
        values
            .iter()
            .zip(signs)
            .map(|(&value, sign)| if sign >> 63 == 0 { value.into() } else { -f64::from(value) })
            .sum()
    };
    let norm = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    [norm, signed(0), signed(1), signed(2)]
}

/// A tensor of a file, from the ports of its parts.
fn read(session: &Session, stored: &Stored, suffix: &str) -> Vec<f32> {
    let parts: Vec<_> =
        stored.parts().iter().map(|(name, _)| session.read(&format!("{name}{suffix}")).unwrap()).collect();
    stored.join(&parts.iter().map(|part| &**part).collect::<Vec<_>>()).into_owned()
}

/// Checks all tensors; `tolerance` is that of a tensor of so many elements.
fn near(
    what: &str,
    session: &Session,
    stored: &[Stored],
    (suffix, wanted): (&str, &BTreeMap<String, [f64; 4]>),
    tolerance: impl Fn(usize) -> f64,
) {
    assert_eq!(stored.len(), wanted.len(), "{what}: {:?}", wanted.keys());
    for stored in stored {
        let values = read(session, stored, suffix);
        let found = summary(stored.name(), &values);
        let wanted = wanted.get(stored.name()).unwrap_or_else(|| panic!("{what}: no {}", stored.name()));
        let difference = found.iter().zip(wanted).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        let tolerance = tolerance(values.len());
        assert!(difference <= tolerance, "{what} {}: {found:?} but {wanted:?}", stored.name());
    }
}

/// Writes the configuration of a case into a directory of its own.
fn directory(name: &str, config: &serde_json::Value) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("phalanx-decoders-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir
}

/// Repeats the steps of a case.
fn compare(name: &str, case: &Case) {
    let dir = directory(name, &case.config);
    let model = hf::read_config(&dir).unwrap();
    let stored = hf::tensors(&model).unwrap();
    let graph = model.training_graph(BATCH, TIME).unwrap();
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-5, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(0.1).keep_gradients(true);
    let mut trainer = Trainer::new(&graph, optimizer).unwrap();
    let weights = weights(&dir, &model, &stored);
    for (name, values) in &weights {
        trainer.session_mut().feed(name, values).unwrap();
    }
    for (step, wanted) in case.loss.iter().enumerate() {
        let [tokens, targets] = batch(step, model.vocab().unwrap());
        let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
        let loss = f64::from(trainer.step(&feeds, 3e-3).unwrap().loss);
        println!("{name} step {step}: loss {loss} differs by {:e}", (loss - wanted).abs());
        assert!((loss - wanted).abs() <= LOSS_TOLERANCE, "{name} step {step}: {loss} but {wanted}");
        if step == 0 {
            let norm = case.gradient.values().map(|numbers| numbers[0].powi(2)).sum::<f64>().sqrt();
            near(name, trainer.session(), &stored, (".grad", &case.gradient), |_| GRADIENT_TOLERANCE * norm);
        }
    }
    let largest = |elements: usize| WEIGHT_TOLERANCE * (elements as f64).sqrt();
    near(name, trainer.session(), &stored, ("", &case.weights), largest);
    fs::remove_dir_all(dir).unwrap();
}

/// The parameters that a case starts with, after a file of them was written and read.
fn weights(dir: &std::path::Path, model: &ModelConfig, stored: &[Stored]) -> BTreeMap<String, Vec<f32>> {
    let names: Vec<&str> = stored.iter().map(Stored::name).collect();
    let tensors = stored.iter().map(|stored| {
        let bytes: Vec<u8> = start(stored).iter().flat_map(|value| value.to_le_bytes()).collect();
        (stored.shape().dims().to_vec(), bytes)
    });
    let tensors: Vec<_> = tensors.collect();
    let views = names.iter().zip(&tensors).map(|(name, (shape, bytes))| {
        (*name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let written = safetensors::serialize(views, None).unwrap();
    fs::write(dir.join("model.safetensors"), written).unwrap();
    let read = hf::read_weights(dir, stored).unwrap();
    let again = dir.join("again");
    for like in [None, Some(dir)] {
        hf::write_model(&again, model, &read, SaveOptions { like, ..SaveOptions::default() }).unwrap();
        assert_eq!(hf::read_config(&again).unwrap(), *model, "what is written is read as the same");
        assert!(hf::read_weights(&again, stored).unwrap() == read);
    }
    read
}

macro_rules! families {
    ($($test:ident: $($case:literal),*;)*) => {
        $(#[test]
        fn $test() {
            let cases = cases();
            for name in [$($case),*] {
                compare(name, &cases[name]);
            }
        })*

        #[test]
        fn every_case_is_compared() {
            assert!(cases().into_keys().eq(std::collections::BTreeSet::from([$($($case.to_string()),*),*])));
        }
    };
}

families! {
    llama_is_that_of_transformers: "llama", "llama3";
    mistral_is_that_of_transformers: "mistral", "mistral-window";
    qwen2_is_that_of_transformers: "qwen2", "qwen2-tied", "qwen2-window";
    qwen3_is_that_of_transformers: "qwen3";
    phi3_is_that_of_transformers: "phi3", "phi3-whole";
    olmo2_is_that_of_transformers: "olmo2", "olmo2-biased";
    gemma_is_that_of_transformers: "gemma", "gemma-untied";
    gpt_neox_is_that_of_transformers: "gpt_neox", "gpt_neox-serial";
    mixtral_is_that_of_transformers: "mixtral", "mixtral-balanced";
}

const VOCAB: usize = 32;

/// A small model of a family, with everything that it has.
fn small(family: DecoderFamily) -> LlamaConfig {
    let ModelConfig::Llama(config) = ModelConfig::preset(family.name(), "nano").unwrap() else {
        panic!("{family:?}")
    };
    let grouped = if config.kv_heads == config.heads { 4 } else { 2 };
    let sizes =
        LlamaConfig { layers: 2, heads: 4, kv_heads: grouped, head_dim: 8, width: 32, hidden: 48, ..config };
    LlamaConfig {
        vocab: VOCAB,
        context: 16,
        rotary_dim: family.turns_partly().then_some(4),
        experts: (family == DecoderFamily::Mixtral).then(|| "4,2,0.1".parse().unwrap()),
        padding: (family == DecoderFamily::Gemma).then_some(3),
        ..sizes
    }
}

/// The same with a window in its second layer, where the family has windows.
fn windowed(family: DecoderFamily) -> LlamaConfig {
    let window = "5,1".parse().ok();
    let config = LlamaConfig { window, ..small(family) };
    if config.training_graph(8, 16).is_ok() { config } else { small(family) }
}

const PLANS: &[PlanCase] =
    &[("dp", 2, None), ("fsdp", 2, None), ("tp", 2, None), ("pp", 2, None), ("dp", 1, Some(2))];

#[test]
fn every_family_has_the_same_bits_on_every_plan() {
    for family in DecoderFamily::ALL {
        let graph = ModelConfig::Llama(LlamaConfig { dropout: 0.1, ..windowed(family) })
            .training_graph(8, 16)
            .unwrap();
        let answer = |plan| {
            let settings = training::settings(&graph, plan);
            training::train(Trainer::with_settings(&graph, &settings).unwrap(), &graph, VOCAB, 2)
        };
        let expected = answer(ONE);
        for &plan in PLANS {
            assert!(answer(plan) == expected, "{family:?}: {plan:?} has other bits");
        }
    }
}

#[test]
fn caches_have_the_bits_of_whole_passes() {
    for family in DecoderFamily::ALL {
        let model = ModelConfig::Llama(small(family));
        let text: Vec<i64> = words("text", 16).map(|word| (word % VOCAB as u64) as i64).collect();
        let graph = model.logits_graph(1, 16).unwrap();
        let mut whole = Session::new(&graph, &Settings::new(Goal::Infer)).unwrap();
        whole.feed("tokens", &text).unwrap();
        whole.run().unwrap();
        let mut decoder = Decoder::new(&model, 16, 1, Precision::F32).unwrap();
        for (name, values) in &whole.weights().unwrap() {
            decoder.feed(name, values).unwrap();
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let logits = whole.read("logits").unwrap();
        for length in [1, 2, 9, 10, 16] {
            let found = decoder.next_logits(&text[..length]).unwrap();
            assert_eq!(
                bits(&found),
                bits(&logits[(length - 1) * VOCAB..][..VOCAB]),
                "{family:?}, token {length}"
            );
        }
    }
}
