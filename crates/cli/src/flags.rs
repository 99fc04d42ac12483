//! Flags that set the options of training: a flag wins over the file, the file over the default.
//!
//! The library makes flags from its table of options. A command names the set of options that it has.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use phalanx::ir::Precision;
use phalanx::train::{OPTIONS, OptionFlags, OptionGroup, OptionSet, OptionSpec, TrainConfig};
use rustix::fs::Mode;

use crate::costs;
use crate::failure::Failure;

/// Names sets of options by their groups and the names of further options.
macro_rules! option_sets {
    ($($(#[$doc:meta])* $set:ident: [$($group:ident),*] [$($name:literal),*] $($defaults:expr)?;)*) => {
        $(
            $(#[$doc])*
            pub enum $set {}

            impl OptionSet for $set {
                fn has(option: &OptionSpec) -> bool {
                    let groups: &[OptionGroup] = &[$(OptionGroup::$group),*];
                    let names: &[&str] = &[$($name),*];
                    groups.contains(&option.group) || names.contains(&option.name)
                }
                $(fn defaults() -> TrainConfig {
                    $defaults
                })?
            }
        )*
    };
}

option_sets! {
    /// All options: `train`.
    AllOptions: [Model, Step, Devices, Costs, Run, Watching, Checkpoints, Ranks, Debugging] [];
    /// What a step is made of and by which times it is scheduled: `plan`, `profile`, `costs`, `bench overlap`.
    PlannedStep: [Model, Step, Devices, Costs] [];
    /// What a step is made of, and what a run of it takes unless it says otherwise: `compile`.
    CompiledRun: [Model, Step, Devices, Costs] [
        "hf", "steps", "lr", "lr_floor", "warmup", "lr_schedule", "lr_decay", "data", "data_field", "chat_template",
        "mask_prompt", "data_cache", "tokenizer", "umask", "no_cache"];
    /// What is not compiled: `run`.
    ArtifactRun: [Run, Watching, Checkpoints, Ranks, Debugging] [];
    /// What a step is made of: `explain`.
    CompiledStep: [Model, Step, Devices] [];
    /// The optimizer and what training depends on beside it: `ckpt import`.
    Optimizer: [Step] [
        "context", "dropout", "precision", "steps", "lr", "lr_floor", "warmup", "lr_schedule", "lr_decay", "umask"];
    /// What is written of a checkpoint: `ckpt export`.
    Exported: [] ["save_dtype", "umask"];
    /// Permissions of what is written: `data tokenize`.
    FileMask: [] ["umask"];
    /// `step`: its batch may be a file, and its learning rate is constant.
    FewSteps: [Model, Devices, Ranks, Debugging]
        ["steps", "lr", "beta1", "beta2", "eps", "weight_decay", "clip", "seed", "accumulate", "freeze", "lora",
            "no_cache", "umask"]
        TrainConfig::default()
            .layers(Some(4)).heads(Some(8)).width(Some(128)).context(Some(64)).dropout(0.1)
            .steps(10).lr(1e-3).lr_floor(1.0).warmup(0);
    /// `bench checkpoints`: the model of `bench train`.
    SavedTraining: [Model, Step, Devices] []
        TrainConfig::default().layers(Some(6)).heads(Some(6)).width(Some(384)).context(Some(256)).batch(8);
    /// `bench train`: its model has flags of its own.
    FusedTraining: [] ["cores", "fusion", "precision"];
    /// How many cores are used: `doctor` and measurements.
    Cores: [] ["cores"];
    /// How a model is evaluated: `generate`.
    Inference: [] ["cores", "precision"];
    /// `bench precision`: what it compares with f32.
    RoundedTraining: [] ["cores", "precision"] TrainConfig::default().precision(Precision::Bf16);
    /// How sums are cut and products computed: `opt`.
    Blocks: [] ["blocks_batch", "blocks_feature", "blocks_sequence", "precision", "seed"];
}

/// The flags of a set of options that were given, with their values.
#[derive(Clone, Debug)]
pub struct Options<S>(OptionFlags<S>);

/// From now on what this process writes has the permissions that `config` asks for.
pub fn mask_files(config: &TrainConfig) {
    if let Some(mask) = config.file_mask() {
        rustix::process::umask(Mode::from_raw_mode(mask));
    }
}

impl<S: OptionSet> Options<S> {
    /// The configuration: the values of flags, else those of the file, else the defaults. From then on what this process
    /// writes has the permissions that it asks for.
    pub fn config(&self, file: Option<&PathBuf>) -> Result<TrainConfig, Failure> {
        let read = |path: &PathBuf| TrainConfig::read(path);
        let config = file.map_or_else(|| Ok(S::defaults()), read).map_err(phalanx::Error::from)?;
        let mut config = self.set(config)?;
        if file.is_none() {
            config = config.with_zoo_sizes(&self.given().collect::<Vec<_>>());
        }
        config.check_given(&self.given().collect::<Vec<_>>()).map_err(phalanx::Error::from)?;
        mask_files(&config);
        let has_costs = OPTIONS.iter().any(|option| option.group == OptionGroup::Costs && S::has(option));
        if config.costs.is_none() && has_costs {
            config.costs = costs::usable_cache_file();
        }
        Ok(config)
    }

    /// A configuration with the values of flags.
    pub fn set(&self, config: TrainConfig) -> Result<TrainConfig, Failure> {
        Ok(self.0.set(config).map_err(phalanx::Error::from)?)
    }

    /// The names of the options that were given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        self.0.names()
    }

    /// Whether the model was chosen or sized, other than by its context.
    pub fn sizes_model(&self) -> bool {
        let mut given = self.0.given().iter();
        given.any(|(option, _)| option.group == OptionGroup::Model && option.name != "context")
    }
}

impl Options<Cores> {
    /// The number of cores to use.
    pub fn count(&self) -> Result<usize, Failure> {
        let config = self.config(None)?;
        warn(&config);
        Ok(config.core_count())
    }
}

impl<S: OptionSet> Args for Options<S> {
    fn augment_args(command: Command) -> Command {
        OptionFlags::<S>::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        OptionFlags::<S>::augment_args_for_update(command)
    }
}

impl<S: OptionSet> FromArgMatches for Options<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        OptionFlags::from_arg_matches(matches).map(Options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Prints what a user should look at before a command begins.
pub fn warn(config: &TrainConfig) {
    config.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
}
