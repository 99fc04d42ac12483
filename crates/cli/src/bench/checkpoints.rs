//! `phalanx bench checkpoints`: what saving a run costs.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_bench::{Beside, Writing, checkpoint_writing, checkpointed_training};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Options, SavedTraining};
use crate::output;
use crate::step::at_least_one;
use crate::stop;

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
    let path = scratch.0.clone();
    stop::on_each(move || {
        // A file that is being written may come back in between.
        while fs::remove_dir_all(&path).is_err() && path.exists() {}
        std::process::exit(i32::from(stop::STOPPED));
    })?;
    let writing = checkpoint_writing(&config, &scratch.0, args.rounds)?;
    if !args.json {
        output::line(writing_text(&writing))?;
    }
    let training = checkpointed_training(&config, &scratch.0, args.every, args.rounds)?;
    match args.json {
        true => output::json(&json!({ "every": args.every, "training": training, "writing": writing })),
        false => output::line(training_text(args.every, &training)),
    }
}

fn writing_text(Writing { bytes, mb_per_s }: &Writing) -> String {
    let size = output::bytes(*bytes);
    format!("MB/s of writing a checkpoint of {size}\n{}", rows(["checkpoint", "plain file"], mb_per_s))
}

fn training_text(every: u64, training: &Beside) -> String {
    let rows = rows(["with", "without"], training);
    format!("tokens/s of training, a checkpoint every {every} steps\n{rows}")
}

fn rows([name, reference_name]: [&str; 2], beside: &Beside) -> String {
    let row = |name: &str, rates: &[f64]| {
        let rates: String = rates.iter().map(|rate| format!("{rate:8.0}")).collect();
        format!("  {name:12}{rates}\n")
    };
    let (median, best) = (beside.median_ratio, beside.best_ratio);
    row(name, &beside.rates)
        + &row(reference_name, &beside.reference)
        + &format!("  ratio of a round {median:.3} (median), of the bests {best:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside() -> Beside {
        Beside {
            rates: vec![990.0, 1980.4],
            reference: vec![1000.0, 2000.0],
            median_ratio: 0.9901,
            best_ratio: 0.9902,
        }
    }

    #[test]
    fn people_get_the_rates_of_every_round_and_two_ratios() {
        let writing = Writing { bytes: 3 << 20, mb_per_s: beside() };
        let expected = "\
MB/s of writing a checkpoint of 3.0 MiB
  checkpoint       990    1980
  plain file      1000    2000
  ratio of a round 0.990 (median), of the bests 0.990";
        assert_eq!(writing_text(&writing), expected);
        let expected = "\
tokens/s of training, a checkpoint every 20 steps
  with             990    1980
  without         1000    2000
  ratio of a round 0.990 (median), of the bests 0.990";
        assert_eq!(training_text(20, &beside()), expected);
    }

    #[test]
    fn programs_get_the_bytes_beside_the_rates() {
        let expected = json!({
            "bytes": 5, "rates": [990.0, 1980.4], "reference": [1000.0, 2000.0],
            "median_ratio": 0.9901, "best_ratio": 0.9902,
        });
        assert_eq!(json!(Writing { bytes: 5, mb_per_s: beside() }), expected);
    }
}
