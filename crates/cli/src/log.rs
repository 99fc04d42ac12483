//! The logs of one process: a line of JSON for everything that happens, and on rank 0 the numbers of every step for
//! TensorBoard. Both are handed to the system at once, so that a process that is killed loses nothing. A run that is resumed
//! adds to them: steps that were done after the checkpoint are there twice, with the same numbers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use phalanx::internals::watch::{Board, EventError};
use phalanx::train::{Report, Run, TrainConfig};
use serde::Serialize;

use crate::failure::Failure;
use crate::job;

/// Writes `rank-N.jsonl` and an event file in a directory, or nothing.
pub struct Log {
    lines: Option<(PathBuf, File)>,
    board: Option<Board>,
}

/// A step, and on rank 0 the hashes of its tensors, if it has any.
#[derive(Serialize)]
struct Step<'a> {
    #[serde(flatten)]
    report: &'a Report,
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
        let Some(dir) = &config.log_dir else { return Ok(Log { lines: None, board: None }) };
        let path = path_of(dir, rank);
        if rank == 0 && !goes_on(config) {
            remove_events(dir).map_err(|error| unwritable(&path, &error))?;
        }
        let mut options = File::options();
        options.create(true).append(goes_on(config)).write(true).truncate(!goes_on(config));
        let file = options.open(&path).map_err(|error| unwritable(&path, &error))?;
        let board = (rank == 0).then(|| Board::open(dir)).transpose();
        let board = board.map_err(|error| Failure::Input(error.to_string()))?;
        Ok(Log { lines: Some((path, file)), board })
    }

    /// Where the logs are, if there are any.
    pub fn dir(&self) -> Option<&Path> {
        self.lines.as_ref().and_then(|(path, _)| path.parent())
    }

    /// Adds a step.
    pub fn step(&mut self, run: &Run, report: &Report) -> Result<(), Failure> {
        let hashes = run.hashes().filter(|_| run.trainer().session().rank() == 0);
        self.line(&Step { report, hashes: hashes.map(|all| &all.hashes) })?;
        let Some(board) = &mut self.board else { return Ok(()) };
        board.step(run, report).map_err(|error: EventError| Failure::Run(error.to_string()))
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
