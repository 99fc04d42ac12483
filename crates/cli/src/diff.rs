//! `phalanx diff`: where two runs first differ, by their checkpoints or their logs.
//!
//! Exit code 0: they are equal; 1: they differ; 2: they cannot be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::ckpt::{Checkpoints, Difference, config_of, first_difference};
use phalanx::ir::Precision;
use phalanx::{Error, StateHashes};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::{ckpt, output};

/// Find the first step and tensor at which two runs differ.
///
/// Each is the checkpoints of a run, a single one, or a log. Checkpoints are compared bit by bit, whatever plan and ranks
/// wrote them; logs by the bits of their losses, and by the hashes of --hash-every, which tell the tensor; checkpoints and
/// a log by hashes. Steps that only one of them has do not count. Equal: exit code 0; different: 1.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx diff runs/a runs/b                        # of --checkpoint
  phalanx diff runs/a/step-00000020 runs/b/step-00000020
  phalanx diff logs/a logs/b                        # of --log-dir, best with --hash-every
  phalanx diff runs/a logs/b                        # the log with --hash-every")]
pub struct Args {
    /// A run: a directory of checkpoints, one checkpoint, a directory of logs, or a log
    left: PathBuf,
    /// The other one
    right: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// What is known of a run, by step.
enum Record {
    Checkpoints(BTreeMap<u64, PathBuf>),
    Log(BTreeMap<u64, Line>),
}

/// A step in a log; JSON has no word for a loss that is not a number.
#[derive(Deserialize)]
struct Line {
    step: u64,
    loss: Option<f32>,
    #[serde(default)]
    precision: Precision,
    #[serde(flatten)]
    state: Option<StateHashes>,
}

/// What identifies the state of a run after a step.
enum State {
    Saved(PathBuf),
    Hashed(StateHashes),
}

/// Steps that two runs have in common: the number of the step and both sides.
type Common<T> = Vec<(u64, T, T)>;

/// How two sides of a step differ: for people and as JSON.
type DescribedDifference = (String, Value);

/// Compares and prints.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (left, right) = (Record::read(&args.left)?, Record::read(&args.right)?);
    let precisions = [left.precision()?, right.precision()?];
    let (what, compared, first) = match (left, right) {
        (Record::Checkpoints(left), Record::Checkpoints(right)) => {
            let common = common(args, left, right)?;
            (output::count(common.len(), "common checkpoint"), common.len(), first(common, of_checkpoints)?)
        }
        (Record::Log(left), Record::Log(right)) => {
            let common = common(args, left, right)?;
            (describe_steps(&common), common.len(), first(common, of_lines)?)
        }
        (left, right) => {
            let common = common(args, left.states(args)?, right.states(args)?)?;
            (output::count(common.len(), "common checkpoint"), common.len(), first(common, of_states)?)
        }
    };
    let equal = first.is_none();
    match (first, args.json) {
        (None, true) => output::json(&json!({ "equal": true, "compared": compared }))?,
        (None, false) => output::line(format!("equal in {what}"))?,
        (Some((step, (_, difference))), true) => {
            let mut line = json!({ "equal": false, "step": step, "first": difference });
            if precisions[0] != precisions[1] {
                line["precisions"] = json!(precisions);
            }
            output::json(&line)?;
        }
        (Some((step, (text, _))), false) => {
            let why = match precisions {
                [left, right] if left != right => format!("; the runs have precisions {left} and {right}"),
                _ => String::new(),
            };
            output::line(format!("step {step} differs: {text}{why}"))?;
        }
    }
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first step whose sides differ, and how.
fn first<T>(
    common: Common<T>,
    compare: impl Fn(T, T) -> Result<Option<DescribedDifference>, Failure>,
) -> Result<Option<(u64, DescribedDifference)>, Failure> {
    let at = |(step, left, right)| compare(left, right).map(|told| Some((step, told?))).transpose();
    common.into_iter().find_map(at).transpose()
}

/// The steps that both have, with both sides.
fn common<T>(args: &Args, left: BTreeMap<u64, T>, mut right: BTreeMap<u64, T>) -> Result<Common<T>, Failure> {
    let (ours, theirs) = (span(&left), span(&right));
    let pair = |(step, left)| right.remove(&step).map(|right| (step, left, right));
    let common: Vec<_> = left.into_iter().filter_map(pair).collect();
    match common.is_empty() {
        false => Ok(common),
        true => Err(misfit(args, &format!("they have no step in common: {ours} and {theirs}"))),
    }
}

/// The first and the last step.
fn span<T>(steps: &BTreeMap<u64, T>) -> String {
    match (steps.first_key_value(), steps.last_key_value()) {
        (Some((first, _)), Some((last, _))) if first != last => format!("{first} to {last}"),
        (Some((only, _)), _) => format!("{only}"),
        _ => "none".into(),
    }
}

fn misfit(args: &Args, problem: &str) -> Failure {
    let (left, right) = (args.left.display(), args.right.display());
    Failure::Input(format!("{left} and {right} cannot be compared: {problem}"))
}

impl Record {
    /// What is at `path`. Checkpoints count more than a log beside them.
    fn read(path: &Path) -> Result<Record, Failure> {
        if ckpt::is_single(path) {
            let step = ckpt::open(path)?.manifest().run.step;
            return Ok(Record::Checkpoints(BTreeMap::from([(step, path.into())])));
        }
        let log = if path.is_file() { path.into() } else { path.join("rank-0.jsonl") };
        let steps = match path.is_file() {
            true => Vec::new(),
            false => Checkpoints::open(path).list().map_err(Error::from)?,
        };
        if steps.is_empty() && !log.is_file() {
            let path = path.display();
            return Err(Failure::Input(format!("{path} has neither checkpoints nor a log, rank-0.jsonl")));
        }
        if steps.is_empty() {
            return lines(&log).map(Record::Log);
        }
        let named = |step| (step, path.join(phalanx::ckpt::name_of(step)));
        Ok(Record::Checkpoints(steps.into_iter().map(named).collect()))
    }

    /// What the run computes products in.
    fn precision(&self) -> Result<Precision, Failure> {
        match self {
            Record::Checkpoints(paths) => {
                let newest = paths.values().next_back().map(|path| ckpt::open(path)).transpose()?;
                let config = newest.map(|newest| config_of(&newest)).transpose().map_err(Error::from)?;
                Ok(config.unwrap_or_default().precision)
            }
            Record::Log(lines) => {
                Ok(lines.values().next_back().map(|line| line.precision).unwrap_or_default())
            }
        }
    }

    /// What identifies the state of the run after each step.
    fn states(self, args: &Args) -> Result<BTreeMap<u64, State>, Failure> {
        let states: BTreeMap<u64, State> = match self {
            Record::Checkpoints(paths) => {
                paths.into_iter().map(|(step, path)| (step, State::Saved(path))).collect()
            }
            Record::Log(lines) => {
                let hashed = |(step, line): (u64, Line)| Some((step, State::Hashed(line.state?)));
                lines.into_iter().filter_map(hashed).collect()
            }
        };
        match states.is_empty() {
            false => Ok(states),
            true => Err(misfit(
                args,
                "one has checkpoints, the other a log without hashes; give two of a kind, or a log of `train --hash-every`",
            )),
        }
    }
}

/// The steps in a log. Other lines, also one that was cut short when the process was killed, do not count.
fn lines(log: &Path) -> Result<BTreeMap<u64, Line>, Failure> {
    let text = std::fs::read_to_string(log)
        .map_err(|error| Failure::Input(format!("cannot read {}: {error}", log.display())))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let lines: BTreeMap<u64, Line> = lines.map(|line| (line.step, line)).collect();
    match lines.is_empty() {
        false => Ok(lines),
        true => {
            Err(Failure::Input(format!("{} has no steps; give a log of `train --log-dir`", log.display())))
        }
    }
}

fn of_checkpoints(left: PathBuf, right: PathBuf) -> Result<Option<DescribedDifference>, Failure> {
    let difference = first_difference(&ckpt::open(&left)?, &ckpt::open(&right)?).map_err(Error::from)?;
    Ok(difference.map(|difference| (describe(&difference), json!(difference))))
}

fn describe(difference: &Difference) -> String {
    match difference {
        Difference::Tensor { tensor, left, right } => format!("tensor `{tensor}` is {left} and {right}"),
        Difference::Elements { tensor, index, left, right, differing, elements, largest } => format!(
            "tensor `{tensor}` at {index:?} is {left:?} and {right:?}; {differing} of {elements} elements differ, by \
             at most {largest:?}"
        ),
    }
}

/// How many steps two logs have in common, and how many of these say more than a loss.
fn describe_steps(common: &Common<Line>) -> String {
    let steps = output::count(common.len(), "common step");
    match common.iter().filter(|(_, left, right)| left.state.is_some() && right.state.is_some()).count() {
        0 => steps,
        hashed => format!("{steps}, {hashed} of them with hashes"),
    }
}

/// A step's loss is of the weights before its update, its hashes are of those after it.
fn of_lines(left: Line, right: Line) -> Result<Option<DescribedDifference>, Failure> {
    let losses = [&left, &right].map(|line| line.loss.unwrap_or(f32::NAN));
    if losses[0].to_bits() == losses[1].to_bits() {
        return Ok(left.state.zip(right.state).and_then(|(left, right)| of_hashes(&left, &right)));
    }
    let [left, right] = losses;
    let difference = json!({ "difference": "loss", "left": left, "right": right });
    Ok(Some((format!("the loss is {left:?} and {right:?}"), difference)))
}

/// The first tensor by name whose hash differs; all of them together, where no more is known.
fn of_hashes(left: &StateHashes, right: &StateHashes) -> Option<DescribedDifference> {
    if left.hash == right.hash {
        return None;
    }
    let names: BTreeSet<&String> = left.hashes.keys().chain(right.hashes.keys()).collect();
    let tensor = match left.hashes.is_empty() || right.hashes.is_empty() {
        true => None,
        false => names.into_iter().find(|&name| left.hashes.get(name) != right.hashes.get(name)),
    };
    let Some(tensor) = tensor else {
        let (left, right) = (&left.hash, &right.hash);
        let text = format!("the hash of weights and optimizer state is {left} and {right}");
        return Some((text, json!({ "difference": "hash", "left": left, "right": right })));
    };
    let [left, right] = [left, right].map(|state| state.hashes.get(tensor).map_or("absent", String::as_str));
    let text = format!("the hash of tensor `{tensor}` is {left} and {right}");
    Some((text, json!({ "difference": "hash", "tensor": tensor, "left": left, "right": right })))
}

fn of_states(left: State, right: State) -> Result<Option<DescribedDifference>, Failure> {
    Ok(of_hashes(&left.hashes()?, &right.hashes()?))
}

impl State {
    fn hashes(self) -> Result<StateHashes, Failure> {
        match self {
            State::Saved(path) => Ok(ckpt::open(&path)?.hashes().map_err(Error::from)?),
            State::Hashed(hashes) => Ok(hashes),
        }
    }
}
