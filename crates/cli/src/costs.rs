//! `phalanx costs`: measure what kernels cost on this machine, look at it, and let several machines agree.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use phalanx::internals::costs::{CostTable, Costs, Machine, Measured, Signature, Work};
use phalanx::ir::tasks::TaskGraph;
use phalanx::{Error, pipeline};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::plan::What;
use crate::{job, output, starting};

/// Measure what kernels cost on this machine, and see it.
#[derive(clap::Subcommand)]
pub enum Command {
    Measure(Box<Measure>),
    Show(ShowCosts),
    Merge(Merge),
}

/// Measure the kernels of a model's step, once each, and keep their times in a file.
///
/// Kernels that the file knows are not measured again. Without --out it is this machine's file in $XDG_CACHE_HOME/phalanx
/// or ~/.cache/phalanx; its name depends on the processor, the instruction set and the version, so that machines can share
/// a home. Let nothing else run meanwhile.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx costs measure                              # the model that `phalanx train` trains
  phalanx costs measure --plan tp --devices 2        # the smaller kernels of two devices, and what moves
  phalanx costs measure --size small --vocab 50257 --batch 8 --context 256 --out small.json
A file is JSON with one kernel a line. To try another time, change its `ns`; to measure again, delete the line or the file."
)]
pub struct Measure {
    #[command(flatten)]
    what: What,
    /// File to add the times to; this machine's own if absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Show all times in a file, longest first, with the rate that they mean.
///
/// Rates are of floating-point operations for products, else of bytes read and written. `copy` and `sum2`, `sum4`, … are
/// what a device does to receive bytes, and `link` is the time from written on one device to copied on another.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx costs show
  phalanx costs show small.json --json")]
pub struct ShowCosts {
    /// The file; this machine's own if absent
    file: Option<PathBuf>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Merge the times of several machines into those that they agree on.
///
/// The time of a kernel is the median of the files that have it, of an even number the lower middle one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx costs merge node1.json node2.json node3.json --out cluster.json")]
pub struct Merge {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File to write, in place of what is there
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Measure(args) => measure(&args)?,
        Command::Show(args) => show(&args)?,
        Command::Merge(args) => merge(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where this machine's times are kept.
pub fn cache_file() -> Result<PathBuf, Failure> {
    let cache = phalanx::cache_dir().ok_or_else(|| {
        Failure::Input(
            "there is no place for costs: name a file, or set HOME or XDG_CACHE_HOME to a full path".into(),
        )
    })?;
    Ok(cache.join(Machine::this().file_name()))
}

/// The same, if it can be written. Else the user learns once, from the first rank of a job, that estimates take the place of
/// measured times.
pub fn usable_cache_file() -> Option<PathBuf> {
    let problem = match cache_file() {
        Err(_) => "HOME and XDG_CACHE_HOME are no full paths".to_string(),
        Ok(path) => match probe(&path) {
            Ok(()) => return Some(path),
            Err(error) => format!("cannot write beside {}: {error}", path.display()),
        },
    };
    if job::launched().is_none_or(|launched| launched.rank == 0) {
        eprintln!("note: {problem}; nothing is cached, and times of kernels are estimated, not measured");
    }
    None
}

/// Tries whether a file can be written: in the lowest of its directories that is there.
fn probe(path: &Path) -> io::Result<()> {
    let directory = path.ancestors().skip(1).find(|directory| directory.exists()).unwrap_or(Path::new("."));
    let probe = directory.join(format!(".phalanx-probe-{}", std::process::id()));
    // Not a file that is there, nor what a link leads to.
    File::options().write(true).create_new(true).open(&probe)?;
    fs::remove_file(probe)
}

fn measure(args: &Measure) -> Result<(), Failure> {
    let (graph, settings) = args.what.read()?;
    let path = args.out.clone().map_or_else(cache_file, Ok)?;
    let mut cost_table = CostTable::load(&path).map_err(Error::from)?;
    let tasks = pipeline::lay_out(&graph, &settings, |_, _| ()).map_err(Error::from)?.tasks;
    let start = Instant::now();
    let measured = starting::measuring(|progress| cost_table.measure(&tasks, settings.cores, progress));
    let (measured, seconds) = (measured.map_err(Error::from)?, start.elapsed().as_secs_f64());
    cost_table.save().map_err(Error::from)?;
    let report = Report { measured, seconds, costs: cost_table.costs(&tasks, settings.cores), tasks, path };
    if args.json { output::json(&report.json()) } else { report.print() }
}

/// What came of measuring a model.
struct Report {
    measured: Measured,
    seconds: f64,
    costs: Costs,
    tasks: TaskGraph,
    path: PathBuf,
}

impl Report {
    fn json(&self) -> Value {
        let Measured { taken, fallbacks } = &self.measured;
        let fallbacks: Vec<_> =
            fallbacks.iter().map(|one| json!({ "kernel": one.kernel, "why": one.why })).collect();
        let devices: Vec<u64> = self.costs.by_device(&self.tasks).into_values().collect();
        json!({
            "file": self.path, "measured": taken, "seconds": self.seconds, "fallbacks": fallbacks,
            "estimated_tasks": self.costs.estimated().len(), "device_ns": devices,
        })
    }

    fn print(&self) -> Result<(), Failure> {
        let Measured { taken, fallbacks } = &self.measured;
        for fallback in fallbacks {
            output::line(format!("{} is estimated: {}", fallback.kernel, fallback.why))?;
        }
        match taken {
            0 => output::line("everything was measured before")?,
            _ => {
                output::line(format!("{} measured in {:.1} s", output::count(*taken, "time"), self.seconds))?;
            }
        }
        let devices = self.costs.by_device(&self.tasks);
        let longest = *devices.values().max().unwrap_or(&0) as f64 / 1e6;
        let on = if devices.len() > 1 { ", on the device with the most of them" } else { "" };
        output::line(format!("all tasks of a step  {longest:.3} ms{on}"))?;
        output::line(format!("kept in              {}", self.path.display()))
    }
}

fn show(args: &ShowCosts) -> Result<(), Failure> {
    let path = args.file.clone().map_or_else(cache_file, Ok)?;
    if args.file.is_none() && !path.exists() {
        return Err(Failure::Input(
            "nothing has been measured on this machine; do it with `phalanx costs measure`".into(),
        ));
    }
    let cost_table = CostTable::read(&path).map_err(Error::from)?;
    let mut entries: Vec<_> = cost_table.entries().collect();
    entries.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    let Machine { cpu, isa, version } = cost_table.machine();
    if args.json {
        let entries: Vec<_> = entries.iter().map(|&(signature, ns)| entry(signature, ns)).collect();
        return output::json(&json!({ "cpu": cpu, "isa": isa, "version": version, "entries": entries }));
    }
    output::line(format!("{cpu}, {isa}, kernels of version {version}"))?;
    print_entries(&entries)
}

/// An entry and its rate.
fn entry(signature: &Signature, ns: u64) -> Value {
    let (gflops, bandwidth) = match rate(signature, ns) {
        (rate, "GFLOP/s") => (Some(rate), None),
        (rate, _) => (None, Some(rate)),
    };
    json!({
        "kernel": signature.kernel, "words": signature.words, "reads": signature.reads,
        "writes": signature.writes, "cores": signature.cores, "ns": ns,
        "gflops": gflops, "gb_per_s": bandwidth,
    })
}

/// Work in a nanosecond, and its unit.
fn rate(signature: &Signature, ns: u64) -> (f64, &'static str) {
    let Work { flops, bytes } = signature.work();
    let (work, unit) = if signature.is_product() { (flops, "GFLOP/s") } else { (bytes, "GB/s") };
    (work / ns.max(1) as f64, unit)
}

fn print_entries(entries: &[(&Signature, u64)]) -> Result<(), Failure> {
    let sizes: Vec<String> = entries.iter().map(|(signature, _)| sizes(signature)).collect();
    let names = entries.iter().map(|(signature, _)| signature.kernel.len()).max().unwrap_or(0).max(6);
    let width = sizes.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(5);
    output::line(format!(
        "{:names$}  {:width$}  {:>5}  {:>15}  {:>8}",
        "kernel", "sizes", "cores", "ns", "rate"
    ))?;
    for (&(signature, ns), sizes) in entries.iter().zip(&sizes) {
        let (Signature { kernel, cores, .. }, (rate, unit)) = (signature, rate(signature, ns));
        let ns = output::grouped(ns);
        output::line(format!("{kernel:names$}  {sizes:width$}  {cores:>5}  {ns:>15}  {rate:>8.1} {unit}"))?;
    }
    Ok(())
}

fn sizes(signature: &Signature) -> String {
    let all = |sizes: &[u64]| output::bytes(sizes.iter().sum());
    let Signature { reads, writes, .. } = signature;
    signature.sizes().unwrap_or_else(|| format!("{} -> {}", all(reads), all(writes)))
}

fn merge(args: &Merge) -> Result<(), Failure> {
    let tables: Result<Vec<CostTable>, _> = args.files.iter().map(|file| CostTable::read(file)).collect();
    let tables = tables.map_err(Error::from)?;
    let merged = CostTable::median(&tables);
    merged.write(&args.out).map_err(Error::from)?;
    if args.json {
        let (files, entries) = (tables.len(), merged.entries().len());
        return output::json(&json!({ "files": files, "entries": entries, "out": args.out }));
    }
    let (files, entries) = (output::count(tables.len(), "file"), merged.entries().len());
    output::line(format!("{} of {files} in {}", output::count(entries, "time"), args.out.display()))
}
