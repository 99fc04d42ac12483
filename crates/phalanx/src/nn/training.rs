//! A training before it begins: the function of the model, the optimizer, and what flags say.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use phalanx_import::ImportedModel;
use phalanx_nn::{BuiltModel, Net, Tensor};

use super::Args;
use super::args::OwnModel;
use super::run::{Start, TrainingRun};
use super::source::{ModelGraphs, ModelSource};
use crate::job::{Connection, Job, connect, deal_devices, shared};
use crate::models::ModelConfig;
use crate::models::zoo::{ZooChoice, ZooEntry, ZooModel};
use crate::train::ranks::Ranks;
use crate::train::{OptimizerKind, OptionFlags, OptionSet, TrainConfig};
use crate::{Decays, Error, Goal, LearningRate, Optimizer, ParameterGroup, Settings, Trainer, UpdateRule};

/// A training of a model of one's own, until [`Training::start`] compiles it.
///
/// The model is a function or a pair of graphs. A function is called twice: for training and, when it is first needed, for
/// evaluation; `net.training()` tells which.
/// What flags say wins over what the methods say. Without an optimizer it is AdamW with the constants of PyTorch and no
/// decay.
pub struct Training<'a> {
    model: ModelSource<'a>,
    flags: OptionFlags<OwnModel>,
    name: String,
    described: Option<ModelConfig>,
    config: TrainConfig,
    decays: Decays,
    freeze: Vec<String>,
    groups: Vec<ParameterGroup>,
}

impl<'a> Training<'a> {
    /// Trains what `model` builds: it returns the loss.
    pub fn new(args: &Args, model: impl Fn(&Net) -> Tensor + 'a) -> Training<'a> {
        Training::of_source(args, "model".into(), ModelSource::Function(Box::new(model)))
    }

    /// Trains a model that exists as graphs, such as one that was imported. Its batch is that of the graphs.
    pub fn of_graphs(args: &Args, model: ModelGraphs) -> Result<Training<'a>, Error> {
        let (name, batch) = (model.training.graph.name().to_string(), model.batch()?);
        let training = Training::of_source(args, name, ModelSource::Graphs(Box::new(model)));
        Ok(training.batch(batch))
    }

    fn of_source(args: &Args, name: String, model: ModelSource<'a>) -> Training<'a> {
        let (flags, config, decays) =
            (args.flags.clone(), OwnModel::defaults().beta2(0.999), Decays::Matrices);
        let (described, freeze, groups) = (None, Vec::new(), Vec::new());
        Training { model, flags, name, described, config, decays, freeze, groups }
    }

    /// Trains the model of the zoo that `config` names, with all of what `config` says; `given` are the options that a user
    /// has set. Options that have no effect on such a model are refused.
    pub fn of_zoo(
        config: TrainConfig,
        given: &[&str],
        model: Rc<dyn ZooModel>,
    ) -> Result<Training<'a>, Error> {
        config.check_zoo(given, &*model)?;
        model.check()?;
        let name = config.model.clone();
        let described = ZooEntry::find(&name).map(|entry| ModelConfig::Zoo(ZooChoice::new(entry, &*model)));
        let training = Training::new(&Args::default(), move |net| model.loss(net));
        Ok(Training { config, name, described, ..training })
    }

    /// Trains a graph file, from the weights it brings, with all of what `config` says; `given` are the options that a user has
    /// set. Options that have no effect on such a model are refused.
    pub fn of_graph_file(
        config: TrainConfig,
        given: &[&str],
        model: &ImportedModel,
    ) -> Result<Training<'a>, Error> {
        config.check_graph(given, &model.name)?;
        let training = Training::of_graphs(&Args::default(), model.into())?;
        let config = config.batch(training.config.batch);
        Ok(Training { config, ..training })
    }

    /// What the model is called in graphs and checkpoints.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Training { name: name.into(), ..self }
    }

    /// Samples in a step, unless `--batch` says otherwise; else 16.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        self.with(|config| config.batch(batch))
    }

    /// AdamW with this learning rate and this weight decay of matrices.
    #[must_use]
    pub fn adamw(self, lr: f32, decay: f32) -> Self {
        self.lr(lr).optimizer(Optimizer::adamw(decay).decays(Decays::Matrices))
    }

    /// Adam with this learning rate.
    #[must_use]
    pub fn adam(self, lr: f32) -> Self {
        self.lr(lr).optimizer(Optimizer::adam())
    }

    /// Stochastic gradient descent with this learning rate and momentum.
    #[must_use]
    pub fn sgd(self, lr: f32, momentum: f32) -> Self {
        self.lr(lr).optimizer(Optimizer::sgd(momentum))
    }

    /// Any optimizer, with its decay, clipping, frozen parameters and groups.
    #[must_use]
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        let usual = TrainConfig::default();
        let config = self.config.beta1(usual.beta1).beta2(usual.beta2).eps(usual.eps);
        let config = config.momentum(usual.momentum).nesterov(false);
        let config = config.weight_decay(optimizer.decay).clip(optimizer.clip.unwrap_or(0.0));
        self.config = match optimizer.rule {
            UpdateRule::Adam { beta1, beta2, eps, decoupled } => {
                let kind = if decoupled { OptimizerKind::AdamW } else { OptimizerKind::Adam };
                config.optimizer(kind).beta1(beta1).beta2(beta2).eps(eps)
            }
            UpdateRule::Sgd { momentum, nesterov } => {
                config.optimizer(OptimizerKind::Sgd).momentum(momentum).nesterov(nesterov)
            }
        };
        self.decays = optimizer.decays;
        self.freeze.extend(optimizer.frozen);
        self.groups.extend(optimizer.groups);
        self
    }

    /// The learning rate of all steps.
    #[must_use]
    pub fn lr(self, lr: f32) -> Self {
        self.with(|config| config.lr(lr))
    }

    /// A learning rate that changes from step to step.
    #[must_use]
    pub fn schedule(self, rate: LearningRate) -> Self {
        let floor = if rate.peak > 0.0 { rate.floor / rate.peak } else { 0.0 };
        self.with(|config| {
            let config = config.lr(rate.peak).lr_floor(floor).warmup(rate.warmup).steps(rate.steps);
            config.lr_schedule(rate.schedule).lr_decay(rate.decay)
        })
    }

    /// The largest gradient norm let through.
    #[must_use]
    pub fn clip(self, norm: f32) -> Self {
        self.with(|config| config.clip(norm))
    }

    /// Parameters that stay as they are, by a pattern for their names; see [`Optimizer::frozen`]. `--freeze` replaces all
    /// of them.
    #[must_use]
    pub fn freeze(mut self, pattern: impl Into<String>) -> Self {
        self.freeze.push(pattern.into());
        self
    }

    /// Parameters with `rate` times the learning rate, and another decay if it is given; see [`Optimizer::group`].
    #[must_use]
    pub fn group(mut self, pattern: impl Into<String>, rate: f32, decay: Option<f32>) -> Self {
        self.groups.push(ParameterGroup { pattern: pattern.into(), rate, decay });
        self
    }

    /// Any option of `phalanx train` that is not about its models and data, for what has no method here.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(TrainConfig) -> TrainConfig) -> Self {
        self.config = change(self.config);
        self
    }

    /// Builds and compiles the model: alone or, if a launcher such as `mpirun` has started this process as one of several,
    /// together with the others. A process can be part of one job only.
    pub fn start(self) -> Result<TrainingRun<'a>, Error> {
        let config = self.resolve()?;
        let say = Arc::new(|message: &str| {
            // In one piece: several ranks may report into the same stream at the same time.
            let line = format!("error: {message}\n");
            eprint!("{line}");
        });
        match connect(Duration::from_secs(config.stall_seconds), say)? {
            Some(connection) => self.start_in(connection),
            None => self.start_alone(config),
        }
    }

    fn start_alone(self, config: TrainConfig) -> Result<TrainingRun<'a>, Error> {
        config.check_alone(&self.flags.names().collect::<Vec<_>>())?;
        let built = self.build(&config)?;
        let settings = config.measured_settings(&built.graph, &mut |_, _, _| ())?;
        let settings = self.with_goal(settings, &config, &built);
        deal_devices(settings.plan.mesh.devices(), 1, config.devices_per_rank)?;
        let program = config.program_cache().compile(&built.graph, &settings)?;
        let trainer = Trainer::of_program(&built.graph, program, &settings)?;
        TrainingRun::begin(Start {
            model: self.model,
            name: self.name,
            described: self.described,
            built,
            config,
            settings,
            trainer,
            ranks: None,
        })
    }

    /// The same as one rank of a job that is connected already.
    pub fn start_in(self, connection: Connection) -> Result<TrainingRun<'a>, Error> {
        let started = self.join(&connection);
        match started {
            Ok((start, job)) => {
                let start =
                    Start { ranks: start.ranks.map(|(ranks, _)| (ranks, Some((job, connection)))), ..start };
                TrainingRun::begin(start)
            }
            Err(error) => connection.fail(&error.to_string(), 1),
        }
    }

    fn join(self, connection: &Connection) -> Result<(Start<'a>, Job), Error> {
        let config = self.resolve()?.for_ranks(connection.network.size());
        let job = Job::start(connection, config.rank_options()?)?;
        let config = TrainConfig { seed: shared::seed(&*job.network, config.seed)?, ..config };
        let built = self.build(&config)?;
        let (settings, topology) = config.settings_in_job(&job, &built.graph, &mut |_, _, _| ())?;
        let settings = self.with_goal(settings, &config, &built);
        config.pin.apply(topology.own_cores());
        let (trainer, certificate) = job.trainer(&built.graph, &settings, &config.program_cache())?;
        let ranks = Ranks::new(&config, &job, topology, certificate, trainer.session(), None);
        job.phases.enter("preparing the first step");
        let (model, name, described, ranks) = (self.model, self.name, self.described, Some((ranks, None)));
        Ok((Start { model, name, described, built, config, settings, trainer, ranks }, job))
    }

    /// The configuration: flags win over what the program says.
    fn resolve(&self) -> Result<TrainConfig, Error> {
        let names: Vec<&str> = self.flags.names().collect();
        let usual = TrainConfig::default();
        let config = match names.contains(&"optimizer") {
            // Constants of another rule do not count.
            true => {
                let config = self.config.clone().beta1(usual.beta1).beta2(usual.beta2).eps(usual.eps);
                config.momentum(usual.momentum).nesterov(usual.nesterov)
            }
            false => self.config.clone(),
        };
        let config = self.flags.set(config)?;
        config.validate()?;
        config.check_given(&names)?;
        Ok(config)
    }

    fn build(&self, config: &TrainConfig) -> Result<BuiltModel, Error> {
        self.model.training(&self.name, config.batch)
    }

    /// The settings with the whole optimizer.
    fn with_goal(&self, settings: Settings, config: &TrainConfig, built: &BuiltModel) -> Settings {
        let Goal::Train(optimizer) = settings.goal.clone() else { return settings };
        let patterns = match config.freeze {
            Some(_) => config.frozen(),
            None => self.freeze.clone(),
        };
        let frozen = patterns.into_iter().chain(built.frozen.iter().cloned());
        let optimizer = self.groups.iter().fold(
            optimizer.decays(self.decays).frozen(frozen),
            |optimizer, ParameterGroup { pattern, rate, decay }| optimizer.group(pattern, *rate, *decay),
        );
        Settings { goal: Goal::Train(optimizer), ..settings }
    }
}
