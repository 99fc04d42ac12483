//! The logs of one process: a line of JSON for everything that happens, and on rank 0 the numbers of every step for
//! TensorBoard. Both are handed to the system at once, so that a process that is killed loses nothing. A run that is resumed
//! adds to them: steps that were done after the checkpoint are there twice, with the same numbers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use phalanx::internals::watch::{Board, EventError};
use phalanx::train::{Report, Run, TrainConfig};
use serde::Serialize;

use crate::failure::Failure;

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
    /// The logs of `rank` in the directory of `config`, which is made if it is not there. The lines of an earlier run are
    /// replaced, unless it is resumed.
    pub fn open(config: &TrainConfig, rank: u32) -> Result<Log, Failure> {
        let Some(dir) = &config.log_dir else { return Ok(Log { lines: None, board: None }) };
        let path = dir.join(format!("rank-{rank}.jsonl"));
        let mut options = File::options();
        options.create(true).append(config.resume).write(true).truncate(!config.resume);
        let opened = std::fs::create_dir_all(dir).and_then(|()| options.open(&path));
        let file = opened.map_err(|error| {
            let path = path.display();
            Failure::Input(format!(
                "cannot write the log {path}: {error}; choose another directory with --log-dir"
            ))
        })?;
        let board = (rank == 0).then(|| Board::open(dir)).transpose();
        let board = board.map_err(|error| Failure::Input(error.to_string()))?;
        Ok(Log { lines: Some((path, file)), board })
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
