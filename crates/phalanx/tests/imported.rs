//! Graph files of PyTorch modules: losses, gradients and five steps of AdamW as PyTorch has them, and one answer for every
//! plan. The files are made by `benches/peers/torch_import`; weights follow from names and indices in both worlds.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use phalanx::import::{self, ImportedModel, WeightKind};
use phalanx::ir::DType;
use phalanx::nn::{AsFeed, OwnedFeed};
use phalanx::{Decays, Goal, Optimizer, PlanChoice, Settings, Trainer};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::Value;

/// Names of the golden modules.
const MODULES: [&str; 12] = [
    "bert",
    "clicks",
    "convolutions",
    "elements",
    "encoder",
    "gemma3",
    "gpt",
    "llama",
    "mixtral",
    "mlp",
    "qwen3",
    "recurrent",
];

struct Golden {
    name: &'static str,
    model: ImportedModel,
    feeds: Vec<(String, OwnedFeed)>,
    expected: Value,
}

fn unpacked(name: &str) -> Vec<u8> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch").join(format!("{name}.gz"));
    let packed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Numbers in -0.5..0.5 from a name and an index, as `golden.py` makes them.
fn uniform(name: &str, count: usize) -> Vec<f32> {
    let fnv = |value: u32, byte: u8| (value ^ u32::from(byte)).wrapping_mul(16_777_619);
    let seed = name.bytes().fold(2_166_136_261_u32, fnv);
    let number = |index: u32| {
        let mut mixed = index.wrapping_mul(2_654_435_761).wrapping_add(seed);
        mixed ^= mixed >> 15;
        mixed = mixed.wrapping_mul(2_246_822_519);
        mixed ^= mixed >> 13;
        (mixed >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count as u32).map(number).collect()
}

fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let values = uniform(name, shape.iter().product()).into_iter();
    match (shape.len() < 2, name.ends_with("weight")) {
        (true, true) => values.map(|value| 1.0 + 0.25 * value).collect(),
        _ => values.map(|value| 0.25 * value).collect(),
    }
}

/// The product with random signs, and the norm.
fn project(name: &str, values: &[f64]) -> [f64; 2] {
    let signs = uniform(&format!("sign of {name}"), values.len());
    let product =
        values.iter().zip(signs).map(|(value, sign)| if sign < 0.0 { -value } else { *value }).sum();
    [product, values.iter().map(|value| value * value).sum::<f64>().sqrt()]
}

fn golden(name: &'static str) -> Golden {
    let json = unpacked(&format!("{name}.json"));
    let stored = unpacked(&format!("{name}.safetensors"));
    let stored = SafeTensors::deserialize(&stored).unwrap();
    let document: Value = serde_json::from_slice(&json).unwrap();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for leaf in document["leaves"].as_array().unwrap() {
        let name = leaf["name"].as_str().unwrap();
        let shape: Vec<usize> = serde_json::from_value(leaf["shape"].clone()).unwrap();
        if leaf["role"] == "param" {
            let bytes = weights(name, &shape).iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push((name.to_string(), Dtype::F32, shape, bytes));
        } else if let Ok(view) = stored.tensor(name) {
            tensors.push((name.to_string(), view.dtype(), shape, view.data().to_vec()));
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let model = import::read(&json, &serialize(views, None).unwrap())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let feed = |input: &import::ImportedInput| {
        let bytes = stored.tensor(&format!("feed:{}", input.name)).unwrap().data().to_vec();
        let values = match input.ty.dtype {
            DType::I64 => {
                bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect::<Vec<_>>().into()
            }
            DType::Bool => bytes.iter().map(|&byte| byte != 0).collect::<Vec<_>>().into(),
            _ => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>().into(),
        };
        (input.name.clone(), values)
    };
    let feeds = model.inputs.iter().map(feed).collect();
    let expected = serde_json::from_slice(&unpacked(&format!("{name}.expected.json"))).unwrap();
    Golden { name, model, feeds, expected }
}

impl Golden {
    fn trainer(&self, settings: &Settings) -> Trainer {
        let mut trainer = Trainer::with_settings(&self.model.train, settings)
            .unwrap_or_else(|error| panic!("{} {:?}: {error}", self.name, settings.plan));
        let kept = |kind| matches!(kind, WeightKind::Trained | WeightKind::State);
        for weight in self.model.weights.iter().filter(|weight| kept(weight.kind)) {
            trainer.session_mut().feed(&weight.name, &weight.floats().unwrap()).unwrap();
        }
        for (name, values) in &self.feeds {
            trainer.session_mut().feed(name, values.as_feed()).unwrap();
        }
        trainer
    }

    /// How far weights of a kind have moved.
    fn moved(&self, trainer: &Trainer, kind: WeightKind) -> BTreeMap<String, Vec<f64>> {
        let weights = self.model.weights.iter().filter(|weight| weight.kind == kind);
        let change = |weight: &import::ImportedWeight| {
            let now = trainer.session().read(&weight.name).unwrap();
            let before = weight.floats().unwrap();
            let moved = now.iter().zip(before).map(|(now, before)| f64::from(*now) - f64::from(before));
            (weight.name.clone(), moved.collect())
        };
        weights.map(change).collect()
    }

    /// Compares projections within `bound` times `scale`, or the norm of the tensor if that is larger.
    fn compare(&self, what: &str, found: &BTreeMap<String, Vec<f64>>, bound: f64, scale: f64) {
        let expected = self.expected[what].as_object().unwrap();
        for (name, pair) in expected {
            let pair: [f64; 2] = serde_json::from_value(pair.clone()).unwrap();
            let values = found.get(name).unwrap_or_else(|| panic!("{} has no {what} of {name}", self.name));
            let own = project(name, values);
            // A projection of n errors of size e is about √n e; a norm of them as well.
            for (own, wanted) in own.iter().zip(pair) {
                let error = (own - wanted).abs();
                assert!(
                    error <= bound * scale.max(pair[1]),
                    "{}: {what} of {name}: {own} instead of {wanted}, norm {}",
                    self.name,
                    pair[1]
                );
            }
        }
    }
}

fn sgd() -> Settings {
    Settings::new(Goal::Train(Optimizer::sgd(0.0))).cores(1)
}

fn adamw() -> Settings {
    Settings::new(Goal::Train(Optimizer::adamw(0.0).decays(Decays::All))).cores(1)
}

#[test]
fn losses_gradients_and_steps_are_those_of_pytorch() {
    for name in MODULES {
        let golden = golden(name);
        let losses: Vec<f64> = serde_json::from_value(golden.expected["losses"].clone()).unwrap();
        // With a rate of one the weights move by the gradient.
        let mut trainer = golden.trainer(&sgd());
        let loss = f64::from(trainer.run(1.0).unwrap().loss);
        assert!((loss - losses[0]).abs() <= 1e-5 * losses[0].abs(), "{name}: loss {loss}, not {}", losses[0]);
        let mut gradients = golden.moved(&trainer, WeightKind::Trained);
        gradients.values_mut().flatten().for_each(|value| *value = -*value);
        let norm = gradients.values().flatten().map(|value| value * value).sum::<f64>().sqrt();
        golden.compare("gradients", &gradients, 1e-4, norm);

        let mut trainer = golden.trainer(&adamw());
        for (step, wanted) in losses.iter().enumerate() {
            let loss = f64::from(trainer.run(1e-3).unwrap().loss);
            assert!(
                (loss - wanted).abs() <= 1e-4 * wanted.abs(),
                "{name}: step {step}: loss {loss}, not {wanted}"
            );
        }
        golden.compare("states", &golden.moved(&trainer, WeightKind::State), 1e-4, 0.0);
    }
}

/// Plans that a module has no use for, and what they say: nothing to cut into two.
const REFUSED: [(&str, &str); 2] = [("clicks", "tp2"), ("elements", "tp2")];

#[test]
fn graph_files_have_one_answer_for_every_plan() {
    for name in MODULES {
        let golden = golden(name);
        let hash = |plan: Option<&str>, microbatches: usize| {
            let choice = PlanChoice::default().plan(plan.map(Into::into)).microbatches(Some(microbatches));
            let plan = choice.resolve(&golden.model.train).map_err(|error| error.to_string())?;
            let mut trainer = golden.trainer(&adamw().plan(plan));
            (0..2).for_each(|_| _ = trainer.run(1e-3).unwrap());
            Ok(trainer.session().weights_hash().unwrap())
        };
        let one = hash(None, 1);
        for (plan, microbatches) in [(Some("dp2"), 1), (Some("fsdp2"), 1), (Some("tp2"), 1), (None, 2)] {
            let found: Result<u128, String> = hash(plan, microbatches);
            match REFUSED.contains(&(name, plan.unwrap_or_default())) {
                true => assert!(found.is_err_and(|error| error.contains("has none")), "{name}: {plan:?}"),
                false => assert_eq!(found, one, "{name}: {plan:?}, {microbatches} microbatches"),
            }
        }
    }
}
