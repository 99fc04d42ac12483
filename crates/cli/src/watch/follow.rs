//! The logs of a run, read again and again while they grow.
//!
//! Only whole lines are taken; what is no line of a log is passed over. A file that has become shorter is another run's and
//! is read from its beginning. Steps that are there twice, because a run was resumed, count once, as the last one says.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// The logs of all ranks.
pub struct RunLog {
    pub dir: PathBuf,
    pub ranks: BTreeMap<u32, RankLog>,
}

/// What one rank has written so far.
#[derive(Default)]
pub struct RankLog {
    /// Bytes of the lines that were read.
    read: u64,
    /// By step, ascending.
    pub steps: Vec<LoggedStep>,
    /// What it used when that was last logged.
    pub load: Option<LoggedLoad>,
    /// The last line of a run that has ended.
    pub summary: Option<Value>,
}

/// A step; a number that is not finite is missing.
#[derive(Deserialize)]
pub struct LoggedStep {
    pub step: u64,
    pub loss: Option<f64>,
    pub eval_loss: Option<f64>,
    pub eval_perplexity: Option<f64>,
    pub tokens_per_s: Option<f64>,
    pub lr: Option<f64>,
    pub gradient_norm: Option<f64>,
    /// The last step of the run.
    pub steps: Option<u64>,
    /// When it was done, in seconds since 1970.
    pub time: Option<f64>,
}

/// What a rank uses.
#[derive(Clone, Deserialize, Serialize)]
pub struct LoggedLoad {
    /// Lanes and the shares of the time that they are busy.
    pub lanes: Vec<(String, f64)>,
    pub arena_bytes: u64,
    pub resident_bytes: Option<u64>,
}

impl RunLog {
    /// The logs in `dir`, of which there is at least one.
    pub fn open(dir: &Path) -> Result<RunLog, Failure> {
        let mut log = RunLog { dir: dir.into(), ranks: BTreeMap::new() };
        log.poll()?;
        match log.ranks.is_empty() {
            false => Ok(log),
            true => Err(Failure::Input(format!(
                "{} has no log: there is no rank-0.jsonl; give a directory that `train --log-dir` writes to",
                dir.display()
            ))),
        }
    }

    /// Reads what was added.
    pub fn poll(&mut self) -> Result<(), Failure> {
        let unreadable = |path: &Path, error: io::Error| {
            let path = path.display();
            Failure::Input(format!(
                "cannot read {path}: {error}; give a directory that `train --log-dir` writes to"
            ))
        };
        let entries = fs::read_dir(&self.dir).map_err(|error| unreadable(&self.dir, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| unreadable(&self.dir, error))?;
            if let Some(rank) = rank_of(&entry.file_name().to_string_lossy()) {
                let path = entry.path();
                self.ranks.entry(rank).or_default().poll(&path).map_err(|error| unreadable(&path, error))?;
            }
        }
        Ok(())
    }
}

/// The rank whose log has this name.
fn rank_of(name: &str) -> Option<u32> {
    name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
}

impl RankLog {
    fn poll(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < self.read {
            *self = RankLog::default();
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        bytes[..whole].split(|&byte| byte == b'\n').for_each(|line| self.add(line));
        Ok(())
    }

    fn add(&mut self, line: &[u8]) {
        let Ok(mut line) = serde_json::from_slice::<Value>(line) else { return };
        if let Some(summary) = line.get_mut("summary") {
            self.summary = Some(summary.take());
            return;
        }
        let load = line.get_mut("load").map(Value::take);
        let Ok(step) = serde_json::from_value::<LoggedStep>(line) else { return };
        let later = self.steps.partition_point(|before| before.step < step.step);
        self.steps.truncate(later);
        self.steps.push(step);
        // A run that is resumed after its end goes on.
        self.summary = None;
        self.load = load.and_then(|load| serde_json::from_value(load).ok()).or(self.load.take());
    }
}
