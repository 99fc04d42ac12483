//! Steps of a training: one at a time, or the next one launched before the last one has ended.

use super::predict::{feed_inputs, read_metrics};
use super::{Feeds, StepOutcome, TrainingRun};
use crate::Error;
use crate::job::{Agreed, StepVote};

/// Steps that can be in flight: while the devices do one, the host feeds the next.
const AHEAD: usize = 2;

/// A step that has been launched.
pub(super) struct Launched {
    /// The number to wait with.
    run: u64,
    /// Which step it is, from 1.
    number: u64,
    lr: f32,
}

impl TrainingRun<'_> {
    /// Feeds inputs, does one step and reports it. Inputs that are left out keep their values of the step before.
    pub fn step(&mut self, feeds: impl Feeds) -> Result<StepOutcome, Error> {
        self.guarded(|run| {
            run.settle()?;
            run.ended.clear();
            run.launch_unguarded(&feeds)?;
            run.finish_unguarded()
        })
    }

    /// Feeds inputs and starts a step; [`TrainingRun::finish`] reports it. Two steps can be in flight; another one waits
    /// for the first of them.
    pub fn launch(&mut self, feeds: impl Feeds) -> Result<(), Error> {
        self.guarded(|run| run.launch_unguarded(&feeds))
    }

    /// Waits for the first step that was launched and not reported. In a job all ranks call it together.
    pub fn finish(&mut self) -> Result<Option<StepOutcome>, Error> {
        self.guarded(|run| match run.ended.pop_front() {
            Some(ended) => Ok(Some(ended)),
            None if run.in_flight.is_empty() => Ok(None),
            None => run.finish_unguarded().map(Some),
        })
    }

    /// Steps that were launched and not reported.
    pub fn launched(&self) -> usize {
        self.ended.len() + self.in_flight.len()
    }

    /// Waits for all steps in flight; they are reported later.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        while !self.in_flight.is_empty() {
            let outcome = self.finish_unguarded()?;
            self.ended.push_back(outcome);
        }
        Ok(())
    }

    fn launch_unguarded(&mut self, feeds: &dyn Feeds) -> Result<(), Error> {
        // The state of a step that is saved must not be changed by the next one.
        if self.is_save_due || self.is_step_to_save(self.trainer.steps()) {
            self.settle()?;
        }
        while self.in_flight.len() >= AHEAD {
            let outcome = self.finish_unguarded()?;
            self.ended.push_back(outcome);
        }
        feed_inputs(self.trainer.session_mut(), &self.built.graph, feeds)?;
        let lr = self.config.learning_rate().at(self.trainer.steps());
        let run = self.trainer.launch(lr)?;
        self.in_flight.push_back(Launched { run, number: self.trainer.steps(), lr });
        Ok(())
    }

    fn finish_unguarded(&mut self) -> Result<StepOutcome, Error> {
        let Some(Launched { run, number, lr }) = self.in_flight.pop_front() else {
            return Err(Error::NoStep { steps: self.steps() });
        };
        self.ranks.iter().for_each(|ranks| ranks.step_begins(self.earlier));
        let step = self.trainer.wait(run)?;
        let agreed = self.agree()?;
        if !step.loss.is_finite() {
            return Err(Error::Diverged { loss: step.loss, step: number });
        }
        let metrics = read_metrics(self.trainer.session(), &self.built)?;
        let outcome = StepOutcome { number, loss: step.loss, lr, gradient_norm: step.gradient_norm, metrics };
        self.log.step(&outcome, self.config.steps)?;
        self.last = Some(outcome.clone());
        self.is_save_due |= agreed.save || self.is_step_to_save(number);
        if self.is_save_due && self.in_flight.is_empty() {
            self.save_as_configured()?;
        }
        // A step that succeeds shows that what was wrong before is mended.
        self.failure = None;
        Ok(outcome)
    }

    /// Meets the other ranks at the end of a step; whether a checkpoint is due by the clock.
    fn agree(&mut self) -> Result<Agreed, Error> {
        let save = self.rank() == 0 && self.is_time_to_save();
        let vote = StepVote { save, ..StepVote::default() };
        let agreed = match &mut self.ranks {
            Some(ranks) => ranks.step_ends(vote)?,
            None => Agreed::of(&[vote]),
        };
        self.stopped |= agreed.stop;
        Ok(agreed)
    }
}
