//! `phalanx bench checkpoints`: what saving a run costs.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_bench::{Beside, Writing, checkpoint_writing, checkpointed_training};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Options, SavedTraining};
use crate::output;
use crate::step::at_least_one;

/// Train with checkpoints and without, in turns, and write checkpoints beside a plain file of the same bytes.
///
/// The model is that of `bench train`. Checkpoints are written while training goes on; then some are waited for, from the
/// copy of the state to the commit, which syncs files and directories. Everything is removed at the end.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  phalanx bench checkpoints --json\n  phalanx bench checkpoints --dir /scratch --rounds 9"
)]
pub struct CheckpointsArgs {
    #[command(flatten)]
    options: Options<SavedTraining>,
    /// Steps between two checkpoints
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    every: u64,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = at_least_one)]
    rounds: usize,
    /// Directory on the disk to measure; the current one if absent
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// A directory that goes with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path) -> Result<Scratch, Failure> {
        let path = dir.join(format!("bench-checkpoints-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Failure::Input(format!("--dir {}: {error}", dir.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays where its owner sees it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the measurement.
pub fn run(args: &CheckpointsArgs) -> Result<(), Failure> {
    let config = args.options.config(None)?;
    let scratch = Scratch::new(&args.dir)?;
    let writing = checkpoint_writing(&config, &scratch.0, args.rounds)?;
    if !args.json {
        print_writing(&writing)?;
    }
    let training = checkpointed_training(&config, &scratch.0, args.every, args.rounds)?;
    match args.json {
        true => output::json(&json!({ "every": args.every, "training": training, "writing": writing })),
        false => {
            output::line(format!("tokens/s of training, a checkpoint every {} steps", args.every))?;
            print("with", "without", &training)
        }
    }
}

fn print_writing(Writing { bytes, mb_per_s }: &Writing) -> Result<(), Failure> {
    output::line(format!("MB/s of writing a checkpoint of {}", output::bytes(*bytes)))?;
    print("checkpoint", "plain file", mb_per_s)
}

fn print(name: &str, reference_name: &str, beside: &Beside) -> Result<(), Failure> {
    for (name, rates) in [(name, &beside.rates), (reference_name, &beside.reference)] {
        let rates: Vec<_> = rates.iter().map(|rate| format!("{rate:8.0}")).collect();
        output::line(format!("  {name:12}{}", rates.join("")))?;
    }
    output::line(format!(
        "  ratio of a round {:.3} (median), of the bests {:.3}",
        beside.median_ratio, beside.best_ratio
    ))
}
