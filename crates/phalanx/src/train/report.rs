//! What a run reports: each step, and the whole in the end.

use phalanx_ir::Precision;
use serde::Serialize;

use super::Run;
use super::checkpoints::Checkpointer;
use crate::job::{RankSpans, shared};
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
    /// What matrix products are computed in, if that is not f32: hashes are compared within one precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// The checkpoints that were committed since the last report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<CommittedCheckpoint>,
}

/// A checkpoint that is complete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommittedCheckpoint {
    /// The steps it was taken after.
    pub step: u64,
    /// Bytes of its files, of all ranks.
    pub bytes: u64,
    /// Seconds from the copy of the state to the commit; steps went on meanwhile, unless the run waits for checkpoints.
    pub seconds: f64,
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
    /// Numbers of the model.
    pub parameters: u64,
    /// How many numbers are trained, of the model and its adapters, if some are frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_parameters: Option<u64>,
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
    /// What matrix products were computed in: the fingerprint is that of runs in the same precision.
    pub precision: Precision,
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
    /// The steps of the last checkpoint that was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// Why the checkpoint that was begun after it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_problem: Option<String>,
    /// The evaluations without a lower loss after which the run was to stop, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by_patience: Option<u64>,
}

impl Run {
    /// What the scheduler predicts of a step.
    pub fn overview(&self) -> Result<Overview, Error> {
        let graph = self.config.training_graph(&self.model)?;
        Ok(Overview::new(&graph, &self.settings)?)
    }

    /// The last step as it was measured, beside what the scheduler predicts, if it is wanted. In a job all ranks call it;
    /// rank 0 decides whether it is wanted, and gets it.
    pub fn report(&self, is_wanted: bool) -> Result<Option<timeline::TimelineReport>, Error> {
        let Some(ranks) = &self.ranks else {
            let report = || Ok(self.overview()?.report_beside(&self.profile.last_run()));
            return is_wanted.then(report).transpose();
        };
        let network = &*ranks.network;
        let wanted = shared::of_first(network, "wish for a report", || Ok(is_wanted.to_string()))?;
        if wanted != true.to_string() {
            return Ok(None);
        }
        let run = ranks.between_steps(|| RankSpans::gather(network, &self.profile))?;
        if network.rank() > 0 {
            return Ok(None);
        }
        let (whole, placement) = (self.trainer.session().program(), &ranks.topology.placement);
        Ok(Some(self.overview()?.report_beside_ranks(whole, placement, &run)?))
    }

    /// The results of the run so far.
    pub fn summary(&self) -> Result<Summary, Error> {
        let (session, seconds) = (self.trainer.session(), self.progress.seconds);
        let snapshot_bytes = self.checkpointer.as_ref().map_or(0, Checkpointer::snapshot_bytes);
        let (checkpoint, checkpoint_problem) =
            self.checkpointer.as_ref().map_or((None, None), Checkpointer::outcome);
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
            trained_parameters: self.config.count_trained(&self.model)?.map(|[trained, _]| trained),
            tokens_per_s: (self.losses().len() * self.tokens.len()) as f64 / seconds.max(f64::MIN_POSITIVE),
            seconds,
            peak_bytes: session.arena_bytes() + snapshot_bytes,
            snapshot_bytes,
            matmul_share: matmul / all.max(f64::MIN_POSITIVE),
            weights_hash: format!("{:032x}", session.weights_hash()?),
            precision: self.config.precision,
            eval_loss: losses.map(|losses| losses.loss),
            eval_perplexity: losses.map(|losses| losses.perplexity()),
            best_eval_loss: losses.map(|losses| losses.best),
            best_eval_step: losses.map(|losses| losses.best_step),
            eval_peak_bytes: self.eval_bytes(),
            stopped_at_loss: self.progress.stopped_at_loss,
            checkpoint,
            checkpoint_problem: checkpoint_problem.map(Into::into),
            stopped_by_patience: self.progress.stopped_by_patience,
        })
    }
}
