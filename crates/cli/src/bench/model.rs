//! `phalanx bench model`: training steps of models of the zoo.

use clap::builder::PossibleValuesParser;
use phalanx_bench::{self as bench, MEASURED_MODELS, ModelBench, ModelResult};

use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;
use crate::step::at_least_one;

/// Time training steps of a model of the zoo on its own data, AdamW, f32.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  phalanx bench model resnet18 --cores 1\n  phalanx bench model dlrm --json"
)]
pub struct ModelArgs {
    /// The model
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(MEASURED_MODELS.iter().map(|model| model.name)))]
    name: String,
    /// Samples in a step [default: the model's own]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    batch: Option<usize>,
    /// Steps to time
    #[arg(long, value_name = "N", default_value = "10", value_parser = at_least_one)]
    steps: usize,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup_steps: usize,
    #[command(flatten)]
    cores: Options<Cores>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
pub fn run(args: &ModelArgs) -> Result<(), Failure> {
    let measured = MEASURED_MODELS.iter().find(|model| model.name == args.name);
    let measured = measured.expect("the names are those of the models");
    let result = bench::model(
        measured,
        &ModelBench {
            batch: args.batch.unwrap_or(measured.batch),
            cores: args.cores.count()?,
            steps: args.steps,
            warmup_steps: args.warmup_steps,
        },
    )?;
    if args.json { output::json(&result) } else { print(&result) }
}

fn print(result: &ModelResult) -> Result<(), Failure> {
    let ModelBench { batch, cores, steps, .. } = result.bench;
    let (cores, steps) = (output::count(cores, "core"), output::count(steps, "step"));
    output::line(format!("{}: {batch} samples a step, {cores}, {steps}", result.model))?;
    output::line(format!("samples/s     {:.1}", result.samples_per_s))?;
    output::line(format!("ms per step   {:.1} (best {:.1})", result.ms_per_step, result.best_ms_per_step))?;
    output::line(format!("arena         {}", output::bytes(result.peak_bytes as u64)))?;
    super::print_kernels(&result.kernels)
}
