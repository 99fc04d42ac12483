//! The flags of a program that trains a model of its own.

use std::ffi::OsString;

use clap::{Args as _, Command, FromArgMatches as _};

use super::TrainingError;
use crate::train::{OptionFlags, OptionGroup, OptionSet, OptionSpec, TrainConfig};
use crate::{Error, LrSchedule};

/// The flags of `phalanx train` that are not about its models and data: `--plan`, `--devices`, `--batch`, `--checkpoint`,
/// `--resume` and others; `--help` lists them. A flag wins over what the program says.
///
/// They can be part of a program's own flags:
///
/// ```
/// #[derive(clap::Parser)]
/// struct Flags {
///     /// Where the images are
///     #[arg(long, default_value = "cifar")]
///     images: std::path::PathBuf,
///     #[command(flatten)]
///     training: phalanx::nn::Args,
/// }
///
/// # use clap::Parser;
/// let flags = Flags::parse_from(["program", "--batch", "64", "--plan", "dp2"]);
/// assert_eq!(flags.training.batch(), 64);
/// ```
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) flags: OptionFlags<OwnModel>,
}

/// Options that are not about the models and data of `phalanx train`.
#[derive(Debug)]
pub(crate) enum OwnModel {}

/// Further options, of groups that are not taken as a whole.
const MORE: [&str; 19] = [
    "steps",
    "lr",
    "lr_floor",
    "warmup",
    "lr_schedule",
    "lr_decay",
    "log_dir",
    "overwrite",
    "no_cache",
    "checkpoint",
    "every",
    "every_minutes",
    "keep",
    "resume",
    "change_precision",
    "devices_per_rank",
    "pin",
    "stall_seconds",
    "check",
];

impl OptionSet for OwnModel {
    fn has(option: &OptionSpec) -> bool {
        let groups = [OptionGroup::Step, OptionGroup::Devices, OptionGroup::Costs];
        (groups.contains(&option.group) && option.name != "lora") || MORE.contains(&option.name)
    }

    /// PyTorch's: no clipping, no decay, a constant learning rate.
    fn defaults() -> TrainConfig {
        let config = TrainConfig::default().clip(0.0).weight_decay(0.0);
        config.lr(1e-3).warmup(0).lr_schedule(LrSchedule::Constant)
    }
}

impl Args {
    /// The flags of this process; wrong ones and `--help` end it.
    pub fn parse() -> Args {
        let matches = Args::augment_args(Command::new("training")).get_matches();
        Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Flags from a list, without the name of the program: `["--plan", "dp2"]`.
    pub fn of<T: Into<OsString> + Clone>(flags: impl IntoIterator<Item = T>) -> Result<Args, TrainingError> {
        let command = Args::augment_args(Command::new("training").no_binary_name(true));
        let parsed = command.try_get_matches_from(flags).and_then(|matches| Args::from_arg_matches(&matches));
        parsed.map_err(|error| TrainingError::Flags { problem: error.to_string().trim_end().to_string() })
    }

    /// Options by their names in files, with values as a user writes them: `[("plan", "dp2")]`.
    pub fn of_options<N: AsRef<str>, V: Into<String>>(
        options: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Args, Error> {
        Ok(Args { flags: OptionFlags::of_options(options)? })
    }

    /// Samples in a step: `--batch`, else 16.
    pub fn batch(&self) -> usize {
        self.config().batch
    }

    /// Steps to train: `--steps`, else 400.
    pub fn steps(&self) -> u64 {
        self.config().steps
    }

    /// The configuration without what the program says. Every value was checked when it was parsed.
    fn config(&self) -> TrainConfig {
        self.flags.set(OwnModel::defaults()).unwrap_or_else(|_| OwnModel::defaults())
    }
}
