//! A training that goes on: steps, evaluations, what can be read between them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_net::Network;
use phalanx_nn::BuiltModel;

use super::log::StepLog;
use super::source::ModelSource;
use super::steps::Launched;
use super::{StepOutcome, TrainingError};
use crate::ckpt::Writer;
use crate::job::{Connection, Job};
use crate::models::ModelConfig;
use crate::train::ranks::Ranks;
use crate::train::{Notice, TrainConfig};
use crate::{Error, Flavor, Goal, Profile, Session, Settings, Trainer};

/// What a run begins with.
pub(super) struct Start<'a> {
    pub model: ModelSource<'a>,
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
    pub(super) model: ModelSource<'a>,
    pub(super) name: String,
    /// What files say about it, if it is of the zoo.
    pub(super) described: Option<ModelConfig>,
    pub(super) built: BuiltModel,
    pub(super) config: TrainConfig,
    pub(super) settings: Settings,
    pub(super) trainer: Trainer,
    pub(super) evaluation: Option<(BuiltModel, Session)>,
    /// When operations of the last step ran, if that is measured.
    pub(super) profile: Option<Profile>,
    pub(super) last: Option<StepOutcome>,
    /// Steps that have been launched, oldest first.
    pub(super) in_flight: VecDeque<Launched>,
    /// Steps that have ended and were not reported, oldest first.
    pub(super) ended: VecDeque<StepOutcome>,
    /// Whether a checkpoint must be saved before another step is launched.
    pub(super) is_save_due: bool,
    pub(super) log: StepLog,
    notices: Vec<Notice>,
    /// Directories that checkpoints are written to.
    pub(super) writers: BTreeMap<PathBuf, Writer>,
    /// Steps and time of the last checkpoint that was due.
    pub(super) saved: (u64, Instant),
    /// Steps before this process began.
    pub(super) earlier: u64,
    /// Whether all ranks have agreed to stop.
    pub(super) stopped: bool,
    /// Why the run has failed.
    pub(super) failure: Option<String>,
    pub(super) ranks: Option<Ranks>,
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
            profile: None,
            last: None,
            in_flight: VecDeque::new(),
            ended: VecDeque::new(),
            is_save_due: false,
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
            for (name, values) in run.model.take_initial() {
                run.set_weight(&name, &values)?;
            }
            run.resume_if_asked()?;
            run.log = StepLog::open(&run.config, run.rank())?;
            Ok(())
        })?;
        Ok(run)
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
            run.settle()?;
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

    /// How many ranks the job has; 1 if this process is alone.
    pub fn ranks(&self) -> u32 {
        self.network().map_or(1, |network| network.size())
    }

    /// Samples in a step.
    pub fn batch(&self) -> usize {
        self.config.batch
    }

    /// The configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// How the step is compiled, with the plan of all ranks.
    pub fn settings(&self) -> &Settings {
        &self.settings
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

    /// Marks the run as failed, for a reason outside of it: when it is dropped, nothing is saved and its job ends with this
    /// message.
    pub fn fail(&mut self, message: impl Into<String>) {
        self.failure.get_or_insert(message.into());
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
