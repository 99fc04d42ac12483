//! How far a run is.

use std::collections::VecDeque;

use crate::Error;

/// Steps launched before the oldest of them is waited for.
pub const AHEAD: usize = 2;

/// What was done of a run before this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EarlierProgress {
    /// Steps.
    pub steps: u64,
    /// Tokens seen in them.
    pub tokens: u64,
    /// The loss of the last one.
    pub loss: Option<f32>,
}

/// Steps to do, under way and done.
#[derive(Default)]
pub struct Progress {
    /// The step after which the run ends.
    pub steps: u64,
    /// What was done by the run that this one resumes.
    pub earlier: EarlierProgress,
    /// Steps that have been launched and not reported, oldest first.
    pub in_flight: VecDeque<u64>,
    /// The loss of every step that this process has done.
    pub losses: Vec<f32>,
    /// Seconds spent in them.
    pub seconds: f64,
    /// The step and loss with which the run has diverged.
    pub diverged: Option<(u64, f32)>,
    /// The loss at which the run has stopped.
    pub stopped_at_loss: Option<f32>,
    /// The evaluations without a lower loss after which the run has stopped.
    pub stopped_by_patience: Option<u64>,
}

impl Progress {
    /// A run of `steps` steps, of which none is done.
    pub fn new(steps: u64) -> Progress {
        let (in_flight, losses) =
            (VecDeque::with_capacity(AHEAD), Vec::with_capacity(steps.min(1 << 20) as usize));
        Progress { steps, in_flight, losses, ..Progress::default() }
    }

    /// Steps done so far, also by the runs that this one resumes.
    pub fn done(&self) -> u64 {
        self.earlier.steps + self.losses.len() as u64
    }

    /// Whether no step is left.
    pub fn is_done(&self) -> bool {
        self.done() >= self.steps
    }

    /// The loss of the last step, also of the run that this one resumes; 0 before the first one.
    pub fn last_loss(&self) -> f32 {
        self.losses.last().copied().or(self.earlier.loss).unwrap_or_default()
    }

    /// The mean loss of the last tenth of the steps.
    pub fn recent_loss(&self) -> f32 {
        match &self.losses[self.losses.len() - self.losses.len().div_ceil(10)..] {
            [] => self.last_loss(),
            last => last.iter().sum::<f32>() / last.len() as f32,
        }
    }

    /// Checks that the run has not diverged.
    pub fn check_sound(&self) -> Result<(), Error> {
        match self.diverged {
            Some((step, loss)) => Err(Error::Diverged { loss, step }),
            None => Ok(()),
        }
    }
}
