//! `phalanx bench`: how fast this machine multiplies, trains, compiles, runs small tasks, copies and saves.

mod anchors;
mod checkpoints;
mod conv;
mod copies;
mod launches;
mod model;
mod overlap;
mod precision;
mod ranks;
mod tasks;

use std::process::ExitCode;

use clap::Subcommand;
use phalanx::Pin;
use phalanx::internals::roofline::fma_peak;
use phalanx::ir::Precision;
use phalanx_bench::peer::{OPEN_BLAS, OpenBlas};
use phalanx_bench::{self as bench, COMPILE_SIZES, CompileBench, CompileResult, Exchange};
use phalanx_bench::{GemmBench, GemmResult, KernelTime, TrainBench, TrainResult};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Cores, FusedTraining, Options};
use crate::output;
use crate::step::at_least_one;
use anchors::AnchorsArgs;
use checkpoints::CheckpointsArgs;
use conv::ConvArgs;
use copies::CopiesArgs;
use launches::LaunchesArgs;
use model::ModelArgs;
use overlap::OverlapArgs;
use precision::PrecisionArgs;
use ranks::RanksArgs;
use tasks::TasksArgs;

/// Measure matrix products, convolutions, training steps, checkpoints, the compiler, small tasks, copies, launches of kernels, hidden
/// communication, ranks, or what another precision does to losses; compare simulated steps with published ones.
#[derive(Subcommand)]
pub enum Command {
    Gemm(GemmArgs),
    Conv(ConvArgs),
    Train(TrainArgs),
    Model(ModelArgs),
    Checkpoints(Box<CheckpointsArgs>),
    Compile(CompileArgs),
    Anchors(AnchorsArgs),
    Tasks(TasksArgs),
    Copies(CopiesArgs),
    Launches(LaunchesArgs),
    Overlap(Box<OverlapArgs>),
    Precision(PrecisionArgs),
    Pingpong(RanksArgs),
    Allreduce(RanksArgs),
    Alltoall(RanksArgs),
}

/// Time the compiler, from a GPT-2's graph to the program of all devices, on one core.
///
/// Without a plan it measures a table of sizes that grows to 96 blocks on 512 devices.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  phalanx bench compile --plan dp4-tp4-pp4 --devices 64 --layers 48")]
pub struct CompileArgs {
    /// A preset such as dp4-tp4-pp4
    #[arg(long, value_name = "PRESET", requires = "devices")]
    plan: Option<String>,
    /// Devices of the plan
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "plan")]
    devices: Option<usize>,
    /// Transformer blocks
    #[arg(long, value_name = "N", default_value = "48", value_parser = at_least_one, requires = "plan")]
    layers: usize,
    /// Print lines of JSON: one a size
    #[arg(long)]
    json: bool,
}

/// Time our matrix product next to OpenBLAS.
///
/// Cubes and the shapes of a transformer, both libraries in turns in one process; the ratio is of best times, above 1
/// where ours is faster.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = "Example:\n  phalanx bench gemm --cores 1")]
pub struct GemmArgs {
    #[command(flatten)]
    cores: Options<Cores>,
    /// How often each product is timed
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_one)]
    rounds: usize,
    /// Into how many reduction blocks sums over features are cut: a power of two up to 128
    #[arg(long, value_name = "N", default_value = "1", value_parser = blocks)]
    blocks: usize,
    /// How operands are read and sums added: f32, bf16 or bf16-pair; the peer and the peak are always of f32
    #[arg(long, value_name = "P", default_value = "f32")]
    precision: Precision,
    /// The OpenBLAS to load; libopenblas.so.0 if there is one
    #[arg(long, value_name = "PATH")]
    blas: Option<String>,
    /// Only shapes whose text contains this, for example 'weight' or '2048x384'
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print lines of JSON: one a product, then a summary
    #[arg(long)]
    json: bool,
}

/// Time training steps of a GPT-2 on random tokens, AdamW.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  phalanx bench train --json --cores 1\n  phalanx bench train --wide --steps 5"
)]
pub struct TrainArgs {
    /// Transformer blocks [default: 6, wide 12]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    layers: Option<usize>,
    /// Attention heads [default: 6, wide 12]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    heads: Option<usize>,
    /// Features of the residual stream [default: 384, wide 768]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    width: Option<usize>,
    /// Tokens in a sequence
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one)]
    context: usize,
    /// Sequences in a step [default: 8, wide 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    batch: Option<usize>,
    /// Tokens the model knows
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one)]
    vocab: usize,
    /// Steps to time
    #[arg(long, value_name = "N", default_value = "20", value_parser = at_least_one)]
    steps: usize,
    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 3)]
    warmup_steps: usize,
    #[command(flatten)]
    options: Options<FusedTraining>,
    /// Defaults of the wide model: 12 layers, 12 heads, width 768, batch 4
    #[arg(long)]
    wide: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs a measurement.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Gemm(args) => gemm(&args)?,
        Command::Conv(args) => conv::run(&args)?,
        Command::Train(args) => train(&args)?,
        Command::Model(args) => model::run(&args)?,
        Command::Compile(args) => compile(&args)?,
        Command::Anchors(args) => anchors::run(&args)?,
        Command::Tasks(args) => tasks::run(&args)?,
        Command::Copies(args) => copies::run(&args)?,
        Command::Launches(args) => launches::run(&args)?,
        Command::Checkpoints(args) => checkpoints::run(&args)?,
        Command::Overlap(args) => overlap::run(&args)?,
        Command::Precision(args) => return precision::run(&args),
        Command::Pingpong(args) => return ranks::run(Exchange::PingPong, &args),
        Command::Allreduce(args) => return ranks::run(Exchange::AllReduce, &args),
        Command::Alltoall(args) => return ranks::run(Exchange::AllToAll, &args),
    }
    Ok(ExitCode::SUCCESS)
}

fn compile(args: &CompileArgs) -> Result<(), Failure> {
    let one = args.plan.iter().zip(args.devices).map(|(plan, devices)| (args.layers, plan.as_str(), devices));
    let one: Vec<_> = one.collect();
    let sizes = if one.is_empty() { COMPILE_SIZES } else { &one };
    if !args.json {
        output::line(format!(
            "{:>6}  {:14}{:>8}{:>10}{:>10}{:>12}  slowest stages",
            "layers", "plan", "devices", "tasks", "seconds", "us a task"
        ))?;
    }
    for &(layers, plan, devices) in sizes {
        let result = bench::compile(&CompileBench { layers, plan: plan.into(), devices })?;
        if args.json {
            output::json(&result)?;
            continue;
        }
        let mut stages = result.stages.clone();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let slowest: Vec<_> =
            stages.iter().take(3).map(|(name, seconds)| format!("{name} {seconds:.1}")).collect();
        let CompileResult { tasks, seconds, us_per_task, .. } = result;
        let slowest = slowest.join(", ");
        output::line(format!(
            "{layers:>6}  {plan:14}{devices:>8}{tasks:>10}{seconds:>10.2}{us_per_task:>12.1}  {slowest}"
        ))?;
    }
    Ok(())
}

fn train(args: &TrainArgs) -> Result<(), Failure> {
    let config = args.options.config(None)?;
    let [layers, heads, width, batch] = if args.wide { [12, 12, 768, 4] } else { [6, 6, 384, 8] };
    let result = bench::train(&TrainBench {
        layers: args.layers.unwrap_or(layers),
        heads: args.heads.unwrap_or(heads),
        width: args.width.unwrap_or(width),
        context: args.context,
        batch: args.batch.unwrap_or(batch),
        vocab: args.vocab,
        cores: config.core_count(),
        steps: args.steps,
        warmup_steps: args.warmup_steps,
        fusion: config.fusion,
        precision: config.precision,
    })?;
    if args.json { output::json(&result) } else { print_train(&result) }
}

fn print_train(result: &TrainResult) -> Result<(), Failure> {
    let TrainBench { layers, heads, width, context, batch, vocab, cores, steps, precision, .. } =
        result.bench;
    output::line(format!(
        "gpt2 {layers} layers, {heads} heads, width {width}, vocabulary {vocab}: {} parameters; {batch} x {context} \
         tokens a step, {precision}, {}, {}",
        output::grouped(result.parameters),
        output::count(cores, "core"),
        output::count(steps, "step")
    ))?;
    let rate = |rate: f64| output::grouped(rate as u64);
    let (median, best) = (rate(result.tokens_per_s), rate(result.best_tokens_per_s));
    output::line(format!("tokens/s      {median} (best {best})"))?;
    output::line(format!("ms per step   {:.1} (best {:.1})", result.ms_per_step, result.best_ms_per_step))?;
    let (gflops, peak, share) = (result.gflops, result.fma_peak_gflops, 100.0 * result.peak_share);
    output::line(format!("GFLOP/s       {gflops:.1}, {share:.0} % of the FMA peak {peak:.1}"))?;
    output::line(format!("arena         {}", output::bytes(result.peak_bytes as u64)))?;
    print_kernels(&result.kernels)
}

/// Where the time of a step went.
fn print_kernels(kernels: &[KernelTime]) -> Result<(), Failure> {
    for kernel in kernels {
        output::line(format!("{:>9.2} ms {:5.1} %  {}", kernel.ms, 100.0 * kernel.share, kernel.kernel))?;
    }
    Ok(())
}

/// A number of reduction blocks that divides every shape.
fn blocks(text: &str) -> Result<usize, String> {
    let blocks: usize = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    match blocks.is_power_of_two() && blocks <= 128 {
        true => Ok(blocks),
        false => Err(format!("{blocks} is no power of two up to 128")),
    }
}

fn gemm(args: &GemmArgs) -> Result<(), Failure> {
    let cores = args.cores.count()?;
    // Before the team starts its threads: see `OpenBlas::open`.
    let blas = match OpenBlas::open(args.blas.as_deref().unwrap_or(OPEN_BLAS), cores) {
        Ok(blas) => Some(blas),
        Err(_) if args.blas.is_none() => None,
        Err(error) => return Err(Failure::Input(format!("{error}; give --blas the path of an OpenBLAS"))),
    };
    let team = &Pin::Auto.teams(1, cores)[0];
    let peak = fma_peak(cores);
    let with = GemmBench { team, blas: blas.as_ref(), rounds: args.rounds, peak };
    if !args.json {
        let peer = if blas.is_some() { "OpenBLAS" } else { "no OpenBLAS found" };
        output::line(format!(
            "{}, FMA peak {peak:.1} GFLOP/s, {peer}; GFLOP/s at the best of the times",
            output::count(cores, "core")
        ))?;
    }
    let mut results = Vec::new();
    for shape in
        bench::shapes(args.blocks, args.precision).iter().filter(|shape| text(shape).contains(&args.filter))
    {
        let result = bench::gemm(&with, shape);
        if args.json {
            output::json(&result)?
        } else {
            print_gemm(&result)?
        }
        results.push(result);
    }
    finish_gemm(&results, &with, args.json)
}

fn finish_gemm(results: &[GemmResult], with: &GemmBench<'_>, json: bool) -> Result<(), Failure> {
    let least = |ratios: Vec<f64>| ratios.into_iter().reduce(f64::min);
    let ratio = least(results.iter().filter_map(|result| result.ratio).collect());
    let share = least(results.iter().map(|result| result.peak_share).collect());
    if json {
        let (cores, peak) = (with.team.cores(), with.peak);
        return output::json(&json!({ "summary": {
            "cores": cores, "fma_peak_gflops": peak, "least_ratio": ratio, "least_peak_share": share,
        }}));
    }
    let ratio = ratio.map_or(String::new(), |ratio| format!("least ratio {ratio:.2}, "));
    output::line(format!("{ratio}least share of the peak {:.0} %", 100.0 * share.unwrap_or(0.0)))
}

/// A shape for people.
fn text(shape: &bench::GemmShape) -> String {
    let letter = |transposed| if transposed { 'T' } else { 'N' };
    let (a, b) = (letter(shape.trans_a), letter(shape.trans_b));
    format!("{:15} {a}{b} {}x{}x{} leaves {}", shape.role, shape.m, shape.n, shape.k, shape.leaves)
}

fn print_gemm(result: &GemmResult) -> Result<(), Failure> {
    let peer = match (result.blas_gflops, result.ratio) {
        (Some(blas), Some(ratio)) => format!("   OpenBLAS {blas:7.1}   ratio {ratio:.2}"),
        _ => String::new(),
    };
    let (gflops, share) = (result.gflops, 100.0 * result.peak_share);
    output::line(format!("{:44} {gflops:7.1} ({share:3.0} % of peak){peer}", text(&result.shape)))
}
