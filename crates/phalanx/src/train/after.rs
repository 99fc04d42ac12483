//! What follows a step: whether it was sound, an evaluation, hashes, the end of the run.
//!
//! All of it depends on losses alone, which all ranks of a job know, so their results agree without communication.

use super::Run;
use super::checkpoints::Checkpointer;
use super::progress::AHEAD;
use crate::Error;

impl Run {
    /// How many steps may be under way. Only one if what comes after a step depends on it: whether to stop, or what to
    /// keep a copy of.
    pub(super) fn ahead(&self) -> usize {
        let stops = self.config.stop_at_loss.is_some() && self.evaluation.is_none();
        if self.guard.is_some() || stops { 1 } else { AHEAD }
    }

    /// Steps that may have been launched when `done` are done: none beyond the next evaluation, hash or checkpoint, which
    /// need the weights as they are then.
    pub(super) fn launchable(&self, done: u64) -> u64 {
        let evaluation = self.evaluation.as_ref().map_or(u64::MAX, |evaluation| evaluation.next(done));
        let checkpoint = self.checkpointer.as_ref().map_or(u64::MAX, Checkpointer::due);
        let hash = self.config.hash_every.and_then(|every| (done + 1).checked_next_multiple_of(every));
        self.progress.steps.min(evaluation).min(hash.unwrap_or(u64::MAX)).min(checkpoint)
    }

    /// Looks at a step that has ended: whether it is sound, what an evaluation says, whether that is enough.
    pub(super) fn examine(&mut self, step: u64, loss: f32) -> Result<Option<f32>, Error> {
        self.check_finite(step, loss)?;
        self.progress.losses.push(loss);
        let eval_loss = self.evaluate(step)?;
        self.stop_at(if self.evaluation.is_some() { eval_loss } else { Some(loss) });
        self.stop_if_no_better();
        Ok(eval_loss)
    }

    /// Evaluates, if it is due after `steps` steps.
    fn evaluate(&mut self, steps: u64) -> Result<Option<f32>, Error> {
        let Some(evaluation) = self.evaluation.as_mut().filter(|evaluation| evaluation.is_due(steps)) else {
            return Ok(None);
        };
        let mut work = || evaluation.run(self.trainer.session_mut(), &self.data, steps);
        let loss = match &self.ranks {
            None => work()?,
            Some(ranks) => ranks.between_steps(work)?,
        };
        if !loss.is_finite() {
            self.progress.diverged = Some((steps, loss));
        }
        self.progress.check_sound()?;
        Ok(Some(loss))
    }

    /// Hashes the state, if it is due after `steps` steps.
    pub(super) fn hash(&mut self, steps: u64) -> Result<(), Error> {
        self.hashes = None;
        if self.config.hash_every.is_none_or(|every| !steps.is_multiple_of(every)) {
            return Ok(());
        }
        let session = self.trainer.session_mut();
        self.hashes = Some(match &self.ranks {
            None => session.state_hashes()?,
            Some(ranks) => ranks.between_steps(|| session.state_hashes())?,
        });
        Ok(())
    }

    /// Stops if the loss is low enough: no step is under way then.
    fn stop_at(&mut self, loss: Option<f32>) {
        if let (Some(loss), Some(wanted)) = (loss, self.config.stop_at_loss)
            && loss <= wanted
        {
            self.progress.steps = self.trainer.steps();
            self.progress.stopped_at_loss = Some(wanted);
        }
    }

    /// Stops if too many evaluations have brought no lower loss, also those of the run that this one resumes: no step is
    /// under way then.
    pub(super) fn stop_if_no_better(&mut self) {
        if let (Some(losses), Some(patience)) = (self.eval_losses(), self.config.patience)
            && losses.since_best >= patience
        {
            self.progress.steps = self.trainer.steps();
            self.progress.stopped_by_patience = Some(patience);
        }
    }

    /// Checks that a step is finite; if not, the run is over, and what it has learned last is worth nothing.
    fn check_finite(&mut self, step: u64, loss: f32) -> Result<(), Error> {
        let origin = match &self.guard {
            Some(guard) => guard.inspect(self.trainer.session_mut(), loss)?,
            None => None,
        };
        if origin.is_some() || !loss.is_finite() {
            self.progress.diverged = Some((step, loss));
        }
        match origin {
            Some(origin) => Err(Error::NotFinite { loss, step, origin: Box::new(origin) }),
            None => self.progress.check_sound(),
        }
    }
}
