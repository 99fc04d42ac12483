//! Flags that set the options of training: a flag wins over the file, the file over the default.
//!
//! Flags are made from the library's table of options. A command names the set of options that it has; names, texts,
//! values and checks are those of the table.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use phalanx::ir::Precision;
use phalanx::train::{ConfigError, OPTIONS, OptionGroup, OptionSpec, TrainConfig};
use rustix::fs::Mode;

use crate::costs;
use crate::failure::Failure;

/// The options of a command.
pub trait OptionSet {
    /// Whether an option is one of them.
    fn has(option: &OptionSpec) -> bool;

    /// The values of options that are not given.
    fn defaults() -> TrainConfig {
        TrainConfig::default()
    }
}

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
pub struct Options<S> {
    given: Vec<(&'static OptionSpec, String)>,
    set: PhantomData<S>,
}

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
        config.check_given(&self.given().collect::<Vec<_>>()).map_err(phalanx::Error::from)?;
        mask_files(&config);
        let has_costs = OPTIONS.iter().any(|option| option.group == OptionGroup::Costs && S::has(option));
        if config.costs.is_none() && has_costs {
            config.costs = costs::usable_cache_file();
        }
        Ok(config)
    }

    /// A configuration with the values of flags.
    pub fn set(&self, mut config: TrainConfig) -> Result<TrainConfig, Failure> {
        for (option, text) in &self.given {
            config.set(option.name, text).map_err(phalanx::Error::from)?;
        }
        Ok(config)
    }

    /// The names of the options that were given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        self.given.iter().map(|(option, _)| option.name)
    }

    /// Whether the model was chosen or sized, other than by its context.
    pub fn sizes_model(&self) -> bool {
        self.given.iter().any(|(option, _)| option.group == OptionGroup::Model && option.name != "context")
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
        let defaults = S::defaults();
        let all = OPTIONS.iter().filter(|option| S::has(option));
        command.args(all.map(|option| flag(option, defaults.value(option.name))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: OptionSet> FromArgMatches for Options<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |option: &'static OptionSpec| match matches.value_source(option.name)? {
            ValueSource::CommandLine if option.is_switch() => Some((option, "true".to_string())),
            ValueSource::CommandLine => Some((option, matches.get_one::<String>(option.name)?.clone())),
            _ => None,
        };
        let given = OPTIONS.iter().filter(|option| S::has(option)).filter_map(value).collect();
        Ok(Options { given, set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(Self::from_arg_matches(matches)?.given);
        Ok(())
    }
}

/// Prints what a user should look at before a command begins.
pub fn warn(config: &TrainConfig) {
    config.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// The flag of an option.
fn flag(option: &'static OptionSpec, default: Option<String>) -> Arg {
    let spelled = |name: &str| name.replace('_', "-");
    let mut help = option.help.trim().trim_end_matches('.').to_string();
    let flag = Arg::new(option.name)
        .long(spelled(option.name))
        .help_heading(option.group.heading())
        .aliases(option.alias.map(spelled))
        .conflicts_with_all(option.excludes());
    if option.is_switch() {
        return flag.help(help).action(ArgAction::SetTrue);
    }
    if let Some(default) = default {
        help += &format!(" [default: {default}]");
    }
    let parser = match (option.choices)() {
        [] => ValueParser::new(|text: &str| option.check(text).map(|()| text.to_string()).map_err(wanted)),
        choices => PossibleValuesParser::new(choices).into(),
    };
    flag.help(help).value_name(option.value_name).value_parser(parser)
}

/// What a value must be; the parser names the flag and the value.
fn wanted(error: ConfigError) -> String {
    match error {
        ConfigError::Field { wanted, .. } => wanted,
        error => error.to_string(),
    }
}
