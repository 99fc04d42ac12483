//! `phalanx compile`: a training run, compiled into a directory.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::artifact::Artifact;
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{CompiledRun, Options};
use crate::{flags, output, starting};

/// Compile a training run into a directory that `phalanx run` trains, here or elsewhere.
///
/// The directory holds all that a run needs but its data: the model, the plan, the compiled steps for training and
/// evaluating, times of kernels, and the proof that ranks cannot deadlock. It runs in one process and in jobs of up to --ranks
/// processes, with the bits of `phalanx train`.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx compile --plan dp2-tp2 --out step
  phalanx run step --steps 100
  phalanx launch -n 4 -- run step --steps 100      # the same bits
  phalanx artifact show step"
)]
pub struct Args {
    /// Configuration file, as for train
    config: Option<PathBuf>,
    /// Directory to write; it must not be there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The most processes that are to share the devices; one for each device if absent
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    #[command(flatten)]
    options: Options<CompiledRun>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Compiles and writes.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.options.config(args.config.as_ref())?;
    flags::warn(&config);
    if args.out.exists() {
        let out = args.out.display();
        return Err(Failure::Input(format!("{out} is there already: choose another directory with --out")));
    }
    let artifact = starting::shown(|progress| Artifact::compile(config, args.ranks, progress))?;
    artifact.write(&args.out)?;
    let (settings, out) = (artifact.settings(), args.out.display());
    if args.json {
        let (devices, ranks) = (settings.devices, settings.ranks);
        output::json(
            &json!({ "out": args.out, "hash": artifact.hash(), "devices": devices, "ranks": ranks }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let devices = output::count(settings.devices, "device");
    let ranks = match settings.ranks {
        1 => "one process".to_string(),
        ranks => format!("1 to {ranks} processes"),
    };
    output::line(format!("{out} holds a run on {devices}, for {ranks}: phalanx run {out}"))?;
    output::line(format!("hash {}", artifact.hash()))?;
    Ok(ExitCode::SUCCESS)
}
