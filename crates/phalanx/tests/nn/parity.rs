//! Models of the zoo give the losses and gradients of PyTorch: `zoo.json`, made by `benches/peers/zoo.py`.
//!
//! Weights and samples follow from a seed, so the file has results alone: the loss and the norm of each gradient. With the
//! variable `PHALANX_WRITE_ZOO` the test writes weights and samples to a directory, from which the script makes the file.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx::models::zoo::{SampleData, ZooEntry, training_graph};
use phalanx::nn::OwnedFeed;
use phalanx::{Goal, PortKind, Session, Settings};
use serde_json::{Value, json};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/zoo.json");
const MODELS: [&str; 5] = ["bert", "dlrm", "lstm", "resnet", "vit"];
const BATCH: usize = 4;
const SEED: u64 = 3;

/// Loss and norms of gradients of one step.
fn results(name: &str) -> (f64, BTreeMap<String, f64>) {
    let model = ZooEntry::find(name).unwrap().preset("nano").unwrap();
    let graph = training_graph(name, &*model, BATCH).unwrap();
    let settings = Settings::new(Goal::Gradients).seed(SEED).cores(1);
    let mut session = Session::new(&graph, &settings).unwrap();
    let samples = model.samples(SEED, 0, BATCH);
    for (name, data) in samples.clone() {
        let owned = OwnedFeed::from(data);
        session.feed(&name, phalanx::nn::AsFeed::as_feed(&owned)).unwrap();
    }
    if let Some(dir) = std::env::var_os("PHALANX_WRITE_ZOO") {
        write(Path::new(&dir), name, &session, &samples);
    }
    session.run().unwrap();
    let loss = &graph.values()[graph.outputs()[0]].name;
    let loss = f64::from(session.read(loss).unwrap()[0]);
    let names: Vec<String> = session.names(PortKind::Param).map(str::to_string).collect();
    // Running statistics have none.
    let norm = |name: &String| {
        let gradient = session.read(&format!("{name}.grad")).ok()?;
        Some((name.clone(), gradient.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()))
    };
    (loss, names.iter().filter_map(norm).collect())
}

fn write(dir: &Path, name: &str, session: &Session, samples: &[(String, SampleData)]) {
    let data = |data: &SampleData| match data {
        SampleData::F32(values) => json!(values),
        SampleData::I64(values) => json!(values),
    };
    let samples: BTreeMap<&str, Value> =
        samples.iter().map(|(name, values)| (&**name, data(values))).collect();
    let shapes = session.program().ports().iter().filter(|port| port.kind == PortKind::Param);
    let shapes: BTreeMap<&str, &[usize]> = shapes.map(|port| (&*port.name, port.ty.shape.dims())).collect();
    let sizes = ZooEntry::find(name).unwrap().preset("nano").unwrap().sizes();
    let weights = session.weights().unwrap();
    let all = json!({ "sizes": sizes, "samples": samples, "weights": weights, "shapes": shapes });
    std::fs::write(dir.join(format!("{name}.json")), all.to_string()).unwrap();
}

#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let golden: BTreeMap<String, (f64, BTreeMap<String, f64>)> = serde_json::from_str(&golden).unwrap();
    for (name, (loss, norms)) in MODELS.map(|name| (name, results(name))) {
        let Some((want, wanted)) = golden.get(name) else { panic!("no golden case {name}") };
        assert!((loss - want).abs() < 1e-5 * want.abs(), "{name}: loss {loss}, PyTorch {want}");
        assert_eq!(norms.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{name}");
        let global = wanted.values().map(|norm| norm * norm).sum::<f64>().sqrt();
        for (param, norm) in norms {
            let want = wanted[&param];
            assert!((norm - want).abs() < 1e-4 * global, "{name} {param}: {norm}, PyTorch {want}");
        }
    }
}
