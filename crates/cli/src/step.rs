//! `phalanx step`: a few optimizer steps on a given batch, to compare with another framework.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::parity::{self, Request};
use serde::Serialize;

use crate::failure::Failure;
use crate::{flags, output};

/// Run a few AdamW steps from given weights on a given batch, to compare with PyTorch.
///
/// Writes `loss` (f32, one a step), `grad.<name>` of the first step and `weight.<name>` after the last. Every parameter
/// decays, gradients are not clipped, dropout is off.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Example:
  phalanx step --hf gpt2/ --batch batch.safetensors --steps 5 --out result.safetensors
where batch.safetensors holds `tokens` and `targets`, i64 [batch, context]."
)]
pub struct Args {
    /// Hugging Face directory with the weights to start from
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// File with `tokens` and `targets`
    #[arg(long, value_name = "FILE.safetensors")]
    batch: PathBuf,
    /// How many steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// File to write
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Constant learning rate
    #[arg(long, value_name = "F", default_value_t = 1e-3, value_parser = rate)]
    lr: f32,
    /// Decay of the first moment
    #[arg(long, value_name = "F", default_value_t = 0.9, value_parser = share)]
    beta1: f32,
    /// Decay of the second moment
    #[arg(long, value_name = "F", default_value_t = 0.95, value_parser = share)]
    beta2: f32,
    /// Added to the root of the second moment
    #[arg(long, value_name = "F", default_value_t = 1e-8, value_parser = rate)]
    eps: f32,
    /// Decoupled weight decay of every parameter
    #[arg(long, value_name = "F", default_value_t = 0.1, value_parser = rate)]
    weight_decay: f32,
    /// Parts into which the batch is cut
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    accumulate: usize,
    /// Cores to use; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    cores: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ending<'a> {
    steps: u64,
    losses: &'a [f32],
    weights_hash: String,
    out: &'a Path,
}

/// Runs the steps and writes the tensors.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    check_writable(&args.out)?;
    let request = Request {
        hf: args.hf,
        batch: args.batch,
        steps: args.steps,
        lr: args.lr,
        beta1: args.beta1,
        beta2: args.beta2,
        eps: args.eps,
        weight_decay: args.weight_decay,
        accumulate: args.accumulate,
        cores: flags::cores(args.cores)?,
    };
    let outcome = parity::run(&request)?;
    parity::write(&args.out, outcome.tensors).map_err(|error| Failure::Run(error.to_string()))?;
    let weights_hash = format!("{:032x}", outcome.weights_hash);
    if args.json {
        output::json(&Ending { steps: args.steps, losses: &outcome.losses, weights_hash, out: &args.out })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (index, loss) in outcome.losses.iter().enumerate() {
        output::line(format!("step {} loss {loss}", index + 1))?;
    }
    output::line(format!("weights_hash {weights_hash}"))?;
    output::line(format!("wrote {}", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The directory of a file to be written must exist.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match dir.is_dir() && !path.is_dir() {
        true => Ok(()),
        false => {
            let (path, dir) = (path.display(), dir.display());
            Err(Failure::Input(format!(
                "cannot write {path}: give a file in an existing directory, {dir} is none"
            )))
        }
    }
}

/// Parses a count of one or more.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}; give a whole number of at least 1")),
    }
}

/// Parses a finite number not below zero.
pub fn rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("it must be a number not below 0".into()),
    }
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("it must be at least 0 and below 1".into()),
    }
}
