//! `phalanx bench overlap`: what hiding communication gains, predicted and measured.

use std::path::PathBuf;

use phalanx_bench::{OverlapResult, overlap};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Options, PlannedStep};
use crate::output;
use crate::preparing;
use crate::step::at_least_one;

/// Train with transfers beside computing and without, in turns, and compare with what the scheduler predicts.
///
/// Transfers are held back to --link, as on a network. Let nothing else run meanwhile.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx bench overlap                        # dp on two devices over 1ms,1Gbit
  phalanx bench overlap --plan fsdp --devices 2 --link 100us,1Gbit --rounds 5"
)]
pub struct OverlapArgs {
    /// Configuration file, as for train
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options<PlannedStep>,
    /// Steps of a round
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_one)]
    steps: usize,
    /// How often each kind is trained
    #[arg(long, value_name = "N", default_value = "3", value_parser = at_least_one)]
    rounds: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
pub fn run(args: &OverlapArgs) -> Result<(), Failure> {
    let mut config = args.options.config(args.config.as_ref())?;
    config.steps = args.steps as u64;
    config.link.get_or_insert_with(|| "1ms,1Gbit".into());
    if config.plan.is_none() {
        (config.plan, config.devices) = (Some("dp".into()), config.devices.or(Some(2)));
    }
    let results = preparing::measuring(|progress| overlap(&config, args.rounds, progress))?;
    if args.json {
        return output::json(&json!({ "plan": config.plan, "link": config.link, "results": results }));
    }
    print(&results)
}

fn print(results: &[OverlapResult]) -> Result<(), Failure> {
    output::line(format!(
        "{:8}{:>12}{:>12}{:>8}{:>12}{:>12}  rounds",
        "overlap", "predicted", "measured", "ratio", "exposed", "peak"
    ))?;
    for result in results {
        let rounds: Vec<_> = result.rounds_ms.iter().map(|ms| format!("{ms:.1}")).collect();
        output::line(format!(
            "{:8}{:>9.1} ms{:>9.1} ms{:>8.2}{:>9.1} ms{:>12}  {}",
            if result.overlap { "on" } else { "off" },
            result.predicted_ms,
            result.measured_ms,
            result.measured_ms / result.predicted_ms,
            result.exposed_ms,
            output::bytes(result.peak_bytes),
            rounds.join(" ")
        ))?;
    }
    let same = results.windows(2).all(|pair| pair[0].weights_hash == pair[1].weights_hash);
    output::line(if same {
        "the weights are the same bits"
    } else {
        "THE WEIGHTS DIFFER: please report this"
    })
}
