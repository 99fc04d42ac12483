//! How fast models of the zoo train.

use std::time::Instant;

use phalanx::nn::{AsFeed, OwnedFeed};
use phalanx::pipeline::Settings;
use phalanx::{Decays, Error, Goal, Optimizer, Trainer, UpdateRule};
use phalanx_models::zoo::{SampleData, ZooEntry, ZooModel, training_graph};
use serde::Serialize;
use serde_json::{Value, json};

use super::median;
use super::train::{KernelTime, kernel_times};

/// A model that is measured beside `benches/peers/torch_models.py`, which has the same sizes.
pub struct MeasuredModel {
    /// What it is called here and there.
    pub name: &'static str,
    /// Samples of a step, if nothing else is said.
    pub batch: usize,
    entry: &'static str,
    preset: &'static str,
    /// Sizes other than those of the preset.
    sizes: fn() -> Value,
}

/// All of them.
pub const MEASURED_MODELS: &[MeasuredModel] = &[
    MeasuredModel {
        name: "resnet18",
        batch: 16,
        entry: "resnet",
        preset: "small",
        sizes: || json!({ "image": 64 }),
    },
    MeasuredModel {
        name: "resnet50",
        batch: 16,
        entry: "resnet",
        preset: "medium",
        sizes: || json!({ "image": 64 }),
    },
    MeasuredModel { name: "bert", batch: 8, entry: "bert", preset: "small", sizes: || json!({}) },
    MeasuredModel {
        name: "vit",
        batch: 8,
        entry: "vit",
        preset: "small",
        sizes: || json!({ "image": 96, "patch": 12 }),
    },
    MeasuredModel {
        name: "dlrm",
        batch: 512,
        entry: "dlrm",
        preset: "small",
        sizes: || json!({ "entries": 10_000 }),
    },
];

impl MeasuredModel {
    fn model(&self) -> Box<dyn ZooModel> {
        let entry = ZooEntry::find(self.entry).expect("a measured model is in the zoo");
        let mut sizes = entry.preset(self.preset).expect("it has that size").sizes();
        for (key, value) in (self.sizes)().as_object().into_iter().flatten() {
            sizes[key] = value.clone();
        }
        entry.read(sizes).expect("its sizes are known")
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelBench {
    /// Samples of a step.
    pub batch: usize,
    /// Cores to use.
    pub cores: usize,
    /// Steps to time.
    pub steps: usize,
    /// Steps before those.
    pub warmup_steps: usize,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelResult {
    /// The model.
    pub model: &'static str,
    /// What was asked for.
    #[serde(flatten)]
    pub bench: ModelBench,
    /// Samples per second of the median step.
    pub samples_per_s: f64,
    /// Milliseconds of the median step.
    pub ms_per_step: f64,
    /// Milliseconds of the fastest step.
    pub best_ms_per_step: f64,
    /// Bytes of the arena.
    pub peak_bytes: usize,
    /// The loss of the last step.
    pub loss: f32,
    /// Where the time went, longest first.
    pub kernels: Vec<KernelTime>,
}

/// Trains a model on its own data, AdamW, and measures the steps.
pub fn model(measured: &MeasuredModel, bench: &ModelBench) -> Result<ModelResult, Error> {
    let model = measured.model();
    let graph = training_graph(measured.name, &*model, bench.batch)?;
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(0.1).decays(Decays::Matrices);
    let settings = Settings::new(Goal::Train(optimizer)).cores(bench.cores);
    let mut trainer = Trainer::with_settings(&graph, &settings)?;
    let samples = model.samples(1, 0, bench.batch);
    for _ in 0..bench.warmup_steps {
        timed_step(&mut trainer, &samples)?;
    }
    let profile = trainer.session_mut().profile();
    let (mut seconds, mut loss) = (Vec::new(), f32::NAN);
    for _ in 0..bench.steps.max(1) {
        let taken;
        (taken, loss) = timed_step(&mut trainer, &samples)?;
        seconds.push(taken);
    }
    let (middle, best) = (median(&seconds), seconds.iter().copied().fold(f64::INFINITY, f64::min));
    Ok(ModelResult {
        model: measured.name,
        bench: *bench,
        samples_per_s: bench.batch as f64 / middle,
        ms_per_step: 1e3 * middle,
        best_ms_per_step: 1e3 * best,
        peak_bytes: trainer.session().arena_bytes(),
        loss,
        kernels: kernel_times(&profile, &trainer),
    })
}

/// One step on these samples: its seconds and its loss.
fn timed_step(trainer: &mut Trainer, samples: &[(String, SampleData)]) -> Result<(f64, f32), Error> {
    let start = Instant::now();
    for (name, data) in samples {
        trainer.session_mut().feed(name, OwnedFeed::from(data.clone()).as_feed())?;
    }
    let loss = trainer.run(1e-3)?.loss;
    Ok((start.elapsed().as_secs_f64(), loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_models_are_in_the_zoo() {
        for measured in MEASURED_MODELS {
            measured.model().check().expect("its sizes are legal");
        }
    }
}
