//! Training a language model from a configuration: data in, weights out.

mod after;
pub(crate) mod checkpoints;
mod config;
mod drills;
mod elastic;
pub(crate) mod eval;
mod flags;
mod forecast;
pub mod nan;
mod options;
mod progress;
pub(crate) mod ranks;
mod report;
pub(crate) mod resume;
mod start;
mod steps;

pub(crate) use config::bytes;
pub use config::{Bits, ConfigError, Debug, LoraSave, MOST_CORES, OPTIONS, OptimizerKind, TrainConfig};
pub use elastic::{Elastic, ElasticError, SmallerJob};
pub use flags::{OptionFlags, OptionSet};
pub use forecast::{CheckpointForecast, Forecast, PlannedWrite};
pub use nan::Origin;
pub use options::{OptionGroup, OptionSpec};
pub use report::{CommittedCheckpoint, Report, Summary};
pub use resume::Notice;
pub(crate) use resume::{json, value_differences};
pub use start::{StartPhase, StartProgress};
pub(crate) use steps::RunSteps;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use phalanx_ir::graph::Graph;
use phalanx_plan::left_whole;
use phalanx_program::Certificate;

use crate::artifact::Artifact;
use crate::ckpt::{self, EvalLosses};
use crate::data::{DataError, DataIdentity, DataSource, Dataset, EncodingProgress, cache_dir};
use crate::job::{Agreed, Job, RankLayout, shared};
use crate::models::ModelConfig;
use crate::pipeline::{CompileError, Settings};
use crate::{Error, Profile, StateHashes, Trainer, hf};
use checkpoints::Checkpointer;
use drills::FaultInjection;
use eval::Evaluation;
use nan::Guard;
use progress::Progress;
use ranks::Ranks;
use resume::ResumePoint;
pub(crate) use start::{measuring, tokenizing};

/// A run in progress.
pub struct Run {
    config: TrainConfig,
    model: ModelConfig,
    data: Dataset,
    /// What distinguishes the data from other data, if it is in files.
    identity: Option<DataIdentity>,
    settings: Settings,
    trainer: Trainer,
    /// The inputs of the step that is launched next.
    tokens: Vec<i64>,
    targets: Vec<i64>,
    progress: Progress,
    profile: Profile,
    /// The other processes, if there are any.
    ranks: Option<Ranks>,
    evaluation: Option<Evaluation>,
    /// Finds numbers that are not finite, if that is asked for.
    guard: Option<Guard>,
    /// Of the state after the last step, if it was to be hashed.
    hashes: Option<StateHashes>,
    checkpointer: Option<Checkpointer>,
    fault_injection: FaultInjection,
    notices: Vec<Notice>,
}

impl Run {
    /// Reads the data and compiles the model.
    pub fn new(config: TrainConfig) -> Result<Self, Error> {
        Run::with_progress(config, &mut |_| ())
    }

    /// The same; `progress` is called with all that may take long before the first step.
    pub fn with_progress(config: TrainConfig, progress: &mut StartProgress<'_>) -> Result<Self, Error> {
        Run::alone(None, config, progress)
    }

    /// Trains what an artifact holds: nothing is compiled. `config` is [`Artifact::config`] with changes that leave the
    /// compiled steps as they are.
    pub fn of_artifact(
        artifact: &Artifact,
        config: TrainConfig,
        progress: &mut StartProgress<'_>,
    ) -> Result<Self, Error> {
        Run::alone(Some(artifact), config, progress)
    }

    fn alone(
        artifact: Option<&Artifact>,
        config: TrainConfig,
        progress: &mut StartProgress<'_>,
    ) -> Result<Self, Error> {
        let config = config.with_pretrained()?;
        let (data, model) = open_data_and_model(&config, &mut tokenizing(progress))?;
        let point = ResumePoint::new(&config, None)?;
        FaultInjection::new(&config, 0)?.before_steps();
        let steps = match artifact {
            Some(artifact) => artifact.steps(&config, &model)?,
            None => RunSteps::compile(&config, &model, progress)?,
        };
        let RunSteps { settings, train: (graph, program), evaluate, .. } = steps;
        let trainer = Trainer::of_program(&graph, program, &settings)?;
        let evaluation = Evaluation::new(&config, evaluate, &settings, None, trainer.session())?;
        let guard = config.debug.map(|Debug::Nan| Guard::new(graph.clone(), settings.clone()));
        let run = Run::assemble(config, model, data, settings, trainer, None)?;
        Run { evaluation, guard, ..run }.begin(&graph, point)
    }

    /// One rank of a job; all ranks make the same calls. Plan, seed and times of kernels are those of rank 0. Text becomes
    /// tokens on the first rank of each host, and the others find them.
    pub fn in_job(config: TrainConfig, job: &Job, progress: &mut StartProgress<'_>) -> Result<Self, Error> {
        Run::as_rank(None, config, job, progress)
    }

    /// One rank of a job that trains what an artifact holds, the same on all ranks ([`ArtifactFiles::share`]).
    ///
    /// [`ArtifactFiles::share`]: crate::artifact::ArtifactFiles::share
    pub fn of_artifact_in_job(
        artifact: &Artifact,
        config: TrainConfig,
        job: &Job,
        progress: &mut StartProgress<'_>,
    ) -> Result<Self, Error> {
        Run::as_rank(Some(artifact), config, job, progress)
    }

    fn as_rank(
        artifact: Option<&Artifact>,
        config: TrainConfig,
        job: &Job,
        progress: &mut StartProgress<'_>,
    ) -> Result<Self, Error> {
        if config.debug.is_some() && job.network.size() > 1 {
            let wanted = "it steps through all devices in one process: leave out the launcher, or debug";
            return Err(
                ConfigError::Field { field: "debug", value: "nan".into(), wanted: wanted.into() }.into()
            );
        }
        FaultInjection::new(&config, job.network.rank())?.before_steps();
        job.phases.enter("reading model and data");
        // The order of the data follows from it, too.
        let seed = shared::seed(&*job.network, config.seed)?;
        let config = config.seed(seed).with_pretrained()?;
        let (data, model) =
            job.first_of_host_first(|| open_data_and_model(&config, &mut tokenizing(progress)))??;
        job.same_on_all_ranks("contents of the data", &data.identity().to_string())?;
        job.phases.enter("looking for a checkpoint");
        let point = ResumePoint::new(&config, Some(&*job.network))?;
        job.phases.enter("agreeing on plan and kernel times");
        let (steps, topology) = match artifact {
            Some(artifact) => artifact.steps_in_job(&config, &model, job)?,
            None => RunSteps::compile_in_job(&config, &model, job, progress)?,
        };
        let RunSteps { settings, train: (graph, program), evaluate, certificate } = steps;
        config.pin.apply(topology.own_cores());
        let trainer = Trainer::on_network(&graph, program, &settings, Arc::clone(&job.network))?;
        let evaluation = Evaluation::new(&config, evaluate, &settings, Some(job), trainer.session())?;
        let between = evaluation.as_ref().map(|evaluation| &evaluation.session);
        let ranks = Ranks::new(&config, job, topology, certificate, trainer.session(), between);
        let run = Run::assemble(config, model, data, settings, trainer, Some(ranks))?;
        job.phases.enter("preparing the first step");
        Run { evaluation, ..run }.begin(&graph, point)
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
        let warnings = config.warnings().into_iter().map(Notice::Warning);
        let notices = data.note().map(|note| Notice::Note(note.into())).into_iter().chain(warnings).collect();
        let fault_injection = FaultInjection::new(&config, trainer.session().rank())?;
        let profile = trainer.session_mut().profile_through(fault_injection.trigger());
        Ok(Run {
            tokens: vec![0; size],
            targets: vec![0; size],
            progress: Progress::new(config.steps),
            identity: config.data.as_ref().map(|_| data.identity()),
            config,
            model,
            data,
            settings,
            trainer,
            profile,
            ranks,
            evaluation: None,
            guard: None,
            hashes: None,
            checkpointer: None,
            fault_injection,
            notices,
        })
    }

    /// Continues from a checkpoint, if there is one, and prepares to write more.
    fn begin(mut self, graph: &Graph, point: ResumePoint) -> Result<Self, Error> {
        self.notices.extend(self.config.note_frozen(&self.model)?);
        let whole = left_whole(graph, &self.settings.plan).map_err(CompileError::from)?;
        self.notices.extend(whole.iter().map(|whole| Notice::Note(whole.to_string())));
        self.continue_from(point)?;
        self.prepare_to_save()?;
        Ok(self)
    }

    /// Takes the weights of the Hugging Face directory to start from, if there is one.
    fn begin_with_pretrained(&mut self) -> Result<(), Error> {
        let Some(dir) = &self.config.hf else { return Ok(()) };
        for (name, values) in &hf::read_weights(dir, &hf::tensors(&self.model)?)? {
            self.trainer.session_mut().feed(name, values)?;
        }
        self.notices.push(Notice::Note(format!("starting with the weights of {}", dir.display())));
        self.notices.extend(self.config.note_dropout(dir)?.map(Notice::Note));
        Ok(())
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
        &self.progress.losses
    }

    /// The losses on held-back data so far, also of the run that this one resumes.
    pub fn eval_losses(&self) -> Option<EvalLosses> {
        self.evaluation.as_ref()?.losses
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
        self.progress.is_done()
    }

    /// The messages since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Launches no more steps; those that have been launched are still done, at least one. In a job all ranks stop after
    /// the same one.
    pub fn stop(&mut self) {
        match &mut self.ranks {
            None => {
                let launched = self.trainer.steps().max(self.progress.earlier.steps + 1);
                self.progress.steps = self.progress.steps.min(launched);
            }
            Some(ranks) => ranks.ask_to_stop(),
        }
    }

    /// Devices of all processes.
    pub fn devices(&self) -> usize {
        self.settings.plan.mesh.devices()
    }

    /// Where the devices of a job are.
    pub fn topology(&self) -> Option<&RankLayout> {
        self.ranks.as_ref().map(|ranks| &ranks.topology)
    }

    /// That the ranks of a job cannot deadlock; rank 0 has it.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.ranks.as_ref()?.certificate.as_ref()
    }

    /// Waits for the next step. Steps are launched ahead, so that the devices never wait for the host.
    pub fn step(&mut self) -> Result<Report, Error> {
        self.progress.check_sound()?;
        let start = Instant::now();
        let step = self.progress.done();
        self.ranks.iter().for_each(|ranks| ranks.step_begins(self.progress.earlier.steps));
        while self.progress.in_flight.len() < self.ahead() && self.trainer.steps() < self.launchable(step) {
            self.launch()?;
        }
        let run = self.progress.in_flight.pop_front().ok_or(Error::NoStep { steps: self.progress.steps })?;
        let result = self.trainer.wait(run)?;
        let agreed = self.agree()?;
        if agreed.stop {
            self.progress.steps = self.trainer.steps();
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
        self.progress.seconds += seconds + saving.elapsed().as_secs_f64();
        if self.is_done() {
            self.fault_injection.after_steps();
        }
        let tokens_per_s = self.tokens.len() as f64 / seconds;
        let (loss, lr, gradient_norm) =
            (result.loss, self.config.learning_rate().at(step), result.gradient_norm);
        let hash = self.hashes.as_ref().map(|hashes| hashes.hash.clone());
        let eval_perplexity = eval_loss.and(self.eval_losses()).map(|losses| losses.perplexity());
        let precision = Some(self.config.precision).filter(|precision| precision.rounds());
        let checkpoints = self.checkpointer.as_mut().map(Checkpointer::take_committed).unwrap_or_default();
        Ok(Report {
            step: step + 1,
            loss,
            tokens_per_s,
            lr,
            gradient_norm,
            eval_loss,
            eval_perplexity,
            hash,
            precision,
            checkpoints,
        })
    }

    /// What all ranks have to say about a step; this process alone, if there are no others.
    fn agree(&mut self) -> Result<Agreed, Error> {
        let verdict = self.checkpointer.as_ref().map(Checkpointer::verdict).unwrap_or_default();
        match &mut self.ranks {
            Some(ranks) => ranks.step_ends(verdict),
            None => Ok(Agreed::of(&[verdict])),
        }
    }

    fn launch(&mut self) -> Result<(), Error> {
        let step = self.trainer.steps();
        self.fault_injection.step(step + 1, self.progress.earlier.steps, self.trainer.session_mut())?;
        let context = self.tokens.len() / self.config.batch;
        self.data.batch(step, self.config.batch, context, &mut self.tokens, &mut self.targets);
        let session = self.trainer.session_mut();
        session.feed("tokens", &self.tokens)?;
        session.feed("targets", &self.targets)?;
        if let Some(guard) = &mut self.guard {
            guard.keep(session)?;
        }
        let run = self.trainer.launch(self.config.learning_rate().at(step))?;
        self.progress.in_flight.push_back(run);
        Ok(())
    }

    /// Writes the weights as a Hugging Face directory, or as one of PEFT if `lora_save` says so; not those of a run that has
    /// diverged. In a job all ranks call it and the first one writes. With `save_best` they are those of the best checkpoint, if there is one. The step after which
    /// the model had the weights.
    pub fn save(&self, dir: &Path) -> Result<u64, Error> {
        self.progress.check_sound()?;
        let is_first = self.trainer.session().rank() == 0;
        if let Some(best) = self.best_checkpoint()? {
            if is_first {
                ckpt::export(&best, dir, self.config.save_dtype)?;
            }
            return Ok(best.manifest().run.step);
        }
        let weights = self.trainer.session().weights()?;
        if is_first {
            self.config.write_weights(dir, &self.model, weights)?;
        }
        Ok(self.progress.done())
    }
}

/// Opens the data and builds the model for it.
pub(crate) fn prepare(
    config: &TrainConfig,
    progress: &mut EncodingProgress<'_>,
) -> Result<(Dataset, ModelConfig, Graph), Error> {
    let (data, model) = open_data_and_model(config, progress)?;
    let graph = config.training_graph(&model)?;
    Ok((data, model, graph))
}

/// Opens the data and sizes the model for it.
pub(crate) fn open_data_and_model(
    config: &TrainConfig,
    progress: &mut EncodingProgress<'_>,
) -> Result<(Dataset, ModelConfig), Error> {
    config.validate()?;
    let mut data = open_data(config, progress)?;
    let model = config.language_model(data.vocab())?;
    let context = config.context_of(&model);
    if config.eval_every.is_some() {
        data.hold_back(config.eval_share);
    }
    data.check(context)?;
    Ok((data, model))
}

fn open_data(config: &TrainConfig, progress: &mut EncodingProgress<'_>) -> Result<Dataset, DataError> {
    let Some(path) = &config.data else { return Ok(Dataset::grammar(config.seed)) };
    let cache = config.data_cache.clone().or_else(cache_dir).filter(|_| !config.no_cache);
    let source = DataSource {
        path,
        tokenizer: config.tokenizer.as_deref(),
        field: &config.data_field,
        chat_template: config.chat_template.as_deref(),
        mask_prompt: config.mask_prompt,
        cache: cache.as_deref(),
    };
    Dataset::open(&source, config.seed, progress)
}
