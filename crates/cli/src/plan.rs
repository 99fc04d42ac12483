//! `phalanx plan`: write plans, and see what they do.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::internals::layout::{DeviceRow, Layout, MovementRow, Part, TensorRow};
use phalanx::internals::overlap::Overview;
use phalanx::models::ModelConfig;
use phalanx::pipeline;
use phalanx::plan::{PRESETS, left_whole};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Options, PlannedStep};
use crate::output;
use crate::overlap::{self, Drawings};
use crate::{flags, starting};

/// Write plans, and see how they lay a model out.
#[derive(clap::Subcommand)]
pub enum Command {
    Show(ShowPlan),
    Overlap(PlanOverlap),
    Write(Write),
    Presets(Presets),
}

/// List the presets
#[derive(clap::Args)]
pub struct Presets {
    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Show how every tensor lies on the devices, what moves in a step, and each device's peak memory.
///
/// Nothing runs: this is the compiler's own account, and the arenas of a run have exactly these sizes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx plan show --plan fsdp --devices 4
  phalanx plan show --plan tp2-pp2 --layers 2 --all
  phalanx plan write --plan dp2-tp2 > my.toml && phalanx plan show --plan my.toml")]
pub struct ShowPlan {
    #[command(flatten)]
    what: What,
    /// Show every value, not only parameters and inputs
    #[arg(long)]
    all: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Show how much of a step's communication is hidden behind computing, for every transfer and in all, and what keeps the
/// rest from being hidden.
///
/// Nothing runs: the figures are those of the scheduler's simulation. With --link devices are as far apart as on a network.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx plan overlap --plan fsdp --devices 4 --link 1ms,1Gbit
  phalanx plan overlap --plan dp --devices 8 --link 50us,10Gbit --memory 64MiB --report step.html
  phalanx plan overlap --plan dp2-tp2 --link 10us,25Gbit --trace step.json  # open in ui.perfetto.dev")]
pub struct PlanOverlap {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    drawings: Drawings,
    /// Show every transfer, in the order of the step, not only those that are exposed most
    #[arg(long)]
    all: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Write a preset's plan as a TOML file, to be read, changed and used with --plan.
#[derive(clap::Args)]
pub struct Write {
    #[command(flatten)]
    what: What,
    /// File to write; standard output if absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one line of JSON: the plan's name, its devices and its text
    #[arg(long)]
    json: bool,
}

/// The model and the plan.
#[derive(clap::Args)]
pub struct What {
    /// Configuration file, as for train
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options<PlannedStep>,
}

impl What {
    /// Tokens the model knows. Every id and label of a model with data of its own can be 0 or 1.
    pub fn vocab(&self) -> Result<usize, Failure> {
        let config = self.options.config(self.config.as_ref())?;
        let is_zoo = config.zoo_model().map_err(phalanx::Error::from)?.is_some();
        Ok(if is_zoo { 2 } else { config.vocab_without_data() })
    }

    /// The model's graph, and how it is compiled.
    pub fn read(&self) -> Result<(phalanx::ir::graph::Graph, pipeline::Settings), Failure> {
        let config = self.options.config(self.config.as_ref())?;
        let model: ModelConfig =
            config.build_model(config.vocab_without_data()).map_err(phalanx::Error::from)?;
        let graph = config.training_graph(&model)?;
        flags::warn(&config);
        let settings = starting::measuring(|progress| config.measured_settings(&graph, progress))?;
        Ok((graph, settings))
    }
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Show(args) => show(&args)?,
        Command::Overlap(args) => overlap(&args)?,
        Command::Write(args) => write(&args)?,
        Command::Presets(args) => PRESETS.iter().try_for_each(|(name, about)| match args.json {
            true => output::json(&json!({ "name": name, "about": about })),
            false => output::line(format!("{name:6} {about}")),
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(args: &Write) -> Result<(), Failure> {
    let (_, settings) = args.what.read()?;
    let (plan, text) = (&settings.plan, settings.plan.to_text());
    if let Some(path) = &args.out {
        std::fs::write(path, &text)
            .map_err(|error| Failure::Input(format!("cannot write {}: {error}", path.display())))?;
    }
    match (args.json, &args.out) {
        (true, out) => output::json(&json!({
            "plan": plan.name, "devices": plan.mesh.devices(), "text": text, "out": out,
        })),
        (false, None) => output::line(text.trim_end()),
        (false, Some(_)) => Ok(()),
    }
}

fn overlap(args: &PlanOverlap) -> Result<(), Failure> {
    let (graph, settings) = args.what.read()?;
    args.drawings.check()?;
    let overview = Overview::new(&graph, &settings).map_err(phalanx::Error::from)?;
    if args.drawings.any() {
        args.drawings.write(&overview.report())?;
    }
    match args.json {
        true => overlap::json(&overview),
        false => overlap::print(&overview, args.all),
    }
}

fn show(args: &ShowPlan) -> Result<(), Failure> {
    let (graph, settings) = args.what.read()?;
    let layout: Layout = pipeline::lay_out(&graph, &settings, |_, _| ()).map_err(phalanx::Error::from)?;
    let tensors = layout.tensors(args.all).map_err(|error| Failure::Run(error.to_string()))?;
    let (movements, devices) = (layout.movements(), layout.devices());
    let plan = &settings.plan;
    let whole = left_whole(&graph, plan).map_err(|error| Failure::Run(error.to_string()))?;
    if args.json {
        let mesh: Vec<_> =
            plan.mesh.axes.iter().map(|(name, size)| json!({ "axis": name, "size": size })).collect();
        return output::json(&json!({
            "plan": plan.name, "mesh": mesh, "microbatches": plan.microbatches,
            "tensors": tensors, "left_whole": whole, "movements": movements, "devices": devices,
        }));
    }
    print_tensors(&tensors, devices.len())?;
    whole.iter().try_for_each(|whole| output::line(format!("\n{whole}")))?;
    print_movements(&movements)?;
    print_devices(&devices)
}

/// The most devices whose parts are drawn side by side.
const MOST_COLUMNS: usize = 8;

fn print_tensors(tensors: &[TensorRow], devices: usize) -> Result<(), Failure> {
    let width = tensors.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
    let shown = devices.min(MOST_COLUMNS);
    let cells: Vec<Vec<String>> =
        tensors.iter().map(|row| (0..shown).map(|at| cell(row, at)).collect()).collect();
    let column = |at: usize| cells.iter().map(|row| row[at].len()).max().unwrap_or(0).max(5);
    let heads: Vec<_> =
        (0..shown).map(|at| format!("{:width$}", format!("dev{at}"), width = column(at))).collect();
    let more =
        if devices > shown { format!("  … {} more devices", devices - shown) } else { String::new() };
    output::line(format!("{:width$}  {:28}  {}{more}", "tensor", "tiling", heads.join("  ")))?;
    for (row, cells) in tensors.iter().zip(&cells) {
        let cells: Vec<_> =
            cells.iter().enumerate().map(|(at, cell)| format!("{cell:width$}", width = column(at))).collect();
        output::line(format!("{:width$}  {:28}  {}", row.name, row.ty, cells.join("  ")).trim_end())?;
    }
    Ok(())
}

/// What a device holds of a tensor: index ranges, `all` for the whole, `-` for nothing.
fn cell(row: &TensorRow, device: usize) -> String {
    let texts: Vec<String> = row.parts.iter().filter(|part| part.device == device).map(range).collect();
    if texts.is_empty() { "-".into() } else { texts.join(" ") }
}

fn range(part: &Part) -> String {
    let dims = part.origin.iter().zip(&part.extents);
    let dims: Vec<_> = dims.map(|(start, extent)| format!("{start}..{}", start + extent)).collect();
    let sum = if part.sum > 0 { format!("+{}", part.sum) } else { String::new() };
    format!("[{}]{sum}", dims.join(","))
}

fn print_movements(movements: &[MovementRow]) -> Result<(), Failure> {
    if movements.is_empty() {
        return output::line("\nnothing moves");
    }
    let width = movements.iter().map(|row| row.layer.len()).max().unwrap_or(0).max(5);
    output::line(format!("\n{:14}  {:width$}  {:>6}  {:>12}", "movement", "for", "count", "bytes"))?;
    for MovementRow { kind, layer, count, bytes } in movements {
        output::line(format!("{kind:14}  {layer:width$}  {count:>6}  {:>12}", output::bytes(*bytes)))?;
    }
    let total: u64 = movements.iter().map(|row| row.bytes).sum();
    output::line(format!("{:14}  {:width$}  {:>6}  {:>12}", "all", "", "", output::bytes(total)))
}

fn print_devices(devices: &[DeviceRow]) -> Result<(), Failure> {
    let head = ["peak", "parameters", "state", "received"];
    let head: Vec<_> = head.iter().map(|name| format!("{name:>12}")).collect();
    output::line(format!("\n{:8}{}  {:>8}", "device", head.concat(), "tasks"))?;
    for row in devices {
        let bytes = [row.peak_bytes, row.param_bytes, row.state_bytes, row.received_bytes];
        let bytes: Vec<_> = bytes.iter().map(|&bytes| format!("{:>12}", output::bytes(bytes))).collect();
        output::line(format!("{:8}{}  {:>8}", format!("dev{}", row.device), bytes.concat(), row.tasks))?;
    }
    Ok(())
}
