//! `phalanx profile`: where the time of a step goes, beside what the machine could do.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use phalanx::internals::roofline::{self, Bench, By, LaneTime, Roofline, RooflineLimit, Row};
use phalanx::job::Launched;

use crate::failure::Failure;
use crate::plan::What;
use crate::step::at_least_one;
use crate::{job, output};

/// Train a few steps on random tokens and show where their time goes, beside what the machine could do.
///
/// First the cores are measured: fused multiply-adds on registers, and adding arrays that no cache holds. No kernel can be
/// faster than its operations at the first rate and its bytes at the second; the slower of the two is its roofline.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
How to read the table:
  ms, share  time in a step, of all devices together, and its share of theirs; with the idle time shares add up to 100 %
  launches   operations in a step
  GFLOP/s    floating-point operations a second: 2 a multiply-add, 1 a function such as exp
  GB/s       bytes a second, every operand read once and every result written once
  roofline   the least time that the machine allows, as a share of the time taken: 100 % cannot be made faster on these
             cores, 25 % could be four times as fast. Above 100 %: operands were still in a cache
  bound by   what that least time is. compute: the operations; memory: the bytes; overhead: neither explains a tenth of
             the time, which goes into starting the kernel, waiting, or work that is not counted, such as random numbers
Start with what is first under `where the rest goes`: that much of the step is above the roofline. A kernel bound by memory
gets faster only by moving less, as when it is fused with another one. Idle lanes wait for other devices: `phalanx plan
overlap` tells for what.

Examples:
  phalanx profile
  phalanx profile --size small --vocab 50257 --batch 4 --by layer
  phalanx profile --plan tp --devices 2 --by operation --json
Keys of the JSON: by, steps, devices, device_peaks (cores, gflops, gb_per_s), fma_peak_gflops, ms_per_step, gflops,
peak_share, idle_ms, idle_share, rows (name, ms, share, launches, gflops, gb_per_s, roofline_share, bound_by, lost_ms),
lanes (device, beside, computing_ms, moving_ms, idle_ms)"
)]
pub struct Args {
    #[command(flatten)]
    what: What,
    /// Steps to measure
    #[arg(long, value_name = "N", default_value = "5", value_parser = at_least_one)]
    steps: usize,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: usize,
    /// What a row is
    #[arg(long, value_name = "WHAT", default_value = "kernel", value_parser = by())]
    by: By,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

fn by() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(["kernel", "layer", "operation"]).map(|name| match name.as_str() {
        "layer" => By::Layer,
        "operation" => By::Operation,
        _ => By::Kernel,
    })
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(Launched { size: ranks @ 2.., .. }) = job::launched() {
        return Err(Failure::Input(format!(
            "this is one of {ranks} ranks, and each would measure all devices at the same time: leave the launcher out, and \
             give --plan and --devices to measure several devices in one process"
        )));
    }
    let (graph, settings) = args.what.read()?;
    let (steps, warmup, by, vocab) = (args.steps, args.warmup, args.by, args.what.vocab()?);
    let roofline = roofline::measure(&graph, &settings, &Bench { steps, warmup, vocab, by })?;
    if args.json {
        output::json(&roofline)?
    } else {
        print(&roofline)?
    }
    Ok(ExitCode::SUCCESS)
}

fn print(roofline: &Roofline) -> Result<(), Failure> {
    let peaks = roofline.device_peaks;
    output::line(format!(
        "{} of {}: FMA peak {:.1} GFLOP/s, memory {:.1} GB/s{}",
        output::count(roofline.devices, "device"),
        output::count(peaks.cores, "core"),
        peaks.gflops,
        peaks.gb_per_s,
        if roofline.devices > 1 { " each" } else { "" }
    ))?;
    print_rows(roofline)?;
    if roofline.lanes.len() > 1 {
        print_lanes(&roofline.lanes)?;
    }
    let Roofline { gflops, fma_peak_gflops, peak_share, steps, .. } = roofline;
    output::line(format!(
        "\nthe step reaches {:.1} % of the FMA peak: {gflops:.1} of {fma_peak_gflops:.1} GFLOP/s, mean of {}",
        100.0 * peak_share,
        output::count(*steps, "step")
    ))?;
    print_losses(roofline)
}

/// The most rows printed.
const SHOWN: usize = 40;

fn print_rows(roofline: &Roofline) -> Result<(), Failure> {
    let shown = &roofline.rows[..roofline.rows.len().min(SHOWN)];
    let width = shown.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(10);
    let head = match roofline.by {
        By::Kernel => "kernel",
        By::Layer => "layer",
        By::Operation => "operation",
    };
    output::line(format!(
        "{head:width$}  {:>9}  {:>7}  {:>8}  {:>8}  {:>7}  {:>8}  bound by",
        "ms", "share", "launches", "GFLOP/s", "GB/s", "roofline"
    ))?;
    for row in shown {
        let Row { name, ms, launches, gflops, gb_per_s, bound_by, .. } = row;
        let (share, roofline) = (100.0 * row.share, 100.0 * row.roofline_share);
        let bound_by = limit(*bound_by);
        output::line(format!(
            "{name:width$}  {ms:>9.3}  {share:>5.1} %  {launches:>8}  {gflops:>8.1}  {gb_per_s:>7.1}  {roofline:>6.0} %  \
             {bound_by}"
        ))?;
    }
    if let rest @ 1.. = roofline.rows.len() - shown.len() {
        output::line(format!("… and {rest} shorter ones (--json has all)"))?;
    }
    let (idle, share) = (roofline.idle_ms, 100.0 * roofline.idle_share);
    output::line(format!("{:width$}  {idle:>9.3}  {share:>5.1} %", "idle"))?;
    let launches: usize = roofline.rows.iter().map(|row| row.launches).sum();
    let (ms, gflops) = (roofline.ms_per_step, roofline.gflops);
    output::line(format!("{:width$}  {ms:>9.3}  {:>7}  {launches:>8}  {gflops:>8.1}", "step", ""))
}

fn limit(limit: RooflineLimit) -> &'static str {
    match limit {
        RooflineLimit::Compute => "compute",
        RooflineLimit::Memory => "memory",
        RooflineLimit::Overhead => "overhead",
    }
}

fn print_lanes(lanes: &[LaneTime]) -> Result<(), Failure> {
    output::line(format!("\n{:16}  {:>12}  {:>12}  {:>12}", "lane", "computing ms", "moving ms", "idle ms"))?;
    for lane in lanes {
        let name = format!("dev{}{}", lane.device, if lane.beside { " transfers" } else { "" });
        let [computing, moving, idle] = [lane.computing_ms, lane.moving_ms, lane.idle_ms];
        output::line(format!("{name:16}  {computing:>12.3}  {moving:>12.3}  {idle:>12.3}"))?;
    }
    Ok(())
}

/// The most losses printed.
const LOSSES: usize = 8;

/// What of the lanes' time is above the roofline, largest first.
fn print_losses(roofline: &Roofline) -> Result<(), Failure> {
    let whole = roofline.ms_per_step * roofline.devices as f64;
    let mut losses: Vec<_> = roofline.rows.iter().map(|row| (row.name.as_str(), row.lost_ms)).collect();
    losses.push(("idle", roofline.idle_ms));
    losses.sort_by(|a, b| b.1.total_cmp(&a.1));
    let lost: f64 = losses.iter().map(|(_, ms)| ms).sum();
    output::line(format!(
        "{:.1} % of the time is at the roofline; where the rest goes:",
        100.0 - 100.0 * lost / whole
    ))?;
    for (name, ms) in losses.into_iter().take(LOSSES) {
        output::line(format!("  {ms:>9.3} ms  {:>5.1} %  {name}", 100.0 * ms / whole))?;
    }
    Ok(())
}
