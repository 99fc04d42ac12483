//! `phalanx doctor`: does this machine compute what it should?

mod precisions;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use phalanx::Flavor;
use phalanx::internals::files;
use phalanx::internals::kernels::isa::Isa;
use phalanx::internals::roofline::fma_peak;
use phalanx_bench::golden::{self, Case, GoldenError, Outcome};
use serde_json::json;

use crate::devices;
use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;

/// Check every operator of this machine against recorded results.
///
/// Runs operator cases forward and backward through the whole compiler, on the reference and on the fast kernels. The
/// last line counts cases; a case passes if both kernels pass, and is unsupported if there is no such operator here. Before
/// them it tells how fast products of every precision are, and whether the instructions for bf16 give the defined bits, a
/// million results for numbers of every kind. The exit code is 1 if anything failed.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx doctor
  phalanx doctor --isa portable --cores 1
  phalanx doctor --ops cases.jsonl
  phalanx doctor --device opencl:0.0    whether an OpenCL device computes the bits of the CPU
A case is a line of JSON with an operator's operands, results and gradients by their names, for example:
  {\"id\": \"add-1\", \"op\": \"add\", \"attrs\": {}, \"inputs\": {\"a\": T, \"b\": T}, \"outputs\": {\"y\": T},
   \"output_grads\": {\"y\": T}, \"input_grads\": {\"a\": T, \"b\": T}}
where T is a tensor: {\"dtype\": \"f32\", \"shape\": [2], \"data\": [0.5, 1.5]}"
)]
pub struct Args {
    /// File of operator cases; a built-in set if absent
    #[arg(long, value_name = "FILE.jsonl")]
    ops: Option<PathBuf>,
    /// Instruction set of the fast kernels; the best of this machine if absent
    #[arg(long)]
    isa: Option<IsaName>,
    /// Only probe the arithmetic of this OpenCL device: its address, such as opencl:0.0, or a part of its name
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["ops", "isa"])]
    device: Option<String>,
    #[command(flatten)]
    cores: Options<Cores>,
    /// Print lines of JSON: machine, failures, summary
    #[arg(long)]
    json: bool,
    /// Only try the instructions for bf16, which may end the process
    #[arg(long, hide = true)]
    try_instructions: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum IsaName {
    Portable,
    Avx2,
    Avx512,
}

/// Counts of cases.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    /// By operator.
    unsupported: BTreeMap<String, u64>,
}

/// What came of one case on both kernels.
enum Verdict {
    Passed,
    Failed(Vec<String>),
    /// There is no such operator.
    Unsupported(String),
}

/// Runs the cases.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.try_instructions {
        return Ok(if precisions::child() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(wanted) = &args.device {
        return devices::probe_one(wanted, args.json);
    }
    select(args.isa)?;
    let cores = args.cores.count()?;
    let cases = cases(args.ops.as_deref())?;
    if let (true, Some(path)) = (cases.is_empty(), &args.ops) {
        return Err(Failure::Input(format!("{} has no cases: give one JSON object a line", path.display())));
    }
    machine(cores, args.json)?;
    let instructions = precisions::report(args.json)?;
    let mut counts = Counts::default();
    for case in &cases {
        match verdict(case, cores) {
            Verdict::Passed => counts.passed += 1,
            Verdict::Unsupported(operator) => *counts.unsupported.entry(operator).or_default() += 1,
            Verdict::Failed(failures) => {
                counts.failed += 1;
                failures.iter().try_for_each(|what| failure(what, args.json))?;
            }
        }
    }
    summarize(&counts, args.json)?;
    Ok(if counts.failed == 0 && instructions { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summarize(counts: &Counts, json: bool) -> Result<(), Failure> {
    let Counts { passed, failed, unsupported: operators } = counts;
    let unsupported: u64 = operators.values().sum();
    if json {
        return output::json(&json!({ "summary": {
            "passed": passed, "failed": failed, "unsupported": unsupported, "unsupported_operators": operators,
        }}));
    }
    if unsupported > 0 {
        let names: Vec<_> = operators.iter().map(|(name, cases)| format!("{name} ({cases})")).collect();
        output::line(format!("operators that are not supported, with their cases: {}", names.join(", ")))?;
    }
    output::line(format!("{passed} passed, {failed} failed, {unsupported} unsupported"))
}

fn select(name: Option<IsaName>) -> Result<(), Failure> {
    let isa = match name {
        None => return Ok(()),
        Some(IsaName::Portable) => Isa::Portable,
        Some(IsaName::Avx2) => Isa::Avx2,
        Some(IsaName::Avx512) => Isa::Avx512,
    };
    if !isa.is_available() {
        let best = Isa::best().name();
        return Err(Failure::Input(format!("this machine has no {}; use --isa {best} or less", isa.name())));
    }
    Isa::select(isa);
    Ok(())
}

/// The cases, each with what is wrong with its line if it is none.
fn cases(path: Option<&Path>) -> Result<Vec<Result<Case, String>>, Failure> {
    let Some(path) = path else { return Ok(golden::built_in().into_iter().map(Ok).collect()) };
    let bytes = files::read(path).map_err(|error| {
        Failure::Input(format!("cannot read {}: {error}; give a file of operator cases", path.display()))
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(index, line)| case(index + 1, line)).collect())
}

fn case(line: usize, text: &str) -> Result<Case, String> {
    match golden::read_cases(text) {
        Ok(mut cases) => cases.pop().ok_or_else(|| format!("line {line}: no case")),
        Err(GoldenError::Line { source, .. }) => Err(format!("line {line}: not an operator case: {source}")),
        Err(error) => Err(format!("line {line}: {error}")),
    }
}

fn machine(cores: usize, json: bool) -> Result<(), Failure> {
    let isa = Isa::current().name();
    let peak = fma_peak(cores);
    let of = std::thread::available_parallelism().map_or(1, usize::from);
    match json {
        true => output::json(
            &json!({ "machine": { "cores": cores, "available": of, "isa": isa, "fma_gflops": peak } }),
        ),
        false => output::line(format!("{cores} of {of} cores, {isa}, FMA peak {peak:.0} GFLOP/s")),
    }
}

fn failure(what: &str, json: bool) -> Result<(), Failure> {
    match json {
        true => output::json(&json!({ "failure": what })),
        false => output::line(what),
    }
}

fn verdict(case: &Result<Case, String>, cores: usize) -> Verdict {
    let case = match case {
        Ok(case) => case,
        Err(error) => return Verdict::Failed(vec![error.clone()]),
    };
    let mut failures = Vec::new();
    for (flavor, name) in [(Flavor::Reference, "reference"), (Flavor::Fast, "fast")] {
        match outcome(case, flavor, cores) {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Unsupported) => return Verdict::Unsupported(case.op.clone()),
            Ok(Outcome::Failed(what)) | Err(what) => failures.push(format!("{} ({name}): {what}", case.id)),
        }
    }
    if failures.is_empty() { Verdict::Passed } else { Verdict::Failed(failures) }
}

/// Runs a case; a kernel that panics is what this command is there to find.
fn outcome(case: &Case, flavor: Flavor, cores: usize) -> Result<Outcome, String> {
    match catch_unwind(AssertUnwindSafe(|| case.run(flavor, cores))) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("panicked: a bug of ours, please report it with the case".into()),
    }
}
