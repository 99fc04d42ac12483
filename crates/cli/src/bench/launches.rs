//! `phalanx bench launches`: what the blocks of a kernel cost before they do anything.

use phalanx_bench as bench;

use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;
use crate::step::at_least_one;

/// Time empty launches of a kernel's blocks, and tiles handed over between two cores.
///
/// A launch is timed hot: the next one starts when the last has ended. A tile is a cache line that one half of a block
/// passes to the other through a ring in the workspace. The best round is the one in which no other process had the cores.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  phalanx bench launches --cores 2 --json")]
pub struct LaunchesArgs {
    #[command(flatten)]
    cores: Options<Cores>,
    /// How often each is timed
    #[arg(long, value_name = "N", default_value = "41", value_parser = at_least_one)]
    rounds: usize,
    /// Print lines of JSON: one a cost
    #[arg(long)]
    json: bool,
}

/// Runs the measurement.
pub fn run(args: &LaunchesArgs) -> Result<(), Failure> {
    let cores = args.cores.count()?;
    if !args.json {
        output::line(format!("{:44}{:>10}{:>12}", "", "best ns", "median ns"))?;
    }
    for cost in bench::launches(cores, args.rounds) {
        if args.json {
            output::json(&cost)?;
        } else {
            output::line(format!("{:44}{:>10.0}{:>12.0}", cost.what, cost.best_ns, cost.median_ns))?;
        }
    }
    Ok(())
}
