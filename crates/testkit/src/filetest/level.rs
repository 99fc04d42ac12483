//! Parsing, verifying and printing a text of whichever level it is of.

use std::fmt::Display;

use phalanx_ir::graph::{Graph, VerifyError};
use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::sharded::{ShardedError, ShardedGraph};
use phalanx_ir::tasks::{TaskError, TaskGraph};
use phalanx_ir::text::ParseError;

use super::CaseFailure;
use crate::{Tensor, eval::evaluate, generate::random_inputs};

/// An error with the line it is on.
type Located = (usize, String);

/// A level with a text form.
pub trait Level: Display + PartialEq + Sized {
    /// Reads what `Display` prints, unverified.
    fn parse(text: &str) -> Result<Self, ParseError>;

    /// The broken invariants: the start of the line each is on, and its text.
    fn broken(&self) -> Vec<(String, String)>;
}

/// What the commands `verify` and `print` do with a text.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    /// The errors of parsing, or if there are none, of verifying.
    pub errors: fn(&str) -> Vec<Located>,
    /// The text as it is printed.
    pub print: fn(&str) -> Result<String, (usize, CaseFailure)>,
}

impl Reader {
    /// Reads texts of one level.
    pub fn of<L: Level>() -> Reader {
        Reader { errors: |text| load::<L>(text).err().unwrap_or_default(), print: print_level::<L> }
    }

    /// Reads texts of the level of `ir` that their first word names.
    pub fn by_keyword(text: &str) -> Reader {
        match keyword(text) {
            "parallel" => Reader::of::<ParallelGraph>(),
            "sharded" => Reader::of::<ShardedGraph>(),
            "tasks" => Reader::of::<TaskGraph>(),
            _ => Reader::of::<Graph>(),
        }
    }
}

/// An error unless both models return the same on random inputs.
pub(super) fn equal(before: &str, after: &str) -> Result<(), CaseFailure> {
    let parse =
        |text| load::<Graph>(text).map_err(|errors| CaseFailure::UnexpectedError(errors[0].1.clone()));
    let (before, after) = (parse(before)?, parse(after)?);
    let inputs = random_inputs(&before, 1);
    let (old, new) = (evaluate(&before, &inputs), evaluate(&after, &inputs));
    let n_outputs = before.outputs().len().max(after.outputs().len());
    let unequal = (0..n_outputs).find(|&index| {
        let old = before.outputs().get(index).map(|value| &old[value]);
        let new = after.outputs().get(index).map(|value| &new[value]);
        !old.zip(new).is_some_and(|(old, new)| is_close(old, new))
    });
    unequal.map_or(Ok(()), |index| Err(CaseFailure::Unequal(index)))
}

fn is_close(a: &Tensor, b: &Tensor) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
    a.shape == b.shape && a.data.iter().zip(&b.data).all(close)
}

fn keyword(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

impl Level for Graph {
    fn parse(text: &str) -> Result<Self, ParseError> {
        Graph::parse(text, phalanx_ops::operators())
    }
    fn broken(&self) -> Vec<(String, String)> {
        self.verify().err().iter().flatten().map(|error| (start_of(error), error.to_string())).collect()
    }
}

impl Level for ParallelGraph {
    fn parse(text: &str) -> Result<Self, ParseError> {
        ParallelGraph::parse(text, phalanx_ops::operators())
    }
    fn broken(&self) -> Vec<(String, String)> {
        self.verify().err().iter().flatten().map(|error| (start_of(error), error.to_string())).collect()
    }
}

impl Level for TaskGraph {
    fn parse(text: &str) -> Result<Self, ParseError> {
        text.parse()
    }
    fn broken(&self) -> Vec<(String, String)> {
        let start = |error: &TaskError| match error {
            TaskError::View { view: buffer, .. }
            | TaskError::Tile { buffer }
            | TaskError::Missing { buffer } => buffer.to_string(),
            TaskError::Unwritten { task, .. }
            | TaskError::Device { task, .. }
            | TaskError::Chain { task, .. }
            | TaskError::Side { task, .. }
            | TaskError::Written { task, .. } => task.to_string(),
        };
        self.verify().err().iter().flatten().map(|error| (start(error), error.to_string())).collect()
    }
}

impl Level for ShardedGraph {
    fn parse(text: &str) -> Result<Self, ParseError> {
        text.parse()
    }
    fn broken(&self) -> Vec<(String, String)> {
        let start = |error: &ShardedError| match error {
            ShardedError::Buffer { buffer, .. } | ShardedError::Missing { buffer } => buffer.to_string(),
            ShardedError::Grid { task, .. }
            | ShardedError::Unwritten { task, .. }
            | ShardedError::Written { task, .. }
            | ShardedError::Chain { task, .. }
            | ShardedError::Move { task, .. }
            | ShardedError::Sides { task, .. } => task.to_string(),
        };
        self.verify().err().iter().flatten().map(|error| (start(error), error.to_string())).collect()
    }
}

fn start_of(error: &VerifyError) -> String {
    match error {
        VerifyError::Outputs => "return".into(),
        VerifyError::Name { name: layer }
        | VerifyError::UseBeforeDefinition { layer }
        | VerifyError::Type { layer, .. }
        | VerifyError::Op { layer, .. } => format!("%{layer}"),
        VerifyError::NotState { value: state, .. }
        | VerifyError::UpdateType { state, .. }
        | VerifyError::UpdatedTwice { state } => format!("update %{state}"),
    }
}

fn load<L: Level>(text: &str) -> Result<L, Vec<Located>> {
    let level = L::parse(text).map_err(|error| vec![(error.line, error.message)])?;
    let broken = level.broken();
    if broken.is_empty() {
        return Ok(level);
    }
    Err(broken.into_iter().map(|(start, error)| (line_of(text, &start), error)).collect())
}

fn print_level<L: Level>(text: &str) -> Result<String, (usize, CaseFailure)> {
    let level: L = load(text).map_err(|errors| {
        let (line, error) = errors[0].clone();
        (line, CaseFailure::UnexpectedError(error))
    })?;
    let printed = level.to_string();
    match L::parse(&printed) {
        Ok(again) if again == level => Ok(printed),
        _ => Err((line_of(text, keyword(text)), CaseFailure::RoundTrip(printed))),
    }
}

/// The line that starts with the word `start`; the first one of the block if none does.
fn line_of(text: &str, start: &str) -> usize {
    let ends = |rest: &str| rest.chars().next().is_none_or(|c| " ,:=".contains(c));
    let is_start = |line: &str| line.trim_start().strip_prefix(start).is_some_and(ends);
    let found = text.lines().position(is_start);
    1 + found.or_else(|| text.lines().position(|line| !line.trim().is_empty())).unwrap_or(0)
}
