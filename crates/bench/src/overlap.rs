//! Steps with transfers beside computing and without, as predicted and as measured.

use phalanx::Error;
use phalanx::pipeline::Overlap;
use phalanx::train::{Preparation, Run, TrainConfig};
use serde::Serialize;

use super::median;

/// Steps of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverlapResult {
    /// Whether transfers ran beside computing.
    pub overlap: bool,
    /// Milliseconds of a step that the simulation predicts.
    pub predicted_ms: f64,
    /// Milliseconds of a step, the median over rounds.
    pub measured_ms: f64,
    /// Milliseconds of a step, of each round.
    pub rounds_ms: Vec<f64>,
    /// Milliseconds of communication that the simulation leaves exposed.
    pub exposed_ms: f64,
    /// Bytes of the largest arena.
    pub peak_bytes: u64,
    /// The weights after the last step.
    pub weights_hash: String,
}

/// Trains with and without overlap in turns, `rounds` times as many steps as `config` says; `progress` as for [`Run`].
pub fn overlap(
    config: &TrainConfig,
    rounds: usize,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<[OverlapResult; 2], Error> {
    let mut results = [Overlap::Off, Overlap::On].map(|mode| (mode, Vec::new(), None));
    for _ in 0..rounds.max(1) {
        for (mode, seconds, last) in &mut results {
            let run = train(&config.clone().overlap(*mode), progress)?;
            let summary = run.summary()?;
            seconds.push(1e3 * summary.seconds / summary.steps as f64);
            *last = Some((run.overview()?, summary.weights_hash));
        }
    }
    Ok(results.map(|(mode, rounds_ms, last)| {
        let (overview, weights_hash) = last.expect("there is a round");
        let totals = overview.totals().1;
        OverlapResult {
            overlap: mode == Overlap::On,
            predicted_ms: milliseconds(overview.steps().1),
            measured_ms: median(&rounds_ms),
            rounds_ms,
            exposed_ms: milliseconds(totals.exposed),
            peak_bytes: totals.peak,
            weights_hash,
        }
    }))
}

fn train(config: &TrainConfig, progress: &mut dyn FnMut(usize, usize, &str)) -> Result<Run, Error> {
    let mut run = Run::with_progress(config.clone(), &mut |preparation| {
        if let Preparation::Measuring { done, total, kernel } = preparation {
            progress(done, total, kernel);
        }
    })?;
    while !run.is_done() {
        run.step()?;
    }
    Ok(run)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
