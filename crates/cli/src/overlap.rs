//! `phalanx plan overlap`: how much of a step's communication is hidden, and why not more.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use phalanx::internals::overlap::Overview;
use phalanx::internals::timeline::{TimelineReport, Totals, TransferRow, html, trace};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Files that show a step.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Drawings {
    /// Write the timelines of all lanes to FILE, for the Perfetto UI or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write a page with timelines, memory and transfers to FILE, which any browser opens
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

impl Drawings {
    /// Whether any is asked for.
    pub fn any(&self) -> bool {
        self.trace.is_some() || self.report.is_some()
    }

    /// Fails early if a file cannot be written.
    pub fn check(&self) -> Result<(), Failure> {
        let mut paths = self.trace.iter().chain(&self.report);
        paths.try_for_each(|path| File::create(path).map(drop).map_err(|error| cannot_write(path, error)))
    }

    /// Writes those that are asked for.
    pub fn write(&self, report: &TimelineReport) -> Result<(), Failure> {
        let write = |path: &Path, write: fn(&TimelineReport, &mut BufWriter<File>) -> std::io::Result<()>| {
            let file = File::create(path).map(BufWriter::new);
            let written = file.and_then(|mut file| {
                write(report, &mut file)?;
                file.flush()
            });
            written.map_err(|error| cannot_write(path, error))
        };
        if let Some(path) = &self.trace {
            write(path, |report, file| trace::write(report, file))?;
        }
        if let Some(path) = &self.report {
            write(path, |report, file| html::write(report, file))?;
        }
        Ok(())
    }
}

fn cannot_write(path: &Path, error: std::io::Error) -> Failure {
    Failure::Input(format!("cannot write {}: {error}", path.display()))
}

/// Prints the table and the totals.
pub fn print(overview: &Overview, all: bool) -> Result<(), Failure> {
    let transfers = overview.transfers();
    if transfers.is_empty() {
        output::line("nothing moves between devices")?;
    } else {
        table(&transfers, all)?;
    }
    let (before, after) = overview.totals();
    output::line(format!("\n{:24}{:>14}{:>14}", "", "no overlap", "chosen"))?;
    let row = |name: &str, value: fn(&Totals) -> String| {
        output::line(format!("{name:24}{:>14}{:>14}", value(&before), value(&after)))
    };
    row("step alone", |totals| time(totals.step))?;
    row("exposed communication", |totals| time(totals.exposed))?;
    row("computing", |totals| time(totals.compute))?;
    row("no order can beat", |totals| time(totals.lower_bound))?;
    row("peak of a device", |totals| output::bytes(totals.peak))?;
    let (plain, chosen) = overview.steps();
    output::line(format!("{:24}{:>14}{:>14}", "step among steps", time(plain), time(chosen)))
}

/// The most transfers printed unless all are wanted.
const SHOWN: usize = 20;

/// The transfers of which most is exposed, or all in their order.
fn table(transfers: &[TransferRow], all: bool) -> Result<(), Failure> {
    let mut rows: Vec<&TransferRow> = transfers.iter().collect();
    if !all {
        rows.sort_by_key(|row| std::cmp::Reverse(row.time - row.hidden));
        rows.truncate(SHOWN);
    }
    let width = rows.iter().map(|row| row.layer.len()).max().unwrap_or(0).max(5);
    output::line(format!(
        "{:>8}  {:14}  {:width$}  {:>10}  {:>10}  {:>6}  {:>6}  limited by",
        "movement", "kind", "for", "bytes", "time", "hidden", "moves"
    ))?;
    for row in &rows {
        output::line(format!(
            "{:>8}  {:14}  {:width$}  {:>10}  {:>10}  {:>4.0} %  {:>6}  {}",
            row.movement,
            row.kind,
            row.layer,
            output::bytes(row.bytes),
            time(row.time),
            100.0 * row.hidden_share(),
            row.moves,
            row.limit
        ))?;
    }
    match transfers.len() - rows.len() {
        0 => Ok(()),
        more => output::line(format!("… and {more} that are exposed less (--all shows all, in order)")),
    }
}

/// Nanoseconds, for people.
pub fn time(nanoseconds: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.into_iter().find(|(unit, _)| nanoseconds >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", nanoseconds as f64 / unit as f64),
        None => format!("{nanoseconds} ns"),
    }
}

/// The same as one line of JSON.
pub fn json(overview: &Overview) -> Result<(), Failure> {
    let ((before, after), (plain, chosen)) = (overview.totals(), overview.steps());
    let transfers: Vec<_> = overview
        .transfers()
        .into_iter()
        .map(|row| {
            let share = row.hidden_share();
            json!({
                "movement": row.movement, "kind": row.kind, "layer": row.layer, "bytes": row.bytes,
                "devices": row.devices, "time_ns": row.time, "hidden_ns": row.hidden, "hidden_share": share,
                "moves": row.moves, "limit": row.limit,
            })
        })
        .collect();
    let totals = |totals: Totals, among: u64| {
        json!({
            "step_ns": totals.step, "exposed_ns": totals.exposed, "compute_ns": totals.compute,
            "lower_bound_ns": totals.lower_bound, "peak_bytes": totals.peak, "step_among_steps_ns": among,
        })
    };
    output::json(&json!({
        "overlaps": overview.overlaps(), "transfers": transfers,
        "before": totals(before, plain), "after": totals(after, chosen),
    }))
}
