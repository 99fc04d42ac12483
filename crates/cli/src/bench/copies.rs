//! `phalanx bench copies`: how close planned copies come to what the machine does without a plan.

use std::io::Write;

use phalanx_bench::{
    CopiesBench, CopiesError, CopyResult, CopyShape, REPLAYED_SIZES, ReplayedCopies, copy_sizes,
};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::step::at_least_one;

/// Time copies and sums between instances next to memcpy.
///
/// Contiguous, runs of 256 bytes that are 512 apart, transposed, and the sum of two; of 64 bytes and powers of four of
/// that. The reference is memcpy of as many bytes, for the sum a plain loop over floats, in turns on the same memory.
/// Then chains of copies as replayed graphs, on one processor. Times are medians; GB/s are of bytes written.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  phalanx bench copies --largest 1MiB --json")]
pub struct CopiesArgs {
    /// The largest copy, as 64KiB or 256MiB
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = size)]
    largest: usize,
    /// How often each copy and its reference are timed
    #[arg(long, value_name = "N", default_value = "15", value_parser = at_least_one)]
    rounds: usize,
    /// Print lines of JSON: one a copy, then one a size of the replayed copies
    #[arg(long)]
    json: bool,
}

/// A number of bytes with or without a unit.
fn size(text: &str) -> Result<usize, String> {
    const LEAST: usize = 64;
    const MOST: usize = 1 << 30;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => Some(1_usize),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = unit.and_then(|unit| digits.trim_end().parse::<usize>().ok()?.checked_mul(unit));
    bytes.filter(|bytes| (LEAST..=MOST).contains(bytes)).ok_or_else(|| {
        format!(
            "it must be a number of bytes, at least {LEAST} and at most 1GiB, such as 4096, 64KiB or 1MiB"
        )
    })
}

impl From<CopiesError> for Failure {
    fn from(error: CopiesError) -> Self {
        Failure::Run(error.to_string())
    }
}

/// Runs the measurement.
pub fn run(args: &CopiesArgs) -> Result<(), Failure> {
    let bench = CopiesBench { rounds: args.rounds };
    if !args.json {
        let head = format!("{:12}{:>12}{:>14}{:>14}", "copy", "bytes", "us", "reference us");
        output::line(format!("{head}{:>10}{:>10}{:>8}", "GB/s", "reference", "share"))?;
    }
    for shape in CopyShape::ALL {
        for bytes in copy_sizes(args.largest) {
            progress(format!("{} {}", shape.name(), output::bytes(bytes as u64)));
            let result = bench.copy(shape, bytes)?;
            if args.json { output::json(&result) } else { print_copy(&result) }?;
        }
    }
    for bytes in REPLAYED_SIZES.into_iter().filter(|&bytes| bytes <= args.largest) {
        progress(format!("replayed {}", output::bytes(bytes as u64)));
        let result = bench.replayed(bytes)?;
        if args.json { output::json(&json!({ "replayed": result })) } else { print_replayed(&result) }?;
    }
    Ok(())
}

/// Prints the name of the current measurement. Standard error may be closed.
fn progress(what: String) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn print_copy(result: &CopyResult) -> Result<(), Failure> {
    let &CopyResult { shape, bytes, ns, reference_ns, gb_per_s, reference_gb_per_s, share } = result;
    let (bytes, us, reference_us) = (output::bytes(bytes as u64), ns / 1e3, reference_ns / 1e3);
    let times = format!("{:12}{bytes:>12}{us:>14.3}{reference_us:>14.3}", shape.name());
    output::line(format!("{times}{gb_per_s:>10.1}{reference_gb_per_s:>10.1}{share:>8.2}"))
}

fn print_replayed(result: &ReplayedCopies) -> Result<(), Failure> {
    let &ReplayedCopies { bytes, copies, us, reference_us, over_us } = result;
    let (bytes, copies) = (output::bytes(bytes as u64), format!("chain of {copies}"));
    let times = format!("{copies:12}{bytes:>12}{us:>14.3}{reference_us:>14.3}");
    output::line(format!("{times}   {over_us:.3} us a copy over memcpy"))
}
