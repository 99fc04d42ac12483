//! `phalanx bench precision`: how far training in bf16 is from PyTorch in f32.

use std::process::ExitCode;

use phalanx_bench::{Distance, PrecisionBench, PrecisionResult, precision};

use crate::failure::Failure;
use crate::flags::{Options, RoundedTraining};
use crate::output;

/// Train a small GPT-2 in a precision and compare its losses with those of PyTorch, which are recorded.
///
/// 4 layers, width 128, batch 32 x 64 bytes of text, AdamW. PyTorch ran it in f32 and under autocast to bf16; the first is
/// what losses are compared with, the second how far a usual recipe is from it. At some steps loss and gradients are also
/// compared with our own f32 at the same weights. Exit code 1 if a bar is missed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  phalanx bench precision\n  phalanx bench precision --precision bf16-pair --steps 40 --json"
)]
pub struct PrecisionArgs {
    #[command(flatten)]
    options: Options<RoundedTraining>,
    /// Steps to train, at most 500
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=500))]
    steps: u64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Trains, compares and prints.
pub fn run(args: &PrecisionArgs) -> Result<ExitCode, Failure> {
    let config = args.options.config(None)?;
    let steps = args.steps as usize;
    let (precision_of, cores) = (config.precision, config.core_count());
    let result = precision(&PrecisionBench { precision: precision_of, steps, cores })?;
    match args.json {
        true => output::json(&result)?,
        false => lines(&result).into_iter().try_for_each(output::line)?,
    }
    Ok(if result.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lines(result: &PrecisionResult) -> Vec<String> {
    let PrecisionResult { bench, distance, autocast, equal_weights, missed, .. } = result;
    let (steps, cores) = (output::count(bench.steps, "step"), output::count(bench.cores, "core"));
    let mut lines = vec![
        format!("difference of losses from PyTorch in f32, {steps}, {cores}"),
        format!("{:20}{:>10}{:>12}{:>12}", "", "largest", "mean", "last 50"),
        row(bench.precision.name(), distance),
        row("PyTorch autocast", autocast),
        "against f32 with the weights before a step".to_string(),
    ];
    for found in equal_weights {
        let (step, loss, cosine) = (format!("  step {}", found.step + 1), found.loss, found.cosine);
        lines.push(format!("{step:20}{loss:>10.2e}  cosine of gradients {cosine:.6}"));
    }
    match missed.is_empty() {
        true => lines.push("all bars are kept".into()),
        false => lines.extend(missed.iter().map(|bar| format!("missed: {bar}"))),
    }
    lines
}

fn row(name: &str, distance: &Distance) -> String {
    let Distance { largest, mean, last } = distance;
    format!("  {name:18}{largest:>10.2e}{mean:>12.2e}{last:>12.2e}")
}

#[cfg(test)]
mod tests {
    use phalanx::ir::Precision;
    use phalanx_bench::EqualWeights;

    use super::*;

    #[test]
    fn people_see_both_distances_and_what_is_missed() {
        let bench = PrecisionBench { precision: Precision::Bf16, steps: 40, cores: 1 };
        let result = PrecisionResult {
            bench,
            distance: Distance { largest: 2e-3, mean: 1e-4, last: 5e-5 },
            autocast: Distance { largest: 1e-3, mean: 2e-4, last: 6e-5 },
            equal_weights: vec![EqualWeights { step: 0, loss: 1.5e-4, cosine: 0.999_961 }],
            losses: Vec::new(),
            missed: vec!["a loss differs".into()],
        };
        let expected = "\
difference of losses from PyTorch in f32, 40 steps, 1 core
                       largest        mean     last 50
  bf16                 2.00e-3     1.00e-4     5.00e-5
  PyTorch autocast     1.00e-3     2.00e-4     6.00e-5
against f32 with the weights before a step
  step 1               1.50e-4  cosine of gradients 0.999961
missed: a loss differs";
        assert_eq!(lines(&result).join("\n"), expected);
    }
}
