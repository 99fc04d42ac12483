//! `phalanx ckpt list` and `show`: what checkpoints say about themselves. Their files are not looked at.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use phalanx::Plan;
use phalanx::ckpt::{Checkpoint, Checkpoints, Manifest, Part, TensorEntry};
use phalanx::models::ModelConfig;
use serde::Serialize;
use serde_json::{Value, json};

use super::{open, steps};
use crate::failure::Failure;
use crate::output;

/// List the checkpoints of a run.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Directory of a run's checkpoints
    dir: PathBuf,
    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Show what a checkpoint says about itself: configuration, tensors, and which file holds which part.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// A checkpoint, or the directory of a run's checkpoints: the newest one
    dir: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// A checkpoint in a list.
#[derive(Serialize)]
struct Row {
    step: u64,
    /// When it was written, in seconds since 1970.
    written: Option<u64>,
    bytes: u64,
    /// Of the last step; none before the first one.
    loss: Option<f32>,
    tokens: u64,
    model: String,
    plan: String,
    ranks: usize,
    /// On held-back data, with these weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_loss: Option<f32>,
    latest: bool,
    /// Whether its loss on held-back data is the lowest.
    best: bool,
}

/// Prints a line for each checkpoint.
pub fn list(args: &ListArgs) -> Result<(), Failure> {
    let (checkpoints, steps) = (Checkpoints::open(&args.dir), steps(&args.dir)?);
    let (latest, best) = (steps.last().copied(), checkpoints.best(&steps));
    if !args.json {
        output::line(
            "step       written (UTC)        size        loss     tokens         ranks  model, plan",
        )?;
    }
    for &step in &steps {
        let [is_latest, is_best] = [latest, best].map(|marked| marked == Some(step));
        let row = checkpoints.checkpoint(step).map(|found| Row::new(&found, is_latest, is_best));
        match (row, args.json) {
            (Ok(row), true) => output::json(&row)?,
            (Ok(row), false) => output::line(row.text())?,
            (Err(error), true) => output::json(&json!({ "step": step, "error": error.to_string() }))?,
            (Err(error), false) => output::line(format!("{step:<11}damaged: {error}"))?,
        }
    }
    Ok(())
}

impl Row {
    fn new(checkpoint: &Checkpoint, latest: bool, best: bool) -> Row {
        let Manifest { run, files, .. } = checkpoint.manifest();
        Row {
            step: run.step,
            written: written(checkpoint),
            bytes: files.iter().map(|file| file.bytes).sum(),
            loss: (run.step > 0).then_some(run.loss),
            tokens: run.tokens,
            model: model(&run.model),
            plan: plan(&run.plan),
            ranks: files.len(),
            eval_loss: run.eval_loss(),
            latest,
            best,
        }
    }

    fn text(&self) -> String {
        let Row { step, ranks, model, plan, .. } = self;
        let loss = self.loss.map_or("none".into(), |loss| format!("{loss:.4}"));
        let (size, tokens) = (output::bytes(self.bytes), output::grouped(self.tokens));
        let marks = match (self.latest, self.best) {
            (true, true) => " (latest, best)",
            (true, false) => " (latest)",
            (false, true) => " (best)",
            (false, false) => "",
        };
        let written = self.written.map_or("unknown".into(), utc);
        format!("{step:<11}{written:<21}{size:<12}{loss:<9}{tokens:<15}{ranks:<7}{model}, {plan}{marks}")
    }
}

/// Prints the manifest.
pub fn show(args: &ShowArgs) -> Result<(), Failure> {
    let checkpoint = open(&args.dir)?;
    let manifest @ Manifest { run, tensors, files, .. } = checkpoint.manifest();
    if args.json {
        return output::json(&json!({ "path": checkpoint.path(), "manifest": manifest }));
    }
    let (tokens, ranks) = (output::grouped(run.tokens), output::count(files.len(), "rank"));
    let evaluated = run.eval_loss().map_or(String::new(), |loss| format!(", eval loss {loss:.4}"));
    let step = match run.step {
        0 => "0, before the first one".to_string(),
        step => format!("{step}, {tokens} tokens, loss {:.4}{evaluated}", run.loss),
    };
    let written = written(&checkpoint).map_or("unknown".into(), utc);
    for (name, value) in [
        ("checkpoint", checkpoint.path().display().to_string()),
        ("step", step),
        ("written", format!("{written} UTC by {ranks}")),
        ("model", model(&run.model)),
        ("plan", plan(&run.plan)),
        ("program hash", run.program.clone()),
    ] {
        output::line(format!("{name:14}{value}"))?;
    }
    for (title, values) in [("model", &run.model), ("config", &run.config)] {
        output::line(title)?;
        fields(values).into_iter().try_for_each(output::line)?;
    }
    output::line("files")?;
    for file in files {
        let size = output::bytes(file.bytes);
        output::line(format!("  {}  {size}, xxh3 {}", file.name, file.xxh3))?;
    }
    output::line("tensors")?;
    tensors.iter().try_for_each(|tensor| output::line(describe(manifest, tensor)))
}

/// The fields of an object that have a value, one a line.
fn fields(value: &Value) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("  {name} = {value}")).collect()
}

fn describe(manifest: &Manifest, tensor: &TensorEntry) -> String {
    let part = |Part { file, origin, shape }: &Part| {
        format!("\n    {}: {shape:?} at {origin:?}", manifest.files[*file].name)
    };
    let parts: String = tensor.parts.iter().map(part).collect();
    format!("  {}: {}{parts}", tensor.name, tensor.describe())
}

/// When a checkpoint was written, in seconds since 1970, where the system reports it.
fn written(checkpoint: &Checkpoint) -> Option<u64> {
    let modified =
        std::fs::metadata(checkpoint.path().join("manifest.json")).and_then(|file| file.modified());
    Some(modified.ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Family and size of a model.
fn model(model: &Value) -> String {
    match serde_json::from_value::<ModelConfig>(model.clone()) {
        Ok(model) => format!("{} of {} parameters", model.family(), output::grouped(model.parameters())),
        Err(_) => "unknown model".into(),
    }
}

/// Name and devices of a plan.
fn plan(text: &str) -> String {
    match Plan::parse(text) {
        Ok(plan) => format!("{} on {}", plan.name, output::count(plan.mesh.devices(), "device")),
        Err(_) => "unknown plan".into(),
    }
}

/// Date and time of day of a number of seconds since 1970.
fn utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| {
        u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)))
    };
    let mut year = 1970;
    while days >= 365 + leap(year) {
        days -= 365 + leap(year);
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let seconds = [0, 951_782_399, 951_782_400, 4_102_444_799];
        let dates =
            ["1970-01-01 00:00:00", "2000-02-28 23:59:59", "2000-02-29 00:00:00", "2099-12-31 23:59:59"];
        assert_eq!(seconds.map(utc), dates);
    }
}
