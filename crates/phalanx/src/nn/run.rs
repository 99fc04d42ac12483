//! A training that goes on: steps, evaluations, what can be read between them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_net::Network;
use phalanx_nn::{BuiltModel, Net, Tensor};

use super::log::StepLog;
use super::predict::{feed_inputs, read_metrics};
use super::training::evaluation_of;
use super::{Feeds, Metrics, StepOutcome, TrainingError};
use crate::ckpt::Writer;
use crate::job::{Agreed, Connection, Job, StepVote};
use crate::models::ModelConfig;
use crate::train::eval::check_memory;
use crate::train::ranks::Ranks;
use crate::train::{Notice, TrainConfig};
use crate::{Error, Flavor, Goal, Session, Settings, Trainer};

/// What a run begins with.
pub(super) struct Start<'a> {
    pub model: Box<dyn Fn(&Net) -> Tensor + 'a>,
    pub name: String,
    pub described: Option<ModelConfig>,
    pub built: BuiltModel,
    pub config: TrainConfig,
    pub settings: Settings,
    pub trainer: Trainer,
    pub ranks: Option<(Ranks, Option<(Job, Connection)>)>,
}

/// A training that goes on.
///
/// In a job every rank makes the same calls with the same batches, of which each takes its part. A run that is dropped
/// waits for the other ranks; if it has failed, it ends the job, and one rank says why.
pub struct TrainingRun<'a> {
    model: Box<dyn Fn(&Net) -> Tensor + 'a>,
    pub(super) name: String,
    /// What files say about it, if it is of the zoo.
    pub(super) described: Option<ModelConfig>,
    pub(super) built: BuiltModel,
    pub(super) config: TrainConfig,
    pub(super) settings: Settings,
    pub(super) trainer: Trainer,
    evaluation: Option<(BuiltModel, Session)>,
    pub(super) last: Option<StepOutcome>,
    log: StepLog,
    notices: Vec<Notice>,
    /// Directories that checkpoints are written to.
    pub(super) writers: BTreeMap<PathBuf, Writer>,
    /// Steps and time of the last checkpoint that was due.
    pub(super) saved: (u64, Instant),
    /// Steps before this process began.
    earlier: u64,
    /// Whether all ranks have agreed to stop.
    stopped: bool,
    /// Why the run has failed.
    failure: Option<String>,
    ranks: Option<Ranks>,
    /// Dropped last: ends the message library.
    job: Option<(Job, Connection)>,
}

impl<'a> TrainingRun<'a> {
    pub(super) fn begin(start: Start<'a>) -> Result<TrainingRun<'a>, Error> {
        let Start { model, name, described, built, config, settings, trainer, ranks } = start;
        let (ranks, job) = ranks.map_or((None, None), |(ranks, job)| (Some(ranks), job));
        let warnings = config.warnings().into_iter().map(Notice::Warning).collect();
        let mut run = TrainingRun {
            model,
            name,
            described,
            built,
            config,
            settings,
            trainer,
            evaluation: None,
            last: None,
            log: StepLog::default(),
            notices: warnings,
            writers: BTreeMap::new(),
            saved: (0, Instant::now()),
            earlier: 0,
            stopped: false,
            failure: None,
            ranks,
            job,
        };
        run.guarded(|run| {
            run.resume_if_asked()?;
            run.log = StepLog::open(&run.config, run.rank())?;
            Ok(())
        })?;
        Ok(run)
    }

    /// Feeds inputs, does one step and reports it. Inputs that are left out keep their values of the step before.
    pub fn step(&mut self, feeds: impl Feeds) -> Result<StepOutcome, Error> {
        self.guarded(|run| run.step_unguarded(&feeds))
    }

    fn step_unguarded(&mut self, feeds: &dyn Feeds) -> Result<StepOutcome, Error> {
        feed_inputs(self.trainer.session_mut(), &self.built.graph, feeds)?;
        let lr = self.config.learning_rate().at(self.trainer.steps());
        self.ranks.iter().for_each(|ranks| ranks.step_begins(self.earlier));
        let step = self.trainer.run(lr)?;
        let agreed = self.agree()?;
        let number = self.trainer.steps();
        if !step.loss.is_finite() {
            return Err(Error::Diverged { loss: step.loss, step: number });
        }
        let metrics = read_metrics(self.trainer.session(), &self.built)?;
        let outcome = StepOutcome { number, loss: step.loss, lr, gradient_norm: step.gradient_norm, metrics };
        self.log.step(&outcome, self.config.steps)?;
        self.last = Some(outcome.clone());
        self.save_if_due(agreed.save)?;
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

    /// The means of loss and metrics over batches, with the model as it is without training. The weights stay as they are.
    pub fn evaluate<B: Feeds>(&mut self, batches: impl IntoIterator<Item = B>) -> Result<Metrics, Error> {
        self.guarded(|run| {
            run.prepare_evaluation()?;
            let Some((built, session)) = &mut run.evaluation else {
                return Err(TrainingError::NoBatches.into());
            };
            let (mut sums, mut count): (Vec<(String, f64)>, _) = (Vec::new(), 0);
            for batch in batches {
                feed_inputs(session, &built.graph, &batch)?;
                session.check_fed()?;
                session.run()?;
                let metrics = read_metrics(session, built)?;
                match count {
                    0 => {
                        sums.extend(metrics.iter().map(|(name, value)| (name.to_string(), f64::from(value))))
                    }
                    _ => sums
                        .iter_mut()
                        .zip(metrics.iter())
                        .for_each(|(sum, (_, value))| sum.1 += f64::from(value)),
                }
                count += 1;
            }
            if count == 0 {
                return Err(TrainingError::NoBatches.into());
            }
            let mut means = Metrics::default();
            sums.iter().for_each(|(name, sum)| means.push(name, (sum / f64::from(count)) as f32));
            Ok(means)
        })
    }

    /// Compiles the evaluation, if need be, and gives it the weights of now.
    fn prepare_evaluation(&mut self) -> Result<(), Error> {
        if self.evaluation.is_none() {
            let built = evaluation_of(&self.name, self.config.batch, &self.model, &self.built.graph)?;
            let session = self.compile(&built.graph)?;
            check_memory(session.program(), self.trainer.session().program(), self.settings.memory)?;
            self.evaluation = Some((built, session));
        }
        let Some((_, session)) = &mut self.evaluation else { return Ok(()) };
        session.copy_weights(self.trainer.session_mut())
    }

    /// A session that computes outputs, on the devices of the run.
    pub(super) fn compile(&self, graph: &Graph) -> Result<Session, Error> {
        let settings = Settings { goal: Goal::Infer, ..self.settings.clone() };
        let cache = self.config.program_cache();
        match &self.job {
            None => {
                let program = cache.compile(graph, &settings)?;
                Session::of_program(graph, program, &settings, Flavor::Fast)
            }
            Some((job, _)) => {
                let (program, _) = job.program(graph, &settings, &cache)?;
                Session::on_network(graph, program, &settings, Arc::clone(&job.network))
            }
        }
    }

    /// The output called `name`, or the loss, of the last step. In a job all ranks call it together.
    pub fn read(&mut self, name: &str) -> Result<Vec<f32>, Error> {
        self.guarded(|run| {
            let all = run.built.metrics.iter().chain(&run.built.outputs);
            let loss = &run.built.graph.values()[run.built.graph.outputs()[0]].name;
            let known = all.clone().find(|(known, _)| known == name).map(|(_, value)| value);
            let Some(value) = known.or((name == "loss").then_some(loss)) else {
                let names: Vec<String> = all.map(|(name, _)| format!("`{name}`")).collect();
                let outputs = match names[..] {
                    [] => "call `net.output` to have one".to_string(),
                    _ => format!("it has {}", names.join(", ")),
                };
                return Err(TrainingError::NoOutput { name: name.into(), outputs }.into());
            };
            Ok(run.trainer.session().read(value)?.into_owned())
        })
    }

    /// Steps done, also before the run was resumed: batches to skip, and the number of the last step.
    pub fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    /// Whether all of `--steps` are done, or all ranks have stopped.
    pub fn is_done(&self) -> bool {
        self.stopped || self.steps() >= self.config.steps
    }

    /// Asks all ranks to stop: [`TrainingRun::is_done`] says so on all of them after the same step.
    pub fn stop(&mut self) {
        match &mut self.ranks {
            Some(ranks) => ranks.ask_to_stop(),
            None => self.stopped = true,
        }
    }

    /// Which rank of its job this process is; 0 if it is alone. Usually one rank prints.
    pub fn rank(&self) -> u32 {
        self.trainer.session().rank()
    }

    /// Samples in a step.
    pub fn batch(&self) -> usize {
        self.config.batch
    }

    /// The configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The graph of a step.
    pub fn graph(&self) -> &Graph {
        &self.built.graph
    }

    /// The compiled step, to read weights.
    pub fn session(&self) -> &Session {
        self.trainer.session()
    }

    /// How many numbers the model has.
    pub fn parameters(&self) -> u64 {
        let params = self.built.graph.leaves(|op| matches!(op, Op::Param(_)));
        params.map(|param| self.built.graph.ty(param).shape.elements() as u64).sum()
    }

    /// The messages since the last call, such as where a run was resumed.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn note(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Goes on as if so many steps had been done before this process began.
    pub(super) fn continue_after(&mut self, steps: u64) {
        self.trainer.continue_after(steps);
        (self.earlier, self.saved.0) = (steps, steps);
    }

    /// What connects the ranks, if there are several.
    pub(super) fn network(&self) -> Option<Arc<dyn Network>> {
        self.job.as_ref().map(|(job, _)| Arc::clone(&job.network))
    }

    /// Does something; an error is kept, so that a job ends with it.
    pub(super) fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let done = work(self);
        if let Err(error) = &done {
            self.failure.get_or_insert_with(|| error.to_string());
        }
        done
    }
}

impl Drop for TrainingRun<'_> {
    /// Saves what `--checkpoint` asks for and leaves the job.
    fn drop(&mut self) {
        let failed = self.failure.is_some() || thread::panicking();
        if !failed && let Err(error) = self.save_at_end() {
            eprintln!("error: {error}");
        }
        let Some((_, connection)) = &self.job else { return };
        match &self.failure {
            Some(failure) => connection.fail(failure, 1),
            None if thread::panicking() => connection.fail("the program panicked", 101),
            // The others have failed, and one of them says why.
            None => _ = connection.finish(),
        }
    }
}
