//! The log of one process: a line of JSON for everything that happens, flushed at once.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;

/// Writes `rank-N.jsonl` in a directory, or nothing.
pub struct Log(Option<(PathBuf, File)>);

impl Log {
    /// The log of `rank` in `dir`, which is made if it is not there; one of an earlier run is replaced.
    pub fn open(dir: Option<&Path>, rank: u32) -> Result<Log, Failure> {
        let Some(dir) = dir else { return Ok(Log(None)) };
        let path = dir.join(format!("rank-{rank}.jsonl"));
        let opened = std::fs::create_dir_all(dir).and_then(|()| File::create(&path));
        let file = opened.map_err(|error| {
            let path = path.display();
            Failure::Input(format!(
                "cannot write the log {path}: {error}; choose another directory with --log-dir"
            ))
        })?;
        Ok(Log(Some((path, file))))
    }

    /// Adds a line.
    pub fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::Run(format!("cannot print JSON: {error}")))?;
        writeln!(file, "{text}")
            .map_err(|error| Failure::Run(format!("cannot write the log {}: {error}", path.display())))
    }
}
