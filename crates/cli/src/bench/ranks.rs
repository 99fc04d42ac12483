//! `phalanx bench pingpong`, `allreduce`, `alltoall`: what moves between ranks, beside MPI itself.

use std::process::ExitCode;

use phalanx::job::Connection;
use phalanx::train::TrainConfig;
use phalanx_bench::{Exchange, ExchangeRow, exchange};

use crate::failure::Failure;
use crate::step::at_least_one;
use crate::{job, output};

/// Time transfers between the ranks of a job next to direct calls of the MPI library, in turns.
///
/// ratio: how many times the library's bandwidth ours is; for small messages, its latency over ours.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx launch -n 2 -- bench pingpong
  mpirun -n 4 phalanx bench allreduce --bytes 1048576,67108864 --json")]
pub struct RanksArgs {
    /// Sizes in bytes; a table of them if absent
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = at_least_one)]
    bytes: Vec<usize>,
    /// How often each size is timed
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_one)]
    rounds: usize,
    /// Print lines of JSON: one a size
    #[arg(long)]
    json: bool,
}

/// Sizes measured if none are asked for.
fn sizes(kind: Exchange) -> Vec<usize> {
    match kind {
        Exchange::PingPong => vec![8, 1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 22, 1 << 24],
        _ => (20..=26).step_by(1).map(|power| 1 << power).collect(),
    }
}

/// Measures all sizes; rank 0 prints.
pub fn run(kind: Exchange, args: &RanksArgs) -> Result<ExitCode, Failure> {
    job::run(&TrainConfig::default(), &[], |connection| {
        let Some(Connection { network, mpi: Some(mpi), .. }) = connection else {
            let why = "this measures transfers between ranks: start it as `phalanx launch -n 2 -- bench ...`";
            return Err(Failure::Input(why.into()));
        };
        let speaks = network.rank() == 0;
        if speaks && !args.json {
            output::line(format!("{}, {} ranks", network.carrier(), network.size()))?;
            output::line(format!("{:>12}{:>12}{:>12}{:>10}{:>8}", "bytes", "us", "MPI us", "GB/s", "ratio"))?;
        }
        let sizes = if args.bytes.is_empty() { sizes(kind) } else { args.bytes.clone() };
        for bytes in sizes {
            let row = exchange(kind, bytes, args.rounds, network, mpi)?;
            match (speaks, args.json) {
                (false, _) => {}
                (true, true) => output::json(&row)?,
                (true, false) => print(&row)?,
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn print(row: &ExchangeRow) -> Result<(), Failure> {
    let ExchangeRow { bytes, us, mpi_us, gb_per_s, ratio, .. } = row;
    output::line(format!("{bytes:>12}{us:>12.2}{mpi_us:>12.2}{gb_per_s:>10.2}{ratio:>8.2}"))
}
