//! `phalanx bench anchors`: published step times beside simulated ones.

use phalanx_bench::anchors::{Anchor, CALIBRATED, all};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Compare published step times of large models on Selene with what `simulate` says of the same configurations.
///
/// One factor, the rate of matrix products, is fitted to the first row; all others are predictions. Rows with several
/// stages on a device are simulated with one, so their bubbles are larger than they were.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  phalanx bench anchors --stages 2")]
pub struct AnchorsArgs {
    /// Only rows with at most so many stages of a pipeline: more take minutes each
    #[arg(long, value_name = "N", default_value = "8")]
    stages: usize,
    /// Print lines of JSON: one a row
    #[arg(long)]
    json: bool,
}

/// Runs the comparison.
pub fn run(args: &AnchorsArgs) -> Result<(), Failure> {
    let failed = |error: phalanx::Error| Failure::from(error);
    let calibrated = all().find(|anchor| anchor.name == CALIBRATED);
    let product = calibrated.map_or(Ok(1.0), |anchor| anchor.calibrate()).map_err(failed)?;
    if !args.json {
        output::line(format!("products {product:.3} times as fast as the model says, from {CALIBRATED}"))?;
        output::line(format!(
            "{:12}{:>8}  {:14}{:>10}{:>11}{:>9}",
            "model", "devices", "plan", "published", "simulated", "error"
        ))?;
    }
    let mut errors = Vec::new();
    for anchor in all().filter(|anchor| anchor.mesh[1] <= args.stages) {
        let seconds = anchor.predict(product).map_err(failed)?;
        let error = seconds / anchor.seconds - 1.0;
        errors.push(error.abs());
        match args.json {
            true => output::json(&json!({
                "anchor": anchor, "plan": anchor.plan(), "simulated_seconds": seconds, "error": error,
            }))?,
            false => print(&anchor, seconds, error)?,
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    match args.json {
        true => output::json(&json!({ "mean_error": mean, "rows": errors.len(), "product": product })),
        false => output::line(format!("mean error {:.1} % over {} rows", 100.0 * mean, errors.len())),
    }
}

fn print(anchor: &Anchor, seconds: f64, error: f64) -> Result<(), Failure> {
    let note = match anchor.chunks {
        1 => String::new(),
        chunks => format!("  {chunks} stages on a device, simulated with one"),
    };
    output::line(format!(
        "{:12}{:>8}  {:14}{:>8.2} s{seconds:>9.2} s{:>7.1} %{note}",
        anchor.name,
        anchor.devices(),
        anchor.plan(),
        anchor.seconds,
        100.0 * error
    ))
}
