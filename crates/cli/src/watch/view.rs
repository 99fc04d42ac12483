//! What is known of a run at a moment: numbers for people, curves, and which ranks are well.

use serde::Serialize;
use serde_json::Value;

use super::follow::{LoggedStep, RankLog, RunLog};

/// A rank that has written nothing for this long is silent, and for so many of its steps.
const SILENT: (f64, f64) = (10.0, 5.0);

/// Steps over which speed is averaged.
const RECENT: usize = 20;

/// How it is with a run or a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No step is logged.
    Waiting,
    /// It goes on.
    Running,
    /// Other ranks are further.
    Behind,
    /// Nothing was logged for long.
    Silent,
    /// It was stopped before its end.
    Stopped,
    /// It has ended.
    Finished,
}

/// A run at a moment.
#[derive(Serialize)]
pub struct RunView {
    pub dir: String,
    pub health: Health,
    pub step: u64,
    /// The last step of the run.
    pub steps: Option<u64>,
    pub seconds_left: Option<f64>,
    pub loss: Option<f64>,
    pub eval_loss: Option<f64>,
    pub eval_perplexity: Option<f64>,
    pub best_eval_loss: Option<f64>,
    pub lr: Option<f64>,
    pub gradient_norm: Option<f64>,
    /// Mean of the last steps.
    pub tokens_per_s: Option<f64>,
    /// Of the arenas of all ranks.
    pub arena_bytes: Option<u64>,
    /// Of all processes.
    pub resident_bytes: Option<u64>,
    /// Busy shares of the lanes of all ranks.
    pub lanes: Vec<(String, f64)>,
    pub ranks: Vec<RankView>,
    /// Losses by step.
    #[serde(skip)]
    pub losses: Vec<(f64, f64)>,
    #[serde(skip)]
    pub eval_losses: Vec<(f64, f64)>,
    /// Tokens per second of each step.
    #[serde(skip)]
    pub speeds: Vec<f64>,
}

/// One rank at a moment.
#[derive(Serialize)]
pub struct RankView {
    pub rank: u32,
    pub health: Health,
    pub step: u64,
    /// Seconds since it logged its last step.
    pub age_seconds: Option<f64>,
}

impl RunView {
    /// What the logs say at the time `now`, in seconds since 1970.
    pub fn new(log: &RunLog, now: f64) -> RunView {
        let most = log.ranks.values().filter_map(RankLog::last).map(|last| last.step).max().unwrap_or(0);
        let ranks: Vec<RankView> = log.ranks.iter().map(|(&rank, log)| log.view(rank, most, now)).collect();
        // The first rank speaks for the run.
        let none = RankLog::default();
        let first = log.ranks.values().next().unwrap_or(&none);
        let health = ranks.first().map_or(Health::Waiting, |rank| rank.health);
        let (last, step) = (first.last(), first.last().map_or(0, |last| last.step));
        let steps = last.and_then(|last| last.steps);
        let evaluated = || first.steps.iter().filter(|step| step.eval_loss.is_some());
        let left = steps.map(|steps| steps.saturating_sub(step) as f64);
        let loads = || log.ranks.values().filter_map(|rank| rank.load.as_ref());
        let curve = |number: fn(&LoggedStep) -> Option<f64>| {
            first.steps.iter().filter_map(|step| Some((step.step as f64, number(step)?))).collect::<Vec<_>>()
        };
        let eval_losses = curve(|step| step.eval_loss);
        RunView {
            dir: log.dir.display().to_string(),
            health,
            step,
            steps,
            seconds_left: left
                .zip(first.step_seconds())
                .map(|(left, each)| left * each)
                .filter(|_| health.goes_on()),
            loss: last.and_then(|last| last.loss),
            eval_loss: evaluated().next_back().and_then(|step| step.eval_loss),
            eval_perplexity: evaluated().next_back().and_then(|step| step.eval_perplexity),
            best_eval_loss: eval_losses.iter().map(|&(_, loss)| loss).min_by(f64::total_cmp),
            lr: last.and_then(|last| last.lr),
            gradient_norm: last.and_then(|last| last.gradient_norm),
            tokens_per_s: mean(first.recent().iter().filter_map(|step| step.tokens_per_s)),
            arena_bytes: loads().map(|load| load.arena_bytes).reduce(|a, b| a + b),
            resident_bytes: loads().filter_map(|load| load.resident_bytes).reduce(|a, b| a + b),
            lanes: loads().flat_map(|load| load.lanes.clone()).collect(),
            ranks,
            losses: curve(|step| step.loss),
            eval_losses,
            speeds: first.steps.iter().filter_map(|step| step.tokens_per_s).collect(),
        }
    }
}

impl Health {
    /// Whether more steps are to come.
    pub fn goes_on(self) -> bool {
        matches!(self, Health::Waiting | Health::Running | Health::Behind)
    }

    pub fn word(self) -> &'static str {
        match self {
            Health::Waiting => "no step yet",
            Health::Running => "running",
            Health::Behind => "behind",
            Health::Silent => "silent",
            Health::Stopped => "stopped",
            Health::Finished => "finished",
        }
    }
}

impl RankLog {
    fn last(&self) -> Option<&LoggedStep> {
        self.steps.last()
    }

    fn recent(&self) -> &[LoggedStep] {
        &self.steps[self.steps.len().saturating_sub(RECENT)..]
    }

    /// Seconds of a step, as far as its log tells.
    fn step_seconds(&self) -> Option<f64> {
        let (first, last) = (self.recent().first()?, self.recent().last()?);
        let steps = (last.step - first.step) as f64;
        Some((last.time? - first.time?) / steps).filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }

    fn view(&self, rank: u32, most: u64, now: f64) -> RankView {
        let step = self.last().map_or(0, |last| last.step);
        let age_seconds = self.last().and_then(|last| last.time).map(|time| (now - time).max(0.0));
        let patience = SILENT.0.max(SILENT.1 * self.step_seconds().unwrap_or(0.0));
        let health = match &self.summary {
            Some(summary) if summary.get("interrupted") == Some(&Value::Bool(true)) => Health::Stopped,
            Some(_) => Health::Finished,
            None if self.steps.is_empty() => Health::Waiting,
            None if age_seconds.is_some_and(|age| age > patience) => Health::Silent,
            // Ranks log a step one after the other.
            None if step + 1 < most => Health::Behind,
            None => Health::Running,
        };
        RankView { rank, health, step, age_seconds }
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = numbers.fold((0, 0.0), |(count, sum), number| (count + 1, sum + number));
    (count > 0).then(|| sum / f64::from(count))
}
