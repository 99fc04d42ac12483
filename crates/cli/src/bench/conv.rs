//! `phalanx bench conv`: convolutions next to matrix products of the same size.

use phalanx::Pin;
use phalanx_bench::{self as bench, ConvBench, ConvResult};

use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;
use crate::step::at_least_one;

/// Time convolutions of ResNets, forward and backward, next to our matrix products of the same size.
///
/// 16 images of 64 by 64 at the entrance; sums have 8 reduction blocks. The share is of best times.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  phalanx bench conv --cores 1 --json")]
pub struct ConvArgs {
    #[command(flatten)]
    cores: Options<Cores>,
    /// How often each is timed
    #[arg(long, value_name = "N", default_value = "10", value_parser = at_least_one)]
    rounds: usize,
    /// Print lines of JSON: one a kernel
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
pub fn run(args: &ConvArgs) -> Result<(), Failure> {
    let cores = args.cores.count()?;
    let team = &Pin::Auto.teams(1, cores)[0];
    if !args.json {
        let cores = output::count(cores, "core");
        output::line(format!(
            "{cores}; GFLOP/s at the best of the times, and of a matrix product of that size"
        ))?;
    }
    let mut printed = Ok(());
    bench::convolutions(&ConvBench { team, rounds: args.rounds }, |result| {
        if printed.is_ok() {
            printed = if args.json { output::json(&result) } else { print(&result) };
        }
    });
    printed
}

fn print(result: &ConvResult) -> Result<(), Failure> {
    let ConvResult { layer, role, gflops, matmul_gflops, share } = result;
    output::line(format!("{layer:30} {role:16} {gflops:7.1} {matmul_gflops:7.1}   share {share:.2}"))
}
