//! What our executor makes of graphs: whole costs in both modes, and single points beside other systems.

use std::time::Duration;

use serde::Serialize;

use super::ours::{LaunchMode, Ours, TasksError};
use super::timing::Spread;
use super::{Cost, PatternShape, TaskWork, cost};
use crate::median;

/// How graphs are measured.
#[derive(Clone, Copy, Debug)]
pub struct TasksBench {
    /// Processors, at least 1.
    pub processors: u32,
    /// How often a graph is timed, at most; long runs less often.
    pub repeat: usize,
}

/// What a graph costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GraphResult {
    /// In the replay mode.
    pub replay: ModeCost,
    /// In the immediate mode.
    pub immediate: ModeCost,
}

/// What a graph costs in one mode.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ModeCost {
    /// Nanoseconds of a run with empty bodies, divided by its tasks.
    pub empty_ns: Spread,
    /// METG(50 %) in microseconds, by medians; none where half is out of reach.
    pub metg50_us: Option<f64>,
    /// METG(75 %).
    pub metg75_us: Option<f64>,
}

/// A point's answer, as every program that is compared with ours gives it.
#[derive(Clone, Debug, Serialize)]
pub struct PointResult {
    /// The system that was measured.
    pub system: &'static str,
    /// The median time of one replay.
    pub seconds: f64,
    /// The digest of the graph.
    pub graph: String,
}

impl TasksBench {
    /// What `shape` costs where an iteration of a body takes `iteration_seconds`; see [`super::calibrate`].
    pub fn graph(&self, shape: PatternShape, iteration_seconds: f64) -> Result<GraphResult, TasksError> {
        let ours = Ours::new(shape, self.processors)?;
        let work = TaskWork { tasks: shape.tasks(), workers: self.processors as usize, iteration_seconds };
        let mode = |mode| self.mode(&ours, work, mode);
        Ok(GraphResult { replay: mode(LaunchMode::Replay)?, immediate: mode(LaunchMode::Immediate)? })
    }

    fn mode(&self, ours: &Ours, work: TaskWork, mode: LaunchMode) -> Result<ModeCost, TasksError> {
        ours.check(mode)?;
        let empty = ours.seconds(mode, 0, self.repeat)?;
        let run = |grain, repeat| match grain {
            0 => Ok(Duration::from_secs_f64(median(&empty))),
            _ => ours.seconds(mode, grain, repeat).map(|times| Duration::from_secs_f64(median(&times))),
        };
        let Cost { metg_us: [metg50_us, metg75_us], .. } = cost(work, self.repeat, run)?;
        Ok(ModeCost { empty_ns: Spread::of(&empty, 1e9 / work.tasks as f64), metg50_us, metg75_us })
    }

    /// The time of one replay of `shape` with bodies of `grain` iterations.
    pub fn point(&self, shape: PatternShape, grain: u64) -> Result<PointResult, TasksError> {
        let ours = Ours::new(shape, self.processors)?;
        ours.check(LaunchMode::Replay)?;
        let seconds = median(&ours.seconds(LaunchMode::Replay, grain, self.repeat)?);
        Ok(PointResult { system: "phalanx", seconds, graph: format!("{:016x}", shape.digest()) })
    }
}
