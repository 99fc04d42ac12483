//! What a run will take before it begins: time, memory, tokens, checkpoints. Nothing is written and no step runs.
//!
//! The time of a step is simulated from times of kernels: those of the file `costs`, and what it lacks is measured and
//! forgotten. Memory is exact: the arenas of a run have these sizes.

use std::path::{Path, PathBuf};

use phalanx_plan::{LeftWhole, left_whole};
use phalanx_program::Placement;
use serde::Serialize;

use super::resume::ResumePoint;
use super::{Run, TrainConfig, prepare};
use crate::data::cache_dir;
use crate::job::deal_devices;
use crate::layout::Layout;
use crate::memory::Snapshots;
use crate::overlap::predicted_step;
use crate::pipeline::{CompileError, Settings, lay_out};
use crate::{Error, Goal, memory};

/// What a run will take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Steps in all.
    pub steps: u64,
    /// Those of them that a checkpoint has done already.
    pub steps_before: u64,
    /// Tokens of all steps.
    pub tokens: u64,
    /// How often all of the data is seen.
    pub epochs: f64,
    /// Trained numbers.
    pub parameters: u64,
    /// Processes.
    pub ranks: u32,
    /// Seconds of a step, predicted.
    pub step_seconds: f64,
    /// Seconds of the steps that are left.
    pub seconds: f64,
    /// Bytes of each device's arena.
    pub device_bytes: Vec<u64>,
    /// Bytes of each device's arena for evaluations, beside it; empty without evaluations.
    pub eval_device_bytes: Vec<u64>,
    /// Parameters that the plan leaves whole, because they do not divide.
    pub left_whole: Vec<LeftWhole>,
    /// What is saved, if anything is.
    pub checkpoints: Option<CheckpointForecast>,
    /// What is written where.
    pub writes: Vec<PlannedWrite>,
}

/// Checkpoints that a run will write.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointForecast {
    /// How many are written; of those by time, as many as the predicted seconds allow.
    pub count: u64,
    /// How many of them are there in the end.
    pub kept: u64,
    /// Bytes of each; while a run saves, a copy of as many bytes is in memory.
    pub bytes: u64,
}

/// Something that a run writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedWrite {
    /// What it is.
    pub what: &'static str,
    /// A file or a directory.
    pub path: PathBuf,
}

impl Run {
    /// What a run of `config` on so many ranks will take. `progress` is called with kernels that are measured, as for
    /// [`Run::with_progress`].
    pub fn forecast(
        config: TrainConfig,
        ranks: u32,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Forecast, Error> {
        let config = config.for_ranks(ranks).with_pretrained()?;
        let (data, model, graph) = prepare(&config.clone().no_cache(true), &mut |_, _| ())?;
        let steps_before = ResumePoint::new(&config, None)?.steps().min(config.steps);
        let plan = config.resolve_plan(&graph)?;
        let of_device = deal_devices(plan.mesh.devices(), ranks as usize, config.devices_per_rank)?;
        let mut settings =
            Settings { placement: Placement { ranks, of_device }, ..config.settings_for(plan)? };
        settings.cost_table = Some(settings.measured(&graph, config.costs_file(), progress)?.into());
        let layout = lay_out(&graph, &settings, |_, _| ())?;
        let eval_device_bytes = match config.eval_every {
            None => Vec::new(),
            Some(_) => peaks(&lay_out(&graph, &settings.clone().goal(Goal::Infer), |_, _| ())?),
        };
        let device_bytes = peaks(&layout);
        memory::check(device_bytes.iter().chain(&eval_device_bytes).sum())?;
        let context = config.context_of(&model);
        let step_seconds = predicted_step(&layout, &settings)? as f64 / 1e9;
        let seconds = step_seconds * (config.steps - steps_before) as f64;
        let bytes = Snapshots::new(&layout.tasks, true).total();
        Ok(Forecast {
            steps: config.steps,
            steps_before,
            tokens: config.steps * (config.batch * context) as u64,
            epochs: config.steps as f64 * config.batch as f64 / data.windows(context) as f64,
            parameters: model.parameters(),
            ranks,
            step_seconds,
            seconds,
            device_bytes,
            eval_device_bytes,
            left_whole: left_whole(&graph, &settings.plan).map_err(CompileError::from)?,
            checkpoints: CheckpointForecast::new(&config, steps_before, seconds, bytes),
            writes: writes(&config, &settings),
        })
    }
}

fn peaks(layout: &Layout) -> Vec<u64> {
    layout.devices().iter().map(|device| device.peak_bytes).collect()
}

impl CheckpointForecast {
    fn new(config: &TrainConfig, done: u64, seconds: f64, bytes: u64) -> Option<CheckpointForecast> {
        config.checkpoint.as_ref()?;
        let left = config.steps - done;
        let regular = match (config.every, config.every_minutes) {
            (Some(every), _) => (config.steps.saturating_sub(1) / every).saturating_sub(done / every),
            (None, minutes) => (seconds / 60.0 / minutes.unwrap_or(10.0).max(1e-3)) as u64,
        };
        // The last step is saved, too.
        let count = if left == 0 { 0 } else { regular.min(left - 1) + 1 };
        Some(CheckpointForecast { count, kept: count.min(config.keep as u64), bytes })
    }
}

/// What a run writes, in the order in which it begins to.
fn writes(config: &TrainConfig, settings: &Settings) -> Vec<PlannedWrite> {
    let costs = config.costs_file().filter(|_| settings.needs_costs());
    let tokens = cache_dir().filter(|_| config.tokenizer.is_some());
    let all: [(&'static str, Option<&Path>); 5] = [
        ("tokens of the data, unless they are there,", tokens.as_deref()),
        ("times of kernels", costs),
        ("logs", config.log_dir.as_deref()),
        ("checkpoints", config.checkpoint.as_deref()),
        ("model", config.save.as_deref()),
    ];
    all.into_iter().filter_map(|(what, path)| Some(PlannedWrite { what, path: path?.into() })).collect()
}
