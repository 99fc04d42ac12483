//! What a run reports: each step, and the whole in the end.

use serde::Serialize;

use super::Run;
use super::checkpoints::Checkpointer;
use crate::overlap::Overview;
use crate::{Error, timeline};

/// One finished step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Which step, from 1.
    pub step: u64,
    /// The loss before the update.
    pub loss: f32,
    /// Tokens per second of this step.
    pub tokens_per_s: f64,
    /// The learning rate.
    pub lr: f32,
    /// The gradient norm before clipping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f32>,
    /// The loss on held-back data after the update, if it was evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f32>,
    /// e to the power of that loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_perplexity: Option<f64>,
    /// The hash of weights and optimizer state after the update, if they were hashed; [`Run::hashes`] returns those of
    /// single tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// Mean loss of the last tenth of the steps.
    pub loss: f32,
    /// The least loss any model can reach on this data, where it is known.
    pub entropy: Option<f64>,
    /// Trained numbers.
    pub parameters: u64,
    /// Tokens per second over all steps.
    pub tokens_per_s: f64,
    /// Seconds spent in steps.
    pub seconds: f64,
    /// Peak bytes of a step: the arena, and the snapshot for checkpoints.
    pub peak_bytes: usize,
    /// Bytes of the snapshot alone; 0 if nothing is saved.
    pub snapshot_bytes: usize,
    /// Share of the time spent in matrix products.
    pub matmul_share: f64,
    /// Fingerprint of all weights.
    pub weights_hash: String,
    /// The last loss on held-back data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f32>,
    /// e to the power of that loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_perplexity: Option<f64>,
    /// The lowest loss on held-back data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_eval_loss: Option<f32>,
    /// The step after which it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_eval_step: Option<u64>,
    /// Peak bytes of an evaluation: its arena, beside that of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_peak_bytes: Option<usize>,
    /// The loss at which the run was to stop, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_loss: Option<f32>,
    /// The evaluations without a lower loss after which the run was to stop, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by_patience: Option<u64>,
}

impl Run {
    /// What the scheduler predicts of a step.
    pub fn overview(&self) -> Result<Overview, Error> {
        let context = self.config.context_of(&self.model);
        let graph = self.model.training_graph(self.config.batch, context)?;
        Ok(Overview::new(&graph, &self.settings)?)
    }

    /// The last step as it was measured, beside what the scheduler predicts; in a job only the prediction.
    pub fn report(&self) -> Result<timeline::TimelineReport, Error> {
        let overview = self.overview()?;
        Ok(match self.ranks {
            None => overview.report("A step, predicted and measured", Some(&self.profile.last_run())),
            Some(_) => overview.report("A step, predicted", None),
        })
    }

    /// The results of the run so far.
    pub fn summary(&self) -> Result<Summary, Error> {
        let (session, seconds) = (self.trainer.session(), self.progress.seconds);
        let snapshot_bytes = self.checkpointer.as_ref().map_or(0, Checkpointer::snapshot_bytes);
        let by_kernel = self.profile.by_kernel(session.part());
        let all: f64 = by_kernel.iter().map(|(_, seconds)| seconds).sum();
        let matmul: f64 =
            by_kernel.iter().filter(|(name, _)| name == "matmul").map(|(_, seconds)| seconds).sum();
        let losses = self.eval_losses();
        Ok(Summary {
            steps: self.progress.done(),
            loss: self.progress.recent_loss(),
            entropy: self.data.entropy(),
            parameters: self.model.parameters(),
            tokens_per_s: (self.losses().len() * self.tokens.len()) as f64 / seconds.max(f64::MIN_POSITIVE),
            seconds,
            peak_bytes: session.arena_bytes() + snapshot_bytes,
            snapshot_bytes,
            matmul_share: matmul / all.max(f64::MIN_POSITIVE),
            weights_hash: format!("{:032x}", session.weights_hash()?),
            eval_loss: losses.map(|losses| losses.loss),
            eval_perplexity: losses.map(|losses| losses.perplexity()),
            best_eval_loss: losses.map(|losses| losses.best),
            best_eval_step: losses.map(|losses| losses.best_step),
            eval_peak_bytes: self.eval_bytes(),
            stopped_at_loss: self.progress.stopped_at_loss,
            stopped_by_patience: self.progress.stopped_by_patience,
        })
    }
}
