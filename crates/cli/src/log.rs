//! The logs of one process: a line of JSON for everything that happens, and on rank 0 the numbers of every step for
//! TensorBoard. Both are handed to the system at once, so that a process that is killed loses nothing. A run that is resumed
//! adds to them: steps that were done after the checkpoint are there twice, with the same numbers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx::internals::watch::{Board, EventError};
use phalanx::train::{Report, Run, TrainConfig};
use serde::Serialize;

use crate::failure::Failure;
use crate::{job, output};

/// Writes `rank-N.jsonl` and an event file in a directory, or nothing.
pub struct Log {
    lines: Option<(PathBuf, File)>,
    board: Option<Board>,
    /// When the load was last logged, and the seconds that each lane had been busy by then.
    measured: (Instant, Vec<f64>),
}

/// What a process uses, over the time since it was last logged.
#[derive(Serialize)]
struct Load {
    /// The share of the time that each lane was busy.
    lanes: Vec<LaneLoad>,
    /// Bytes of the arenas of this process.
    arena_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
}

/// A lane: its device, whether it computes or transfers, and its busy share.
#[derive(Serialize)]
struct LaneLoad(String, f64);

/// How often the load is logged.
const LOAD_EVERY: Duration = Duration::from_secs(1);

/// A step, what `phalanx watch` needs to know beside it, and on rank 0 the hashes of its tensors, if it has any.
#[derive(Serialize)]
struct Step<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// The last step of the run.
    steps: u64,
    /// When it was done, in seconds since 1970.
    time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<Load>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hashes: Option<&'a BTreeMap<String, String>>,
}

impl Log {
    /// Refuses a directory that has the log of another run, before anything is written; makes the directory.
    pub fn check(config: &TrainConfig, rank: u32) -> Result<(), Failure> {
        Log::refuse_other(config, rank)?;
        let Some(dir) = &config.log_dir else { return Ok(()) };
        fs::create_dir_all(dir).map_err(|error| unwritable(&path_of(dir, rank), &error))
    }

    /// Refuses a directory that has the log of another run. The lines of a run that is resumed stay, those of another one
    /// go only if that is asked for.
    pub fn refuse_other(config: &TrainConfig, rank: u32) -> Result<(), Failure> {
        let Some(dir) = &config.log_dir else { return Ok(()) };
        let path = path_of(dir, rank);
        if path.exists() && !goes_on(config) && !config.overwrite {
            return Err(Failure::Input(format!(
                "{} is the log of another run; choose another --log-dir, or replace it with --overwrite",
                path.display()
            )));
        }
        Ok(())
    }

    /// The logs of `rank` in the directory of `config`.
    pub fn open(config: &TrainConfig, rank: u32) -> Result<Log, Failure> {
        let Some(dir) = &config.log_dir else { return Ok(Log::to(None, None)) };
        let path = path_of(dir, rank);
        if rank == 0 && !goes_on(config) {
            remove_events(dir).map_err(|error| unwritable(&path, &error))?;
        }
        let mut options = File::options();
        options.create(true).append(goes_on(config)).write(true).truncate(!goes_on(config));
        let file = options.open(&path).map_err(|error| unwritable(&path, &error))?;
        let board = (rank == 0).then(|| Board::open(dir)).transpose();
        let board = board.map_err(|error| Failure::Input(error.to_string()))?;
        Ok(Log::to(Some((path, file)), board))
    }

    fn to(lines: Option<(PathBuf, File)>, board: Option<Board>) -> Log {
        Log { lines, board, measured: (Instant::now(), Vec::new()) }
    }

    /// Where the logs are, if there are any.
    pub fn dir(&self) -> Option<&Path> {
        self.lines.as_ref().and_then(|(path, _)| path.parent())
    }

    /// Adds a step.
    pub fn step(&mut self, run: &Run, report: &Report) -> Result<(), Failure> {
        if self.lines.is_none() {
            return Ok(());
        }
        let hashes = run.hashes().filter(|_| run.trainer().session().rank() == 0);
        let hashes = hashes.map(|all| &all.hashes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (steps, time, load) = (run.config().steps, now.as_millis() as f64 / 1e3, self.load(run));
        self.line(&Step { report, steps, time, load, hashes })?;
        let Some(board) = &mut self.board else { return Ok(()) };
        board.step(run, report).map_err(|error: EventError| Failure::Run(error.to_string()))
    }

    /// The load since it was last logged, if that is long enough ago.
    fn load(&mut self, run: &Run) -> Option<Load> {
        let (last, before) = &self.measured;
        let (now, is_first) = (Instant::now(), before.is_empty());
        let seconds = now.duration_since(*last);
        if !is_first && seconds < LOAD_EVERY {
            return None;
        }
        let session = run.trainer().session();
        let busy = run.profile().lane_seconds(session.part());
        let names = session.part().lanes().iter().zip(0..).map(|(lane, number)| match lane.home == number {
            true => format!("dev{}", lane.device),
            false => format!("dev{} transfers", lane.device),
        });
        let shares = busy.iter().enumerate().map(|(lane, busy)| {
            let busy = busy - before.get(lane).copied().unwrap_or(0.0);
            (busy / seconds.as_secs_f64().max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
        });
        let round = |share: f64| (share * 1000.0).round() / 1000.0;
        let lanes = names.zip(shares).map(|(name, share)| LaneLoad(name, round(share))).collect();
        self.measured = (now, busy);
        let arena_bytes = session.device_bytes().iter().sum();
        Some(Load { lanes, arena_bytes, resident_bytes: output::resident_bytes() })
    }

    /// Adds a line.
    pub fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.lines else { return Ok(()) };
        let mut text = serde_json::to_string(value)
            .map_err(|error| Failure::Run(format!("cannot print JSON: {error}")))?;
        // In one piece with its end, so that a process that is killed leaves no half of a line.
        text.push('\n');
        file.write_all(text.as_bytes())
            .map_err(|error| Failure::Run(format!("cannot write the log {}: {error}", path.display())))
    }
}

/// Whether this run goes on with the logs that are there: it is resumed, or its job was started again.
fn goes_on(config: &TrainConfig) -> bool {
    config.resume || std::env::var_os(job::ATTEMPT).is_some()
}

fn path_of(dir: &Path, rank: u32) -> PathBuf {
    dir.join(format!("rank-{rank}.jsonl"))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::Input(format!("cannot write the log {path}: {error}; choose another directory with --log-dir"))
}

/// Removes the event files of another run, which TensorBoard would mix with those of this one.
fn remove_events(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("events.out.tfevents.") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
