//! `phalanx step`: a few optimizer steps, to compare with another framework or another plan.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::ir::Precision;
use phalanx::job::Connection;
use phalanx::models::ModelConfig;
use phalanx::models::zoo::ZooModel;
use phalanx::train::TrainConfig;
use phalanx_bench::parity::{self, Request};
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{FewSteps, Options};
use crate::job::CertificateFlag;
use crate::train::zoo::SampledRun;
use crate::{flags, job, output};

/// Run a few optimizer steps: to compare with PyTorch, or one plan with another.
///
/// With --hf it starts from given weights and a given batch and writes `loss` (f32, one a step), `grad.<name>` of the first
/// step and `weight.<name>` after the last; every parameter decays, gradients are not clipped, dropout is off. The learning
/// rate is constant. Without it, it trains a fresh model (GPT-2 with 4 blocks of width 128 unless told otherwise, dropout
/// 0.1, clipping) on the embedded text. The last line is the hash of all weights: it is the same for every plan, and another one for each --precision.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx step --plan fsdp2-tp2 --devices 4 --json
  phalanx step --hf gpt2/ --batch batch.safetensors --steps 5 --out result.safetensors
where batch.safetensors holds `tokens` and `targets`, i64 [batch, context]."
)]
pub struct Args {
    /// Hugging Face directory with the weights to start from
    #[arg(long, value_name = "DIR", requires = "out")]
    hf: Option<PathBuf>,
    /// File with `tokens` and `targets`; without --hf the number of sequences
    #[arg(long, value_name = "FILE.safetensors|N")]
    batch: Option<String>,
    /// File to write, with --hf
    #[arg(long, value_name = "FILE.safetensors", requires = "hf")]
    out: Option<PathBuf>,
    #[command(flatten)]
    options: Options<FewSteps>,
    #[command(flatten)]
    certificate: CertificateFlag,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ending<'a> {
    steps: u64,
    losses: &'a [f32],
    weights_hash: String,
    precision: Precision,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<&'a Path>,
}

/// Runs the steps, writes the tensors if there is a file for them, and prints the hash.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.options.config(None)?;
    if job::launched().is_none_or(|launched| launched.rank == 0) {
        flags::warn(&config);
    }
    let given: Vec<_> = args.options.given().collect();
    if let Some(model) = config.zoo_model().map_err(phalanx::Error::from)? {
        return step_zoo(args, config, &given, model);
    }
    job::run(&config, &given, |connection| step(args, config.clone(), connection))
}

fn step(args: &Args, config: TrainConfig, connection: Option<&Connection>) -> Result<ExitCode, Failure> {
    let (steps, precision) = (config.steps, config.precision);
    let (losses, weights_hash) = match &args.hf {
        Some(hf) => from_weights(args, hf, config, connection)?,
        None => fresh(args, config, connection)?,
    };
    if connection.is_some_and(|connection| connection.network.rank() > 0) {
        return Ok(ExitCode::SUCCESS);
    }
    print(args, steps, precision, (&losses, weights_hash))
}

/// Steps of a model with data of its own.
fn step_zoo(
    args: &Args,
    mut config: TrainConfig,
    given: &[&str],
    model: Box<dyn ZooModel>,
) -> Result<ExitCode, Failure> {
    if args.hf.is_some() || args.certificate.certificate.is_some() {
        let why = "--hf and --certificate are for gpt2 and llama: leave them out, or use phalanx train --hf";
        return Err(Failure::Input(why.into()));
    }
    set_batch(args, &mut config)?;
    let (steps, precision) = (config.steps, config.precision);
    let mut zoo = SampledRun::of_zoo(config, given, model)?;
    let mut losses = Vec::new();
    while !zoo.run.is_done() {
        losses.push(zoo.step()?.loss);
    }
    let hash = format!("{:032x}", zoo.run.session().weights_hash()?);
    match zoo.run.rank() {
        0 => print(args, steps, precision, (&losses, hash)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn print(
    args: &Args,
    steps: u64,
    precision: Precision,
    (losses, weights_hash): (&[f32], String),
) -> Result<ExitCode, Failure> {
    let out = args.out.as_deref();
    if args.json {
        output::json(&Ending { steps, losses, weights_hash, precision, out })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (index, loss) in losses.iter().enumerate() {
        output::line(format!("step {} loss {loss}", index + 1))?;
    }
    output::line(format!("weights_hash {}", output::hash(&weights_hash, precision)))?;
    out.map_or(Ok(()), |out| output::line(format!("wrote {}", out.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Steps from given weights on a given batch.
fn from_weights(
    args: &Args,
    hf: &Path,
    mut config: TrainConfig,
    connection: Option<&Connection>,
) -> Result<(Vec<f32>, String), Failure> {
    check_weights(args, hf)?;
    let (Some(batch), Some(out)) = (&args.batch, &args.out) else {
        return Err(Failure::Input("--hf needs --batch FILE.safetensors with `tokens` and `targets`".into()));
    };
    check_writable(out)?;
    let job = job::join(&mut config, connection)?;
    let request = Request { hf: hf.to_path_buf(), batch: batch.into(), config };
    let outcome = parity::run(&request, job.as_ref())?;
    if job.is_none_or(|job| job.network.rank() == 0) {
        parity::write(out, outcome.tensors)?;
    }
    Ok((outcome.losses, format!("{:032x}", outcome.weights_hash)))
}

/// Refuses flags that do not go with weights to start from.
fn check_weights(args: &Args, hf: &Path) -> Result<(), Failure> {
    if let Ok(ModelConfig::Zoo(choice)) = phalanx::hf::read_config(hf) {
        let (hf, name) = (hf.display(), choice.name());
        return Err(Failure::Input(format!(
            "{hf} has a model of the family {name}, and `step --hf` takes models of text: use phalanx train --hf {hf}"
        )));
    }
    if args.options.sizes_model() {
        let hf = hf.display();
        return Err(Failure::Input(format!(
            "--hf {hf} gives the model; leave out the flags that set its sizes"
        )));
    }
    if let Some(name) = args.options.given().find(|name| ["clip", "seed"].contains(name)) {
        return Err(Failure::Input(format!(
            "--{name} goes with a fresh model: leave it out or leave out --hf"
        )));
    }
    match args.certificate.certificate {
        Some(_) => Err(Failure::Input("--certificate goes with a fresh model: leave out --hf".into())),
        None => Ok(()),
    }
}

/// Takes the number of samples.
fn set_batch(args: &Args, config: &mut TrainConfig) -> Result<(), Failure> {
    let Some(samples) = &args.batch else { return Ok(()) };
    let wrong = |error| Failure::Input(format!("--batch without --hf: {error}"));
    config.set("batch", samples).map_err(wrong)
}

/// Steps of a fresh model on the embedded text.
fn fresh(
    args: &Args,
    mut config: TrainConfig,
    connection: Option<&Connection>,
) -> Result<(Vec<f32>, String), Failure> {
    set_batch(args, &mut config)?;
    let mut run = job::start(config, connection, None)?;
    args.certificate.write(&run)?;
    while !run.is_done() {
        run.step()?;
    }
    Ok((run.losses().to_vec(), run.summary()?.weights_hash))
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
