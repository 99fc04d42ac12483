//! The loss on data that is never trained on, at regular steps.
//!
//! A forward-only program of the same plan has memory of its own, beside that of the step: weights are copied into it for
//! each evaluation, on every device its own. It sees the same batches every time, without dropout, so its losses can be
//! compared with each other, and like those of steps they have the same bits on every plan.

use std::sync::Arc;

use phalanx_ir::graph::Graph;

use super::TrainConfig;
use crate::ckpt::EvalLosses;
use crate::data::Dataset;
use crate::job::Job;
use crate::models::ModelConfig;
use crate::pipeline::Settings;
use crate::{Error, Flavor, Goal, Program, Session};

/// Evaluates a run.
pub struct Evaluation {
    pub session: Session,
    /// The losses so far, also of the run that this one resumes.
    pub losses: Option<EvalLosses>,
    every: u64,
    /// Steps of the run, after the last of which there is an evaluation, too.
    steps: u64,
    batches: u64,
    batch: usize,
    loss: String,
    tokens: Vec<i64>,
    targets: Vec<i64>,
}

impl Evaluation {
    /// The evaluation that `config` asks for, if it does, by a compiled `step`; `training` is the session it evaluates.
    pub fn new(
        config: &TrainConfig,
        step: Option<(Graph, Program)>,
        settings: &Settings,
        job: Option<&Job>,
        training: &Session,
    ) -> Result<Option<Evaluation>, Error> {
        let Some((every, (graph, program))) = config.eval_every.zip(step) else { return Ok(None) };
        let settings = Settings { goal: Goal::Infer, ..settings.clone() };
        check_memory(&program, training.program(), settings.memory)?;
        let session = match job {
            None => Session::of_program(&graph, program, &settings, Flavor::Fast)?,
            Some(job) => Session::on_network(&graph, program, &settings, Arc::clone(&job.network))?,
        };
        let size = graph.find("tokens").map_or(0, |tokens| graph.ty(tokens).shape.elements());
        Ok(Some(Evaluation {
            session,
            losses: None,
            every,
            steps: config.steps,
            batches: config.eval_batches,
            batch: config.batch,
            loss: graph.values()[graph.outputs()[0]].name.clone(),
            tokens: vec![0; size],
            targets: vec![0; size],
        }))
    }

    /// Whether there is an evaluation after `steps` steps.
    pub fn is_due(&self, steps: u64) -> bool {
        steps.is_multiple_of(self.every) || steps == self.steps
    }

    /// The step after which the next evaluation is, if `steps` are done: no later one may have begun by then.
    pub fn next(&self, steps: u64) -> u64 {
        (steps / self.every + 1).saturating_mul(self.every)
    }

    /// The mean loss over the held batches with the weights of `training`, which has done `steps` steps. All ranks of a job
    /// call it together.
    pub fn run(&mut self, training: &mut Session, data: &Dataset, steps: u64) -> Result<f32, Error> {
        let context = self.tokens.len() / self.batch;
        self.session.copy_weights(training)?;
        let mut sum = 0.0;
        for number in 0..self.batches {
            data.held_batch(number, self.batch, context, &mut self.tokens, &mut self.targets);
            self.session.feed("tokens", &self.tokens)?;
            self.session.feed("targets", &self.targets)?;
            self.session.run()?;
            sum += f64::from(self.session.read(&self.loss)?[0]);
        }
        let loss = (sum / self.batches as f64) as f32;
        self.losses = Some(EvalLosses::after(self.losses, steps, loss));
        Ok(loss)
    }
}

impl EvalLosses {
    /// The losses `before` and that of another evaluation; an equal loss is not lower.
    fn after(before: Option<EvalLosses>, step: u64, loss: f32) -> EvalLosses {
        match before {
            Some(before) if loss >= before.best => {
                EvalLosses { step, loss, since_best: before.since_best + 1, ..before }
            }
            _ => EvalLosses { step, loss, best_step: step, best: loss, since_best: 0 },
        }
    }
}

/// The model of an evaluation, and how it is compiled.
pub(crate) fn evaluation_of(
    config: &TrainConfig,
    model: &ModelConfig,
    settings: &Settings,
) -> Result<(Graph, Settings), Error> {
    let graph = config.training_graph(&model.clone().with_dropout(0.0))?;
    Ok((graph, Settings { goal: Goal::Infer, ..settings.clone() }))
}

/// Checks that every device has room for a step and the evaluation beside it.
pub fn check_memory(evaluation: &Program, training: &Program, budget: Option<u64>) -> Result<(), Error> {
    let Some(budget) = budget else { return Ok(()) };
    for (lane, step) in evaluation.homes().zip(training.homes()) {
        if lane.arena + step.arena > budget {
            let (device, need, step) = (lane.device, lane.arena, step.arena);
            return Err(Error::EvaluationMemory { device, need, step, budget });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_loss_is_better() {
        let mut seen = Vec::new();
        let mut losses = None;
        for (step, loss) in [(2, 3.0), (4, 2.0), (6, 2.0), (8, 2.5), (10, 1.5), (12, 1.6)] {
            let now = EvalLosses::after(losses, step, loss);
            assert_eq!((now.step, now.loss), (step, loss));
            seen.push((now.best_step, now.best, now.since_best));
            losses = Some(now);
        }
        let want = [(2, 3.0, 0), (4, 2.0, 0), (4, 2.0, 1), (4, 2.0, 2), (10, 1.5, 0), (10, 1.5, 1)];
        assert_eq!(seen, want);
    }
}
