//! One attempt at the run: its command line, and waiting for its end, however that comes.
//!
//! Processes are found by the directory among their arguments, so it does not matter what has started the ranks of a
//! job.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::{STEPS, Training};
use crate::root;

/// The longest that an attempt may take.
const LIMIT: Duration = Duration::from_secs(120);

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(1);

/// How an attempt is killed.
#[derive(Clone, Copy)]
pub enum Kill {
    /// From outside, so long after its start; of a job the rank of this number.
    Moment(Duration, u32),
    /// By itself, before a step: rank and step.
    Step(u32, u64),
    /// By itself, at a call that writes a checkpoint; every rank of a job at its own.
    Call(u64),
}

/// One process, or one job, that trains on from the newest checkpoint.
pub struct Attempt {
    /// Which attempt of its case.
    pub number: u64,
    /// Processes.
    pub ranks: u32,
    /// How it is killed, if it is.
    pub kill: Option<Kill>,
}

/// What an attempt has left.
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it said beside that.
    pub stderr: String,
}

impl Attempt {
    /// The arguments of `phalanx` with checkpoints below `dir`.
    pub fn words(&self, training: &Training, dir: &Path) -> Vec<String> {
        let run = root().join("crates/cli/tests/resume/run.toml");
        let [run, data, checkpoints] =
            [&run, &training.data, &dir.join("checkpoints")].map(|path| path.display().to_string());
        let start = match self.ranks {
            1 => "train",
            // Looking for the best schedule would take most of the time.
            _ => "launch -n 2 -- train --overlap off",
        };
        let size = format!("--width 64 --context 64 --steps {STEPS}");
        let line = [start, &size, "--json --every 4 --keep 2 --resume"].join(" ");
        let mut words: Vec<String> = line.split(' ').map(String::from).collect();
        words.extend([run, "--data".into(), data, "--checkpoint".into(), checkpoints]);
        match self.kill {
            Some(Kill::Step(rank, step)) => words.extend(["--drill".into(), format!("kill@{rank}:{step}")]),
            Some(Kill::Call(call)) => words.extend(["--drill".into(), format!("kill@save:{call}")]),
            Some(Kill::Moment(..)) | None => {}
        }
        words
    }

    /// The attempt for people: a command line, and what else is done to it.
    pub fn line(&self, training: &Training, dir: &Path) -> String {
        let line = format!("phalanx {}", self.words(training, dir).join(" "));
        match self.kill {
            Some(Kill::Moment(moment, rank)) => {
                format!("{line}   # rank {rank} killed after {:.3} s", moment.as_secs_f64())
            }
            _ => line,
        }
    }

    /// Runs it in the directory of its case, where its output stays.
    pub fn run(&self, training: &Training, dir: &Path) -> Result<Ended, String> {
        let outputs = ["out", "err"].map(|kind| dir.join(format!("{}.{kind}", self.number)));
        let run = || {
            let mut child = Command::new(&training.program)
                .args(self.words(training, dir))
                .stdin(Stdio::null())
                .stdout(File::create(&outputs[0])?)
                .stderr(File::create(&outputs[1])?)
                .spawn()?;
            let (sender, ended) = mpsc::channel();
            thread::spawn(move || sender.send(child.wait()));
            let status = self.wait(dir, &ended)?;
            let [stdout, stderr] = [fs::read(&outputs[0])?, fs::read(&outputs[1])?];
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ok(Ended { status, stdout: text(stdout), stderr: text(stderr) })
        };
        run().map_err(|error: io::Error| format!("`{}`: {error}", self.line(training, dir)))
    }

    /// Whether this end is the kill's. A launcher has any code of a failure for it but that of wrong input.
    pub fn was_killed(&self, ended: &Ended) -> bool {
        match (self.kill, self.ranks) {
            (None, _) => false,
            (Some(_), 1) => ended.status.signal() == Some(9),
            (Some(_), _) => ended.status.code().is_some_and(|code| code != 0 && code != 2),
        }
    }

    /// Waits for its end and that of all its ranks. One that takes too long is killed with them, and is an error.
    fn wait(&self, dir: &Path, ended: &Receiver<io::Result<ExitStatus>>) -> io::Result<ExitStatus> {
        let (start, mut status) = (Instant::now(), None);
        let mut strike = match self.kill {
            Some(Kill::Moment(moment, rank)) => Some((moment, rank)),
            _ => None,
        };
        while start.elapsed() < LIMIT {
            if let Ok(ended) = ended.recv_timeout(TICK) {
                status = Some(ended?);
            }
            if let Some(status) = status.filter(|_| processes(dir).is_empty()) {
                return Ok(status);
            }
            if let Some((_, rank)) = strike.filter(|(moment, _)| start.elapsed() >= *moment)
                && let victims = processes(dir)
                && !victims.is_empty()
            {
                kill(victims[rank as usize % victims.len()])?;
                strike = None;
            }
        }
        processes(dir).into_iter().try_for_each(kill)?;
        Err(io::Error::other(format!("it did not end in {} s", LIMIT.as_secs())))
    }
}

impl Ended {
    /// The fingerprint of the weights, if the run has come to its end.
    pub fn weights(&self) -> Option<String> {
        let summary = self.stdout.lines().last().filter(|_| self.status.success())?;
        Some(summary.split("\"weights_hash\":\"").nth(1)?.split('"').next()?.into())
    }
}

/// The processes that train with checkpoints below `dir`, ascending.
pub fn processes(dir: &Path) -> Vec<u32> {
    let checkpoints = dir.join("checkpoints");
    let trains = |line: &[u8]| {
        let mut words = line.split(|&byte| byte == 0);
        words.next().is_some()
            && words.next() == Some(b"train")
            && words.any(|word| word == checkpoints.as_os_str().as_encoded_bytes())
    };
    let numbers = super::names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let mut found: Vec<u32> = numbers
        .filter(|id| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| trains(&line)))
        .collect();
    found.sort_unstable();
    found
}

fn kill(process: u32) -> io::Result<()> {
    signal(process, "KILL")
}

/// Sends a signal of this name.
pub fn signal(process: u32, name: &str) -> io::Result<()> {
    let flag = format!("-{name}");
    // It may have ended by itself meanwhile.
    Command::new("kill").args([&flag, &process.to_string()]).stderr(Stdio::null()).status().map(|_| ())
}
