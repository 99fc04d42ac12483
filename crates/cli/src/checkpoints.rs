//! Flags of checkpoints, and telling people what became of them.

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use phalanx::train::{Run, TrainConfig};

/// When a run is saved and where it goes on.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Checkpoints")]
pub struct CheckpointFlags {
    /// Directory to write checkpoints to, step-00000020 and so on; all ranks of a job must see it
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints
    #[arg(long, value_name = "N", conflicts_with = "every_minutes")]
    every: Option<u64>,
    /// Minutes between two checkpoints; 10 if neither this nor --every is given. A run that ends or is stopped saves, too
    #[arg(long, value_name = "M")]
    every_minutes: Option<f64>,
    /// Checkpoints to keep; 3 if absent
    #[arg(long, value_name = "K")]
    keep: Option<usize>,
    /// Stop if a checkpoint cannot be written, instead of a warning
    #[arg(long)]
    strict: bool,
    /// Wait until each checkpoint is written, instead of writing it while training goes on
    #[arg(long)]
    sync_checkpoints: bool,
    /// Go on from the newest checkpoint that is whole, on any devices, with the same bits; from the start if there is none
    #[arg(long)]
    resume: bool,
}

impl CheckpointFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        if self.checkpoint.is_some() {
            config.checkpoint.clone_from(&self.checkpoint);
        }
        if self.every.is_some() || self.every_minutes.is_some() {
            (config.every, config.every_minutes) = (self.every, self.every_minutes);
        }
        config.keep = self.keep.unwrap_or(config.keep);
        config.strict |= self.strict;
        config.sync_checkpoints |= self.sync_checkpoints;
        config.resume |= self.resume;
    }
}

/// Tells what a run has to say, beside its progress; only the first rank of a job speaks.
pub fn tell(run: &mut Run, rank: u32, bar: &ProgressBar) {
    let notices = run.take_notices();
    if rank == 0 && !notices.is_empty() {
        bar.suspend(|| notices.iter().for_each(|notice| eprintln!("{notice}")));
    }
}
