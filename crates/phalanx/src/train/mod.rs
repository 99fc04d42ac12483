//! Training a language model from a configuration: data in, weights out.

mod after;
mod checkpoints;
mod config;
mod drills;
mod eval;
pub mod nan;
mod ranks;
mod resume;

pub use config::{Bits, ConfigError, Debug, OptimizerKind, TrainConfig};
pub use nan::Origin;
pub use resume::Notice;
pub(crate) use resume::{differences, json};

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use phalanx_ir::graph::Graph;
use phalanx_program::Certificate;
use serde::Serialize;

use crate::data::{DataError, Dataset};
use crate::job::{Agreed, Job, Topology, deal_devices};
use crate::models::ModelConfig;
use crate::overlap::Overview;
use crate::pipeline::Settings;
use crate::{Error, LearningRate, Profile, StateHashes, Trainer, hf, timeline};
use checkpoints::Saver;
use drills::FaultInjection;
use eval::Evaluation;
use nan::Guard;
use ranks::Ranks;
use resume::{Found, Past};

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
    /// The hash of weights and optimizer state after the update, if they were hashed; [`Run::hashes`] tells those of
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
    /// Peak bytes of an evaluation: its arena, beside that of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_peak_bytes: Option<usize>,
    /// The loss at which the run was to stop, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_loss: Option<f32>,
}

/// A run in progress.
pub struct Run {
    config: TrainConfig,
    model: ModelConfig,
    data: Dataset,
    settings: Settings,
    trainer: Trainer,
    rate: LearningRate,
    tokens: Vec<i64>,
    targets: Vec<i64>,
    losses: Vec<f32>,
    seconds: f64,
    profile: Profile,
    /// Steps to do.
    steps: u64,
    /// Steps that have been launched and not reported, oldest first.
    in_flight: VecDeque<u64>,
    /// The other processes, if there are any.
    ranks: Option<Ranks>,
    evaluation: Option<Evaluation>,
    guard: Option<Guard>,
    /// Of the state after the last step, if it was to be hashed.
    hashes: Option<StateHashes>,
    /// The step and loss with which the run has diverged.
    diverged: Option<(u64, f32)>,
    /// The loss at which the run has stopped.
    stopped_at_loss: Option<f32>,
    /// What was done before, in the run that this one resumes.
    past: Past,
    /// Writes checkpoints, if that is asked for.
    saver: Option<Saver>,
    fault_injection: FaultInjection,
    notices: Vec<Notice>,
}

/// Steps launched before the oldest of them is waited for.
const AHEAD: usize = 2;

impl Run {
    /// Reads the data and compiles the model.
    pub fn new(config: TrainConfig) -> Result<Self, Error> {
        Run::with_progress(config, &mut |_, _, _| ())
    }

    /// The same; `progress` is told of kernels that are measured first: how many are done, of how many, and which is next.
    pub fn with_progress(
        config: TrainConfig,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Self, Error> {
        let (data, model, graph) = prepare(&config)?;
        let found = Found::new(&config, None)?;
        let settings = config.measured_settings(&graph, progress)?;
        // A job of one rank, as far as the configuration is concerned.
        deal_devices(settings.plan.mesh.devices(), 1, config.devices_per_rank)?;
        let trainer = Trainer::with_settings(&graph, &settings)?;
        let evaluation = Evaluation::new(&config, &model, &settings, None, trainer.session())?;
        let guard = config.debug.map(|Debug::Nan| Guard::new(graph, settings.clone()));
        let run = Run::assemble(config, model, data, settings, trainer, None)?;
        Run { evaluation, guard, ..run }.begin(found)
    }

    /// One rank of a job; all ranks make the same calls. Plan, seed and times of kernels are those of rank 0.
    pub fn in_job(
        config: TrainConfig,
        job: &Job,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Self, Error> {
        if config.debug.is_some() && job.network.size() > 1 {
            let wanted = "it steps through all devices in one process: leave out the launcher, or debug";
            return Err(ConfigError::Field { field: "debug", value: "nan".into(), wanted }.into());
        }
        let (data, model, graph) = prepare(&config)?;
        let found = Found::new(&config, Some(&*job.network))?;
        let (settings, topology) = job.settings(&config, &graph, progress)?;
        config.pin.apply(topology.own_cores());
        let (trainer, certificate) = job.trainer(&graph, &settings)?;
        let evaluation = Evaluation::new(&config, &model, &settings, Some(job), trainer.session())?;
        let between = evaluation.as_ref().map(|evaluation| &evaluation.session);
        let ranks = Ranks::new(&config, job, topology, certificate, trainer.session(), between);
        let run = Run::assemble(config, model, data, settings, trainer, Some(ranks))?;
        Run { evaluation, ..run }.begin(found)
    }

    fn assemble(
        config: TrainConfig,
        model: ModelConfig,
        data: Dataset,
        settings: Settings,
        mut trainer: Trainer,
        ranks: Option<Ranks>,
    ) -> Result<Self, Error> {
        let size = config.batch * config.context_of(&model);
        let rate = config.learning_rate();
        let fault_injection = FaultInjection::new(&config, trainer.session().rank())?;
        let profile = trainer.session_mut().profile_through(fault_injection.trigger());
        Ok(Run {
            steps: config.steps,
            losses: Vec::with_capacity(config.steps.min(1 << 20) as usize),
            tokens: vec![0; size],
            targets: vec![0; size],
            seconds: 0.0,
            in_flight: VecDeque::with_capacity(AHEAD),
            config,
            model,
            data,
            settings,
            trainer,
            rate,
            profile,
            ranks,
            evaluation: None,
            guard: None,
            hashes: None,
            diverged: None,
            stopped_at_loss: None,
            past: Past::default(),
            saver: None,
            fault_injection,
            notices: Vec::new(),
        })
    }

    /// Takes up from a checkpoint, if one was found, and gets ready to write more.
    fn begin(mut self, found: Found) -> Result<Self, Error> {
        self.take_up(found)?;
        self.prepare_to_save()?;
        Ok(self)
    }

    /// The configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// The data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// The trainer.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// Where the time of the steps went.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The loss of every step that this process has done.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// The last loss on held-back data.
    pub fn eval_loss(&self) -> Option<f32> {
        self.evaluation.as_ref()?.last
    }

    /// Hashes of weights and optimizer state after the last step, if that was one of every `hash_every`.
    pub fn hashes(&self) -> Option<&StateHashes> {
        self.hashes.as_ref()
    }

    /// Bytes of the arenas that evaluating needs in all processes, beside those of a step.
    pub fn eval_bytes(&self) -> Option<usize> {
        Some(self.evaluation.as_ref()?.session.arena_bytes())
    }

    /// Whether all steps are done, or all that were launched before [`Run::stop`].
    pub fn is_done(&self) -> bool {
        self.done() >= self.steps
    }

    /// Steps done so far, also by the runs that this one resumes.
    fn done(&self) -> u64 {
        self.past.steps + self.losses.len() as u64
    }

    /// What is to be told to people since the last time somebody asked.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Launches no more steps; those that have been launched are still done, at least one. In a job all ranks stop after
    /// the same one.
    pub fn stop(&mut self) {
        match &mut self.ranks {
            None => self.steps = self.trainer.steps().max(self.past.steps + 1).min(self.steps),
            Some(ranks) => ranks.ask_to_stop(),
        }
    }

    /// Where the devices of a job are.
    pub fn topology(&self) -> Option<&Topology> {
        self.ranks.as_ref().map(|ranks| &ranks.topology)
    }

    /// That the ranks of a job cannot deadlock; rank 0 has it.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.ranks.as_ref()?.certificate.as_ref()
    }

    /// Waits for the next step. Steps are launched ahead, so that the devices never wait for the host.
    pub fn step(&mut self) -> Result<Report, Error> {
        self.check_sound()?;
        let start = Instant::now();
        let step = self.done();
        self.ranks.iter().for_each(|ranks| ranks.step_begins(self.past.steps));
        while self.in_flight.len() < self.ahead() && self.trainer.steps() < self.launchable(step) {
            self.launch()?;
        }
        let run = self.in_flight.pop_front().ok_or(Error::NoStep { steps: self.steps })?;
        let result = self.trainer.wait(run)?;
        let agreed = self.agree()?;
        if agreed.stop {
            self.steps = self.trainer.steps();
        }
        let seconds = start.elapsed().as_secs_f64();
        let eval_loss = match self.examine(step + 1, result.loss) {
            Ok(eval_loss) => eval_loss,
            Err(error) => {
                self.settle_checkpoint()?;
                return Err(error);
            }
        };
        self.hash(step + 1)?;
        let saving = Instant::now();
        self.save_if_due(agreed)?;
        self.seconds += seconds + saving.elapsed().as_secs_f64();
        let tokens_per_s = self.tokens.len() as f64 / seconds;
        let (loss, lr, gradient_norm) = (result.loss, self.rate.at(step), result.gradient_norm);
        let hash = self.hashes.as_ref().map(|hashes| hashes.hash.clone());
        Ok(Report { step: step + 1, loss, tokens_per_s, lr, gradient_norm, eval_loss, hash })
    }

    /// What all ranks have to say about a step; this process alone, if there are no others.
    fn agree(&mut self) -> Result<Agreed, Error> {
        let verdict = self.saver.as_ref().map(Saver::verdict).unwrap_or_default();
        match &mut self.ranks {
            Some(ranks) => ranks.step_ends(verdict),
            None => Ok(Agreed::of(&[verdict])),
        }
    }

    fn launch(&mut self) -> Result<(), Error> {
        let step = self.trainer.steps();
        self.fault_injection.step(step + 1, self.past.steps, self.trainer.session_mut())?;
        let context = self.tokens.len() / self.config.batch;
        self.data.batch(step, self.config.batch, context, &mut self.tokens, &mut self.targets);
        let session = self.trainer.session_mut();
        session.feed("tokens", &self.tokens)?;
        session.feed("targets", &self.targets)?;
        if let Some(guard) = &mut self.guard {
            guard.keep(session)?;
        }
        let run = self.trainer.launch(self.rate.at(step))?;
        self.in_flight.push_back(run);
        Ok(())
    }

    /// Writes the weights as a Hugging Face directory; not those of a run that has diverged. In a job all ranks call it and
    /// the first one writes.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.check_sound()?;
        let weights = self.trainer.session().weights()?;
        match &self.ranks {
            Some(ranks) if ranks.topology.rank > 0 => Ok(()),
            _ => Ok(hf::write_model(dir, &self.model, &weights)?),
        }
    }

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

    /// What the run has come to.
    pub fn summary(&self) -> Result<Summary, Error> {
        let session = self.trainer.session();
        let last = &self.losses[self.losses.len() - self.losses.len().div_ceil(10)..];
        let snapshot_bytes = self.saver.as_ref().map_or(0, Saver::snapshot_bytes);
        let by_kernel = self.profile.by_kernel(session.part());
        let all: f64 = by_kernel.iter().map(|(_, seconds)| seconds).sum();
        let matmul: f64 =
            by_kernel.iter().filter(|(name, _)| name == "matmul").map(|(_, seconds)| seconds).sum();
        Ok(Summary {
            steps: self.done(),
            loss: match last {
                [] => self.past.loss.unwrap_or_default(),
                last => last.iter().sum::<f32>() / last.len() as f32,
            },
            entropy: self.data.entropy(),
            parameters: self.model.parameters(),
            tokens_per_s: (self.losses.len() * self.tokens.len()) as f64
                / self.seconds.max(f64::MIN_POSITIVE),
            seconds: self.seconds,
            peak_bytes: session.arena_bytes() + snapshot_bytes,
            snapshot_bytes,
            matmul_share: matmul / all.max(f64::MIN_POSITIVE),
            weights_hash: format!("{:032x}", session.weights_hash()?),
            eval_loss: self.eval_loss(),
            eval_peak_bytes: self.eval_bytes(),
            stopped_at_loss: self.stopped_at_loss,
        })
    }
}

/// Opens the data and builds the model for it.
pub(crate) fn prepare(config: &TrainConfig) -> Result<(Dataset, ModelConfig, Graph), Error> {
    let mut data = open_data(config)?;
    let model = config.language_model(data.vocab())?;
    let context = config.context_of(&model);
    if config.eval_every.is_some() {
        data.hold_back(config.eval_share);
    }
    data.check(context)?;
    let graph = model.training_graph(config.batch, context)?;
    Ok((data, model, graph))
}

fn open_data(config: &TrainConfig) -> Result<Dataset, DataError> {
    match (&config.data, &config.tokenizer) {
        (None, _) => Ok(Dataset::grammar(config.seed)),
        (Some(data), None) => Dataset::open_text(data, config.seed),
        (Some(data), Some(tokenizer)) => Dataset::open_tokenized(data, tokenizer, config.seed),
    }
}
