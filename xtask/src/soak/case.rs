//! A case: what happens in one directory, whether it is as it should be, and the counts of all of them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::attempt::{Attempt, Ended, Kill};
use super::{STEPS, Training, names};

/// The most kills of a case.
const KILLS: u64 = 3;

/// Calls that write checkpoints in a whole run, about.
const CALLS: u64 = 110;

/// How often what happened.
#[derive(Default)]
pub struct Tally {
    cases: u64,
    runs: u64,
    jobs: u64,
    /// Kills from outside, by what was going on: starting, steps, a checkpoint.
    outside: [u64; 3],
    at_step: u64,
    at_call: u64,
    killed_jobs: u64,
    /// Attempts in a directory where another one was killed.
    resumes: u64,
    /// Those of them that found no checkpoint, took up from the newest, or from one before a damaged one.
    found: [u64; 3],
    /// Cases that did not end as they should.
    pub failures: u64,
}

/// Numbers that look random and are a function of the seed.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn attempt(&mut self, training: &Training, number: u64, is_last: bool) -> Attempt {
        let ranks = if self.below(10) == 0 && training.times[1].is_some() { 2 } else { 1 };
        let rank = self.below(ranks) as u32;
        let whole = training.times[ranks as usize - 1].unwrap_or_default();
        let kill = match self.below(100) {
            0..45 => Kill::Moment(whole * self.below(1000) as u32 / 1000, rank),
            45..60 => Kill::Step(rank, 1 + self.below(STEPS)),
            _ => Kill::Call(1 + self.below(CALLS)),
        };
        Attempt { number, ranks: ranks as u32, kill: (!is_last).then_some(kill) }
    }
}

/// Runs case `number` and checks all that can be seen of it; the directory goes if nothing is wrong.
pub fn run(training: &Training, seed: u64, number: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random(seed.wrapping_mul(0x1_0000_0001).wrapping_add(number));
    // Seeds that follow each other begin alike.
    random.below(1);
    let dir = training.dir.join(format!("case-{number}"));
    let made = fs::remove_dir_all(&dir).or(Ok(())).and_then(|()| fs::create_dir_all(&dir));
    made.map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let (kills, mut lines) = (1 + random.below(KILLS), Vec::new());
    tally.cases += 1;
    for attempt in 0..=kills {
        let attempt = random.attempt(training, attempt, attempt == kills);
        let damages = random.below(4) == 0;
        let result = tally.attempt(training, &attempt, &dir, damages);
        lines.push(attempt.line(training, &dir));
        match result {
            Ok(true) => break,
            Ok(false) => {}
            Err(problem) => return Err(format!("case {number}: {problem}\n  {}", lines.join("\n  "))),
        }
    }
    fs::remove_dir_all(&dir).map_err(|error| format!("cannot remove {}: {error}", dir.display()))
}

impl Tally {
    /// All kills so far.
    pub fn kills(&self) -> u64 {
        self.outside.iter().sum::<u64>() + self.at_step + self.at_call
    }

    /// Makes an attempt, of which the newest checkpoint may be damaged before; whether the run has come to its end.
    fn attempt(
        &mut self,
        training: &Training,
        attempt: &Attempt,
        dir: &Path,
        damages: bool,
    ) -> Result<bool, String> {
        let checkpoints = dir.join("checkpoints");
        if damages {
            damage(&checkpoints).map_err(|error| format!("{}: {error}", checkpoints.display()))?;
        }
        let (steps, newest) = (committed(&checkpoints), newest_whole(&checkpoints));
        let ended = attempt.run(training, dir)?;
        self.runs += 1;
        self.jobs += u64::from(attempt.ranks > 1);
        let kind = check_start(&ended, &steps, newest)?;
        if attempt.number > 0 {
            self.resumes += 1;
            kind.into_iter().for_each(|kind| self.found[kind] += 1);
        }
        match ended.weights() {
            Some(weights) => check_end(training, &weights, &checkpoints).map(|()| true),
            None if attempt.was_killed(&ended) => {
                self.count(attempt, &ended, &checkpoints);
                Ok(false)
            }
            None => Err(format!("it ended with {}: {}", ended.status, ended.stderr.trim_end())),
        }
    }

    fn count(&mut self, attempt: &Attempt, ended: &Ended, checkpoints: &Path) {
        self.killed_jobs += u64::from(attempt.ranks > 1);
        match attempt.kill {
            Some(Kill::Step(..)) => self.at_step += 1,
            Some(Kill::Call(_)) => self.at_call += 1,
            _ if names(checkpoints).iter().any(|name| name.starts_with('.')) => self.outside[2] += 1,
            _ => self.outside[usize::from(!ended.stdout.is_empty())] += 1,
        }
    }
}

/// Checks where an attempt took up, if it was not killed before it could say so: the index of [`Tally::found`].
fn check_start(ended: &Ended, steps: &[u64], newest: Option<u64>) -> Result<Option<usize>, String> {
    let said = |text: &str| ended.stderr.contains(text);
    let (kind, expected) = match newest {
        _ if !said("note: ") => return Ok(None),
        None => (0, "has no checkpoint to resume: starting from scratch".into()),
        Some(step) => {
            (1 + usize::from(steps.last() != Some(&step)), format!("resumed after step {step} from"))
        }
    };
    match said(&expected) && said("is damaged") == (kind == 2) {
        true => Ok(Some(kind)),
        false => Err(format!(
            "it should have said `{expected}` about {steps:?}, not:\n{}",
            ended.stderr.trim_end()
        )),
    }
}

/// Checks what a run that has come to its end leaves.
fn check_end(training: &Training, weights: &str, checkpoints: &Path) -> Result<(), String> {
    if weights != training.weights {
        return Err(format!("the weights are {weights}, without kills {}", training.weights));
    }
    let (left, last) = (names(checkpoints), name_of(STEPS));
    let latest = fs::read_to_string(checkpoints.join("latest")).unwrap_or_default();
    match left.last() == Some(&last)
        && latest.trim_end() == last
        && left.iter().all(|name| !name.starts_with('.'))
    {
        true => Ok(()),
        false => Err(format!(
            "{} holds {left:?} and `latest` names `{}`",
            checkpoints.display(),
            latest.trim_end()
        )),
    }
}

fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

/// The steps of all checkpoints that are committed, ascending.
fn committed(checkpoints: &Path) -> Vec<u64> {
    names(checkpoints).iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect()
}

fn newest_whole(checkpoints: &Path) -> Option<u64> {
    committed(checkpoints).into_iter().rev().find(|&step| is_whole(checkpoints, step))
}

fn first_file(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(name_of(step)).join("rank-0000.safetensors")
}

/// Whether the first file of a checkpoint has the length that the manifest says; nothing else is ever damaged here.
fn is_whole(checkpoints: &Path, step: u64) -> bool {
    let manifest =
        fs::read_to_string(checkpoints.join(name_of(step)).join("manifest.json")).unwrap_or_default();
    let bytes = manifest.split("\"bytes\": ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    bytes.is_some() && fs::metadata(first_file(checkpoints, step)).ok().map(|file| file.len()) == bytes
}

/// Cuts a file of the newest checkpoint in half, as a lost disk might, if there is a whole one before it.
fn damage(checkpoints: &Path) -> std::io::Result<()> {
    let whole: Vec<u64> =
        committed(checkpoints).into_iter().filter(|&step| is_whole(checkpoints, step)).collect();
    let &[.., _, newest] = &whole[..] else { return Ok(()) };
    let file = fs::OpenOptions::new().write(true).open(first_file(checkpoints, newest))?;
    file.set_len(file.metadata()?.len() / 2)
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { cases, runs, jobs, outside, at_step, at_call, killed_jobs, resumes, found, failures } =
            self;
        writeln!(
            f,
            "{} kills, {killed_jobs} of them of a rank of two; {cases} cases, {runs} runs, {jobs} on ranks",
            self.kills()
        )?;
        writeln!(
            f,
            "  killed from outside: while starting {}, during steps {}, while a checkpoint was written {}",
            outside[0], outside[1], outside[2]
        )?;
        writeln!(f, "  killed before a step {at_step}, at a call of a commit {at_call}")?;
        writeln!(
            f,
            "  {resumes} resumes: from the newest checkpoint {}, from one before a damaged one {}, from the start {}, the others killed too early to tell",
            found[1], found[2], found[0]
        )?;
        write!(f, "  failures {failures}")
    }
}
