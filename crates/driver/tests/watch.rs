//! Numbers one can watch: event files, losses on held-back data, and where numbers stop being finite.
#![allow(clippy::unwrap_used)]

#[path = "watch/evaluation.rs"]
mod evaluation;
#[path = "watch/events.rs"]
mod events;
#[path = "watch/nan.rs"]
mod nan;

use phalanx::train::{Run, TrainConfig};

/// A model that trains in milliseconds.
fn small() -> TrainConfig {
    TrainConfig {
        layers: Some(2),
        heads: Some(2),
        width: Some(16),
        context: Some(16),
        batch: 8,
        steps: 6,
        warmup: 2,
        cores: 1,
        costs: Some("modelled".into()),
        ..TrainConfig::default()
    }
}

/// The same on so many devices.
fn on(plan: &str, devices: usize, config: TrainConfig) -> TrainConfig {
    TrainConfig { plan: Some(plan.into()), devices: Some(devices), ..config }
}

/// A run to its end.
fn trained(config: TrainConfig) -> Run {
    let mut run = Run::new(config).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    run
}
