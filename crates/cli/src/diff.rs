//! `phalanx diff`: where two runs first differ, by their checkpoints or their logs.
//!
//! Exit code 0: they are equal; 1: they differ; 2: they cannot be compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::Error;
use phalanx::ckpt::{Checkpoints, Difference, first_difference};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::{ckpt, output};

/// Find the first step and tensor at which two runs differ.
///
/// Both are checkpoints, of whole runs or single ones, or both are logs. Checkpoints are compared bit by bit, whatever
/// plan and ranks wrote them; logs by the bits of their losses. Steps that only one of them has do not count. Equal:
/// exit code 0; different: 1.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx diff runs/a runs/b                        # of --checkpoint
  phalanx diff runs/a/step-00000020 runs/b/step-00000020
  phalanx diff logs/a logs/b                        # of --log-dir")]
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
    Losses(BTreeMap<u64, f32>),
}

/// The first difference of two runs, if there is one: its step, for people and as JSON.
type Found = Option<(u64, String, Value)>;

/// Compares and prints.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (compared, found, what) = match (Record::read(&args.left)?, Record::read(&args.right)?) {
        (Record::Checkpoints(left), Record::Checkpoints(right)) => {
            let common = common(args, left, right)?;
            (common.len(), of_checkpoints(common)?, "checkpoint")
        }
        (Record::Losses(left), Record::Losses(right)) => {
            let common = common(args, left, right)?;
            (common.len(), of_losses(common), "step")
        }
        _ => return Err(misfit(args, "one has checkpoints, the other a log; give two of a kind")),
    };
    let equal = found.is_none();
    match (found, args.json) {
        (None, true) => output::json(&json!({ "equal": true, "compared": compared }))?,
        (None, false) => {
            output::line(format!("equal in {}", output::count(compared, &format!("common {what}"))))?
        }
        (Some((step, _, difference)), true) => {
            output::json(&json!({ "equal": false, "step": step, "first": difference }))?;
        }
        (Some((step, text, _)), false) => output::line(format!("step {step} differs: {text}"))?,
    }
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The steps that both have, with both sides.
fn common<T>(
    args: &Args,
    left: BTreeMap<u64, T>,
    mut right: BTreeMap<u64, T>,
) -> Result<Vec<(u64, T, T)>, Failure> {
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
            return losses(&log).map(Record::Losses);
        }
        let named = |step| (step, path.join(phalanx::ckpt::name_of(step)));
        Ok(Record::Checkpoints(steps.into_iter().map(named).collect()))
    }
}

/// A step in a log; JSON has no word for a loss that is not a number.
#[derive(Deserialize)]
struct Line {
    step: u64,
    loss: Option<f32>,
}

/// The loss of every step in a log. Other lines, also one that was cut short when the process was killed, do not count.
fn losses(log: &Path) -> Result<BTreeMap<u64, f32>, Failure> {
    let text = std::fs::read_to_string(log)
        .map_err(|error| Failure::Input(format!("cannot read {}: {error}", log.display())))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let losses: BTreeMap<u64, f32> = lines.map(|line| (line.step, line.loss.unwrap_or(f32::NAN))).collect();
    match losses.is_empty() {
        false => Ok(losses),
        true => {
            Err(Failure::Input(format!("{} has no steps; give a log of `train --log-dir`", log.display())))
        }
    }
}

fn of_checkpoints(common: Vec<(u64, PathBuf, PathBuf)>) -> Result<Found, Failure> {
    for (step, left, right) in common {
        let difference = first_difference(&ckpt::open(&left)?, &ckpt::open(&right)?).map_err(Error::from)?;
        if let Some(difference) = difference {
            return Ok(Some((step, describe(&difference), json!(difference))));
        }
    }
    Ok(None)
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

fn of_losses(common: Vec<(u64, f32, f32)>) -> Found {
    let differ = common.into_iter().find(|(_, left, right)| left.to_bits() != right.to_bits());
    differ.map(|(step, left, right)| {
        (step, format!("the loss is {left:?} and {right:?}"), json!({ "left": left, "right": right }))
    })
}
