//! Models of the zoo do what PyTorch does in five steps: losses, the first gradients, and the weights and running statistics
//! behind the last step. `benches/peers/zoo.py` wrote the expected numbers, in double precision.
//!
//! A narrow Inception magnifies roundings: PyTorch's own single precision is off by more than a percent after a few steps. So
//! it has one step, whose gradients may be as far off as PyTorch's, and of what is behind it statistics are compared.
//!
//! Weights and samples follow from a seed, so the file has results alone. With the variable `PHALANX_WRITE_ZOO` the test
//! writes them to a directory, from which the script makes the file.

use std::collections::BTreeMap;
use std::path::Path;

use flate2::read::GzDecoder;
use phalanx::models::zoo::{SampleData, ZOO, ZooEntry, ZooModel, training_graph};
use phalanx::nn::{AsFeed, OwnedFeed};
use phalanx::{Goal, Optimizer, PortKind, Session, Settings, Trainer, UpdateRule};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::decoders::summary;

const GOLDEN: &[u8] = include_bytes!("../golden/zoo.json.gz");
const BATCH: usize = 16;
/// Of a model that magnifies roundings, more the more samples there are.
const SMALL_BATCH: usize = 4;
const SEED: u64 = 3;
const LR: f32 = 1e-3;

/// The largest difference to PyTorch in the first loss, as a share of it.
const LOSS_TOLERANCE: f64 = 1e-5;
/// In a loss of a later step: steps of AdamW magnify roundings of small gradients.
const STEP_TOLERANCE: f64 = 1e-4;
/// Of a gradient, as a share of the norm of all of them, unless PyTorch's single precision is further off.
const GRADIENT_TOLERANCE: f64 = 1e-4;
/// Steps that are written.
const STEPS: u64 = 5;
/// The model that magnifies roundings.
const MAGNIFYING: &str = "inception";
/// Of a weight or statistic behind the last step, on average over a tensor.
const WEIGHT_TOLERANCE: f64 = 1e-4;

/// Four numbers for each tensor.
type Summaries = BTreeMap<String, [f64; 4]>;

/// What PyTorch did with a model.
#[derive(Deserialize)]
struct Case {
    loss: Vec<f64>,
    /// The largest difference of a gradient in single precision, as a share of the norm of all of them.
    single: f64,
    gradient: Summaries,
    weights: Summaries,
}

fn near(what: &str, found: &Summaries, wanted: &Summaries, tolerance: impl Fn(&str) -> f64) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{what}");
    for (name, found) in found {
        let wanted = &wanted[name];
        let difference = found.iter().zip(wanted).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(difference <= tolerance(name), "{what} {name}: {found:?}, PyTorch {wanted:?}");
    }
}

/// The summaries of those tensors of a session, with this ending of their names, that there are.
fn summaries(session: &Session, ending: &str) -> Summaries {
    let one = |name: &str| {
        let values = session.read(&format!("{name}{ending}")).ok()?;
        Some((name.to_string(), summary(name, &values)))
    };
    session.names(PortKind::Param).filter_map(one).collect()
}

/// Repeats the steps of PyTorch, or writes what they start from.
fn compare(name: &str, model: &dyn ZooModel, case: Option<&Case>) {
    let batch = if name == MAGNIFYING { SMALL_BATCH } else { BATCH };
    let graph = training_graph(name, model, batch).unwrap();
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-5, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(0.1).keep_gradients(true);
    let settings = Settings::new(Goal::Train(optimizer)).seed(SEED).cores(1);
    let mut trainer = Trainer::with_settings(&graph, &settings).unwrap();
    if let Some(dir) = std::env::var_os("PHALANX_WRITE_ZOO") {
        return write(Path::new(&dir), (name, batch), model, trainer.session());
    }
    let Some(case) = case else { panic!("no golden case {name}") };
    for (step, &wanted) in case.loss.iter().enumerate() {
        let samples: Vec<(String, OwnedFeed)> = model
            .samples(SEED, step as u64, batch)
            .into_iter()
            .map(|(name, data)| (name, OwnedFeed::from(data)))
            .collect();
        let feeds: Vec<_> = samples.iter().map(|(name, data)| (name.as_str(), data.as_feed())).collect();
        let loss = f64::from(trainer.step(&feeds, LR).unwrap().loss);
        let tolerance = if step == 0 { LOSS_TOLERANCE } else { STEP_TOLERANCE };
        println!("{name} step {step}: loss {loss} differs by {:e}", (loss - wanted).abs());
        assert!(
            (loss - wanted).abs() <= tolerance * wanted.abs(),
            "{name} step {step}: {loss}, PyTorch {wanted}"
        );
        if step == 0 {
            let norm = case.gradient.values().map(|numbers| numbers[0].powi(2)).sum::<f64>().sqrt();
            let tolerance = GRADIENT_TOLERANCE.max(2.0 * case.single) * norm;
            near(name, &summaries(trainer.session(), ".grad"), &case.gradient, |_| tolerance);
        }
    }
    let elements = |name: &str| trainer.session().read(name).unwrap().len() as f64;
    let mut found = summaries(trainer.session(), "");
    if name == MAGNIFYING {
        found.retain(|name, _| name.contains("running"));
    }
    near(name, &found, &case.weights, |name| WEIGHT_TOLERANCE * elements(name).sqrt());
}

fn write(dir: &Path, (name, batch): (&str, usize), model: &dyn ZooModel, session: &Session) {
    let data = |data: SampleData| match data {
        SampleData::F32(values) => json!(values),
        SampleData::I64(values) => json!(values),
    };
    let samples = |step: u64| -> BTreeMap<String, Value> {
        model.samples(SEED, step, batch).into_iter().map(|(name, values)| (name, data(values))).collect()
    };
    let samples: Vec<_> = (0..STEPS).map(samples).collect();
    let shapes = session.program().ports().iter().filter(|port| port.kind == PortKind::Param);
    let shapes: BTreeMap<&str, &[usize]> = shapes.map(|port| (&*port.name, port.ty.shape.dims())).collect();
    let weights = session.weights().unwrap();
    let all = json!({ "sizes": model.sizes(), "samples": samples, "weights": weights, "shapes": shapes });
    std::fs::write(dir.join(format!("{name}.json")), all.to_string()).unwrap();
}

#[test]
fn five_steps_are_those_of_pytorch() {
    let golden: BTreeMap<String, Case> = serde_json::from_reader(GzDecoder::new(GOLDEN)).unwrap();
    for ZooEntry { name, .. } in ZOO {
        let model = ZooEntry::find(name).unwrap().preset("nano").unwrap();
        compare(name, &*model, golden.get(*name));
    }
}
