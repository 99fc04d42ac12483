//! The log of a training: a line of JSON for every step, and on rank 0 its numbers for TensorBoard.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::{StepOutcome, TrainingError};
use crate::train::TrainConfig;
use crate::watch::{EventFile, unix_time};

/// Writes `rank-N.jsonl` and an event file in a directory, or nothing.
#[derive(Default)]
pub(super) struct StepLog {
    lines: Option<(PathBuf, File)>,
    events: Option<EventFile>,
}

/// A step, as lines of `phalanx train` have it.
#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    loss: f32,
    lr: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f32>,
    metrics: BTreeMap<&'a str, f32>,
    /// The last step of the run.
    steps: u64,
    /// When it was done, in seconds since 1970.
    time: f64,
}

impl StepLog {
    /// The log that `--log-dir` asks for. That of a run that is resumed is continued.
    pub(super) fn open(config: &TrainConfig, rank: u32) -> Result<StepLog, TrainingError> {
        let Some(dir) = &config.log_dir else { return Ok(StepLog::default()) };
        let path = dir.join(format!("rank-{rank}.jsonl"));
        if path.exists() && !config.resume && !config.overwrite {
            return Err(TrainingError::OtherLog { path });
        }
        let mut options = File::options();
        options.create(true).append(config.resume).write(true).truncate(!config.resume);
        let file = fs::create_dir_all(dir).and_then(|()| options.open(&path));
        let file = file.map_err(|error| TrainingError::write(&path, &error))?;
        let events = (rank == 0).then(|| EventFile::create(dir)).transpose();
        let events = events.map_err(|error| TrainingError::write(error.path, &error.source))?;
        Ok(StepLog { lines: Some((path, file)), events })
    }

    /// Adds a step.
    pub(super) fn step(&mut self, outcome: &StepOutcome, steps: u64) -> Result<(), TrainingError> {
        let Some((path, file)) = &mut self.lines else { return Ok(()) };
        let metrics = outcome.metrics.iter().filter(|(name, _)| *name != "loss").collect();
        let StepOutcome { number: step, loss, lr, gradient_norm, .. } = *outcome;
        let line = Line { step, loss, lr, gradient_norm, metrics, steps, time: unix_time() };
        let text = serde_json::to_string(&line).unwrap_or_default() + "\n";
        file.write_all(text.as_bytes()).map_err(|error| TrainingError::write(&*path, &error))?;
        let Some(events) = &mut self.events else { return Ok(()) };
        let numbers = outcome.metrics.iter().chain([("lr", lr)]);
        let written = events.scalars(step, numbers.chain(gradient_norm.map(|norm| ("gradient_norm", norm))));
        written.map_err(|error| TrainingError::write(error.path, &error.source))
    }
}
