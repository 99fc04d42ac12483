//! No more is computed again than it takes to fit.

use phalanx_ir::bytes_text;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{TaskGraph, TaskId};

use super::gain::Gains;
use super::uses::Uses;
use super::{RecomputeCandidate, RecomputeChoice, apply, candidates, full};

/// What a device needs and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The device.
    pub device: DeviceId,
    /// Bytes it needs.
    pub bytes: u64,
    /// Bytes it has.
    pub budget: u64,
}

impl Peak {
    fn fits(&self) -> bool {
        self.bytes <= self.budget
    }
}

/// A graph whose devices have memory enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The tasks, those that run again among them.
    pub graph: TaskGraph,
    /// What they compute again.
    pub choice: RecomputeChoice,
    /// What every device then needs.
    pub peaks: Vec<Peak>,
}

/// Some device has too little memory, whatever is computed again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", worst(peaks))]
pub struct StepDoesNotFit {
    /// What every device needs at best.
    pub peaks: Vec<Peak>,
}

fn worst(peaks: &[Peak]) -> String {
    let lacking = |peak: &&Peak| peak.bytes.saturating_sub(peak.budget);
    let Some(Peak { device, bytes, budget }) = peaks.iter().max_by_key(lacking) else { return String::new() };
    format!(
        "{device} has {}, but a step needs {} there even if activations are computed again: use more devices, more \
         microbatches or a smaller batch",
        bytes_text(*budget, 2),
        bytes_text(*bytes, 2)
    )
}

/// Computes tensors again, those first that save the most bytes for their time, until `fits` finds that every device
/// has enough.
///
/// `cost` estimates how long a task takes, in nanoseconds. `fits` schedules a graph; it is asked about as often as the
/// number of candidates has binary digits. The same answers give the same graph.
pub fn auto(
    graph: &TaskGraph,
    cost: &dyn Fn(TaskId) -> u64,
    fits: &mut dyn FnMut(&TaskGraph) -> Vec<Peak>,
) -> Result<Fitted, StepDoesNotFit> {
    let peaks = fits(graph);
    if peaks.iter().all(Peak::fits) {
        return Ok(Fitted { graph: graph.clone(), choice: RecomputeChoice::default(), peaks });
    }
    let lacking: Vec<DeviceId> = peaks.iter().filter(|peak| !peak.fits()).map(|peak| peak.device).collect();
    let Some(uses) = Uses::of(graph) else { return Err(StepDoesNotFit { peaks }) };
    let ranking = Ranking::new(&uses, &lacking, cost);
    let mut attempt = |count: usize| {
        let choice = ranking.first(count);
        let graph = apply(graph, &choice);
        let peaks = fits(&graph);
        Fitted { graph, choice, peaks }
    };
    let (mut too_few, mut enough) = (0, ranking.steps.len());
    let mut best = attempt(enough);
    if !best.peaks.iter().all(Peak::fits) {
        return Err(StepDoesNotFit { peaks: best.peaks });
    }
    while too_few + 1 < enough {
        let count = too_few.midpoint(enough);
        let fitted = attempt(count);
        if fitted.peaks.iter().all(Peak::fits) {
            (enough, best) = (count, fitted);
        } else {
            too_few = count;
        }
    }
    Ok(best)
}

/// What is worth being computed again, the best first.
struct Ranking {
    /// Tensors that the backward pass does not read, but that others may need to be computed again.
    between: RecomputeChoice,
    steps: Vec<RecomputeCandidate>,
}

impl Ranking {
    fn new(uses: &Uses<'_>, lacking: &[DeviceId], cost: &dyn Fn(TaskId) -> u64) -> Self {
        let choice = full(uses.graph);
        let is_lacking = |&task: &TaskId| lacking.contains(&uses.graph.tasks[task].device);
        let is_wanted = |candidate: &RecomputeCandidate| {
            choice.contains(candidate.buffers[0]) && candidate.tasks.iter().any(is_lacking)
        };
        let chosen: Vec<RecomputeCandidate> = candidates::of(uses).into_iter().filter(is_wanted).collect();
        let gains = Gains::new(uses, &chosen);
        let rate = |candidate: &RecomputeCandidate| {
            let gain = gains.of(candidate);
            let time: u64 = gain.tasks.iter().map(|&task| cost(task)).sum();
            gain.saved.max(0) as f64 / time.max(1) as f64
        };
        let (between, steps): (Vec<_>, Vec<_>) =
            chosen.iter().cloned().partition(|candidate| candidate.bytes == 0);
        let mut rated: Vec<(f64, RecomputeCandidate)> =
            steps.into_iter().map(|candidate| (rate(&candidate), candidate)).collect();
        // Stable: of equals the earliest in the model, which would be kept longest.
        rated.sort_by(|a, b| b.0.total_cmp(&a.0));
        Ranking {
            between: between.into_iter().flat_map(|candidate| candidate.buffers).collect(),
            steps: rated.into_iter().map(|(_, candidate)| candidate).collect(),
        }
    }

    /// The best `count` of them.
    fn first(&self, count: usize) -> RecomputeChoice {
        let mut choice = self.between.clone();
        for candidate in &self.steps[..count] {
            choice.extend(candidate.buffers.iter().copied());
        }
        choice
    }
}
