//! `phalanx step`: a few optimizer steps, to compare with another framework or another plan.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::Check;
use phalanx::internals::parity::{self, Request};
use phalanx::job::Connection;
use phalanx::train::TrainConfig;
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{self, ModelFlags, PlanFlags, RankFlags};
use crate::{job, output};

/// Run a few optimizer steps: to compare with PyTorch, or one plan with another.
///
/// With --hf it starts from given weights and a given batch and writes `loss` (f32, one a step), `grad.<name>` of the first
/// step and `weight.<name>` after the last; every parameter decays, gradients are not clipped, dropout is off. Without it, it
/// trains a fresh model (GPT-2 with 4 blocks of width 128 unless told otherwise, dropout 0.1, clipping) on the embedded
/// text. The last line is the hash of all weights: it is the same for every plan.
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
    /// How many steps
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// File to write, with --hf
    #[arg(long, value_name = "FILE.safetensors", requires = "hf")]
    out: Option<PathBuf>,
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
    /// Decoupled weight decay
    #[arg(long, value_name = "F", default_value_t = 0.1, value_parser = rate)]
    weight_decay: f32,
    /// Largest gradient norm let through; 0 for no clipping. Not with --hf
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = rate, conflicts_with = "hf")]
    clip: f32,
    /// Seed of initialization, data order and dropout. Not with --hf
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "hf")]
    seed: u64,
    /// Parts into which the batch is cut
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    accumulate: usize,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    plan: PlanFlags,
    #[command(flatten)]
    ranks: RankFlags,
    /// Run every operation through the runtime's immediate mode: the same bits, slower, for comparison and debugging
    #[arg(long)]
    immediate: bool,
    /// Run every operation on one thread, in a random order that the plan allows: the same bits, or the compiler is wrong
    #[arg(long, value_name = "SEED", conflicts_with = "immediate")]
    stepped: Option<u64>,
    /// Check while it runs that no kernel reads or writes what it must not; the first that does is named and ends the
    /// run. The same bits, about 6 times slower
    #[arg(long, value_name = "WHAT", value_parser = flags::checks())]
    check: Option<Check>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ending<'a> {
    steps: u64,
    losses: &'a [f32],
    weights_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<&'a Path>,
}

/// Runs the steps, writes the tensors if there is a file for them, and prints the hash.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut config = TrainConfig::default();
    args.ranks.apply(&mut config);
    job::run(config.stall_seconds, |connection| step(args, connection))
}

fn step(args: &Args, connection: Option<&Connection>) -> Result<ExitCode, Failure> {
    let (losses, weights_hash) = match &args.hf {
        Some(hf) => given(args, hf, connection)?,
        None => fresh(args, connection)?,
    };
    if connection.is_some_and(|connection| connection.network.rank() > 0) {
        return Ok(ExitCode::SUCCESS);
    }
    let out = args.out.as_deref();
    if args.json {
        output::json(&Ending { steps: args.steps, losses: &losses, weights_hash, out })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (index, loss) in losses.iter().enumerate() {
        output::line(format!("step {} loss {loss}", index + 1))?;
    }
    output::line(format!("weights_hash {weights_hash}"))?;
    out.map_or(Ok(()), |out| output::line(format!("wrote {}", out.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Steps from given weights on a given batch.
fn given(args: &Args, hf: &Path, connection: Option<&Connection>) -> Result<(Vec<f32>, String), Failure> {
    if args.model.has_size() {
        let hf = hf.display();
        return Err(Failure::Input(format!(
            "--hf {hf} gives the model; leave out the flags that set its sizes"
        )));
    }
    let (Some(batch), Some(out)) = (&args.batch, &args.out) else {
        return Err(Failure::Input("--hf needs --batch FILE.safetensors with `tokens` and `targets`".into()));
    };
    check_writable(out)?;
    let mut config = TrainConfig { accumulate: args.accumulate, ..TrainConfig::default() };
    args.plan.apply(&mut config)?;
    args.ranks.apply(&mut config);
    config.immediate |= args.immediate;
    config.stepped = args.stepped.or(config.stepped);
    config.check = args.check.unwrap_or(config.check);
    let Args { steps, lr, beta1, beta2, eps, weight_decay, .. } = *args;
    if args.ranks.certificate().is_some() {
        return Err(Failure::Input("--certificate goes with a fresh model: leave out --hf".into()));
    }
    let (hf, batch) = (hf.to_path_buf(), batch.into());
    let job = job::join(&mut config, connection)?;
    let request = Request { hf, batch, steps, lr, beta1, beta2, eps, weight_decay, config };
    let outcome = parity::run(&request, job.as_ref())?;
    if job.is_none_or(|job| job.network.rank() == 0) {
        parity::write(out, outcome.tensors).map_err(|error| Failure::Run(error.to_string()))?;
    }
    Ok((outcome.losses, format!("{:032x}", outcome.weights_hash)))
}

/// Steps of a fresh model on the embedded text.
fn fresh(args: &Args, connection: Option<&Connection>) -> Result<(Vec<f32>, String), Failure> {
    let sequences = args.batch.as_deref().map_or(Ok(16), at_least_one);
    let batch = sequences.map_err(|error| Failure::Input(format!("--batch without --hf: {error}")))?;
    let Args { steps, lr, beta1, beta2, eps, weight_decay, clip, seed, accumulate, .. } = *args;
    let mut config = TrainConfig {
        layers: Some(4),
        heads: Some(8),
        width: Some(128),
        context: Some(64),
        dropout: 0.1,
        leaves_feature: 8,
        lr_floor: 1.0,
        warmup: 0,
        ..TrainConfig {
            steps,
            batch,
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            clip,
            seed,
            accumulate,
            ..TrainConfig::default()
        }
    };
    args.model.apply(&mut config);
    args.plan.apply(&mut config)?;
    args.ranks.apply(&mut config);
    config.immediate |= args.immediate;
    config.stepped = args.stepped.or(config.stepped);
    config.check = args.check.unwrap_or(config.check);
    let mut run = job::start(config, connection)?;
    job::write_certificate(&run, args.ranks.certificate())?;
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

fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("it must be at least 0 and below 1".into()),
    }
}
