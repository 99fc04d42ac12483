//! Soaking: a training run is killed at random moments and resumed, hundreds of times, and must end with the same bits.
//!
//! A case is a directory of checkpoints in which attempts at one run follow each other, most of them killed, until one
//! reaches the end. Its weights must be those of a run that is not killed, and every attempt must take up from the
//! newest checkpoint that is whole. What a case does is a function of the seed and its number; where a kill strikes
//! that comes from outside is up to the clock.

mod attempt;
mod case;
mod faults;
mod storage;
mod strikes;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::bench::option;
use crate::{cargo, root, run_with};
use attempt::Attempt;
use case::Tally;

/// Steps of the run.
const STEPS: u64 = 20;

/// Kills between two lines that report its progress.
const PROGRESS: u64 = 25;

/// What every attempt runs, and its result if it is not killed.
struct Training {
    /// The command.
    program: PathBuf,
    /// Where the directories of cases are.
    dir: PathBuf,
    /// The text to train on.
    data: PathBuf,
    /// The fingerprint of the weights after the last step.
    weights: String,
    /// How long it takes with checkpoints: in one process, and on two ranks if there is a launcher.
    times: [Option<Duration>; 2],
}

/// With `--tests`, all random cases of tests, of which `check` tries a tenth (`phalanx_testkit::cases`). With `--faults N`,
/// jobs that fail in every way (`faults`); with `--strikes N`, ranks that are killed, stopped or frozen at random moments
/// (`strikes`); with `--storage N`, flipped bits, full disks and closed pipes (`storage`). Else kills `--kills N` runs, 500
/// if absent; `--seed S` repeats what a line of the report names, `--case K` one case of it.
pub fn soak(args: &[&str]) -> Result<(), String> {
    if args == ["--tests"] {
        let tests =
            ["test", "--workspace", "--exclude", "phalanx-cli", "--exclude", "phalanx-net", "--tests"];
        let how = ["--no-fail-fast", "--quiet", "--profile", "checked"];
        return run_with("cargo", &[&tests[..], &how].concat(), &[("PHALANX_SOAK", "1")]);
    }
    if let Some(runs) = number(args, "--faults")? {
        return faults::faults(args, runs);
    }
    let (kills, only) = (number(args, "--kills")?.unwrap_or(500), number(args, "--case")?);
    let seed = number(args, "--seed")?.unwrap_or_else(any_seed);
    let given = option(args, "--program")?;
    if given.is_none() {
        cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    }
    let (start, training) = (Instant::now(), Training::new(strikes::program(given))?);
    if let Some(count) = number(args, "--strikes")? {
        return strikes::strikes(&training, seed, count);
    }
    if let Some(count) = number(args, "--storage")? {
        return storage::storage(&training, seed, count);
    }
    let ranks = if training.times[1].is_some() { "one in ten on 2 ranks" } else { "no launcher for ranks" };
    println!("seed {seed}: {kills} kills, {ranks}; the weights of a whole run are {}", training.weights);
    let (mut tally, mut told) = (Tally::default(), 0);
    for number in only.unwrap_or(1).. {
        if let Err(problem) = case::run(&training, seed, number, &mut tally) {
            tally.failures += 1;
            println!("{problem}\n  to repeat it: cargo xtask soak --seed {seed} --case {number}");
        }
        if tally.kills() / PROGRESS > told {
            told = tally.kills() / PROGRESS;
            println!("{:5} kills, {:.0} s", tally.kills(), start.elapsed().as_secs_f64());
        }
        if tally.kills() >= kills || only.is_some() {
            break;
        }
    }
    println!("{tally}\nseed {seed}, {:.0} s", start.elapsed().as_secs_f64());
    match tally.failures {
        0 => Ok(()),
        failures => {
            Err(format!("{failures} cases failed; their directories are in {}", training.dir.display()))
        }
    }
}

impl Training {
    /// Runs to the end without a kill, in one process and on two ranks.
    fn new(program: PathBuf) -> Result<Training, String> {
        let dir = root().join("target/soak");
        let data = dir.join("data.txt");
        empty(&dir)
            .and_then(|()| std::fs::write(&data, "all work and no play makes jack a dull boy. ".repeat(40)))
            .map_err(|error| format!("cannot write {}: {error}", data.display()))?;
        let mut training = Training { program, dir, data, weights: String::new(), times: [None; 2] };
        let (alone, weights) = training.whole("alone", 1)?;
        (training.times[0], training.weights) = (Some(alone), weights);
        let launcher = ["launch", "-n", "2", "--dry-run", "--", "train"];
        if std::process::Command::new(&training.program)
            .args(launcher)
            .output()
            .is_ok_and(|output| output.status.success())
        {
            let (together, weights) = training.whole("together", 2)?;
            if weights != training.weights {
                return Err(format!(
                    "two ranks end with the weights {weights}, one with {}",
                    training.weights
                ));
            }
            training.times[1] = Some(together);
        }
        Ok(training)
    }

    /// Time and weights of a run to the end.
    fn whole(&self, name: &str, ranks: u32) -> Result<(Duration, String), String> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let (attempt, start) = (Attempt { number: 0, ranks, kill: None }, Instant::now());
        let ended = attempt.run(self, &dir)?;
        ended
            .weights()
            .map(|weights| (start.elapsed(), weights))
            .ok_or_else(|| format!("`{}` did not end well:\n{}", attempt.line(self, &dir), ended.stderr))
    }
}

/// Makes a directory and removes what an earlier soak has left in it.
fn empty(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir_all(dir),
    }
}

/// The number after `name`, if it is there.
fn number(args: &[&str], name: &str) -> Result<Option<u64>, String> {
    let parse = |text: &str| text.parse().map_err(|_| format!("{name} takes a whole number, not `{text}`"));
    option(args, name)?.map(parse).transpose()
}

fn any_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The names in a directory; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
