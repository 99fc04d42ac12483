//! Soaking the phases of a job: a rank is killed, stopped or frozen for a moment at a random time, from before it has
//! started until after the last step.
//!
//! A job whose rank is killed or stopped must end soon, blame no other rank, and leave no process behind; one that is
//! frozen for less than the limit must go on. Whatever it leaves, the next attempt must end with the weights of a run that
//! nothing happened to.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::attempt::{Attempt, processes, signal};
use super::case::Random;
use super::faults::{HANGS, LAUNCHERS, Launcher, SOON};
use super::{STEPS, Training};

/// What is done to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    Kill,
    Stop,
    /// Stopped, and continued before the others lose patience.
    Freeze,
}

/// From when on the time to the strike counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The start of the launcher.
    Start,
    /// A step has been reported.
    Step(u64),
    /// The last step has been reported.
    End,
}

/// One strike.
struct Case<'a> {
    launcher: &'a Launcher,
    strike: Strike,
    phase: Phase,
    delay: Duration,
    rank: u32,
}

/// How a job ended that was struck.
struct Ended {
    /// Whether it did by itself.
    by_itself: bool,
    success: bool,
    took: Duration,
    text: String,
    /// Whether there still was a rank to strike.
    was_struck: bool,
    left: Vec<u32>,
    /// The ranks that had not ended when waiting ended.
    remained: Vec<u32>,
}

/// The runs of a kind.
#[derive(Default)]
struct Row {
    runs: usize,
    missed: usize,
    wrong: usize,
    late: usize,
    longest: Duration,
}

/// `--strikes N` strikes under each launcher, and a whole run after each.
pub fn strikes(training: &Training, seed: u64, count: u64) -> Result<(), String> {
    println!("seed {seed}: {count} strikes under each launcher; missed: the rank had left the job");
    println!("launcher        strike  phase   runs  missed  wrong  over 15 s  longest");
    let mut random = Random(seed);
    let mut bad = 0;
    for launcher in &LAUNCHERS {
        let mut rows: Vec<((Strike, &str), Row)> = Vec::new();
        for number in 0..count {
            let case = Case::new(launcher, number, &mut random);
            let key = (case.strike, case.phase.name());
            let dir = training.dir.join(format!("strike-{}-{number}", launcher.name));
            let (ended, problem) = case.run(training, &dir)?;
            let index = rows.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                rows.push((key, Row::default()));
                rows.len() - 1
            });
            rows[index].1.count(&ended, problem.is_some());
            bad += usize::from(problem.is_some() || ended.is_late());
            match problem {
                Some(problem) => println!("{}: {problem}; {}", case.describe(), dir.display()),
                None => _ = fs::remove_dir_all(&dir),
            }
        }
        for ((strike, phase), row) in rows {
            let Row { runs, missed, wrong, late, longest } = row;
            println!(
                "{:15} {:7} {phase:6} {runs:5}  {missed:6}  {wrong:5}  {late:9}  {:5.1} s",
                launcher.name,
                format!("{strike:?}").to_lowercase(),
                longest.as_secs_f64()
            );
        }
    }
    if bad == 0 { Ok(()) } else { Err(format!("{bad} jobs did not end as they should; seed {seed}")) }
}

impl Row {
    fn count(&mut self, ended: &Ended, is_wrong: bool) {
        self.runs += 1;
        let missed = !ended.was_struck || ended.had_left();
        self.missed += usize::from(missed);
        self.wrong += usize::from(is_wrong);
        self.late += usize::from(ended.is_late());
        self.longest = self.longest.max(if missed { Duration::ZERO } else { ended.took });
    }
}

impl Ended {
    /// Whether the rank was stopped when it had left the job: all others have ended well, and the launcher alone waits for
    /// its process.
    fn had_left(&self) -> bool {
        !self.by_itself
            && self.remained.len() == 1
            && self.text.contains("{\"summary\":")
            && !self.text.contains("error: ")
    }

    fn is_late(&self) -> bool {
        self.took > SOON && !self.had_left()
    }
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Start => "start",
            Phase::Step(_) => "steps",
            Phase::End => "end",
        }
    }
}

impl<'a> Case<'a> {
    /// All kinds in turn, each at a random moment.
    fn new(launcher: &'a Launcher, number: u64, random: &mut Random) -> Case<'a> {
        let strike = [Strike::Kill, Strike::Stop, Strike::Freeze][(number % 3) as usize];
        let (phase, most) = match number / 3 % 3 {
            0 => (Phase::Start, 1000),
            1 => (Phase::Step(1 + random.below(STEPS - 1)), 20),
            _ => (Phase::End, 30),
        };
        let delay = Duration::from_micros(random.below(1000 * most));
        Case { launcher, strike, phase, delay, rank: random.below(2) as u32 }
    }

    fn describe(&self) -> String {
        let Case { launcher, strike, phase, delay, rank } = self;
        format!("{}: {strike:?} of rank {rank} {delay:?} after {phase:?}", launcher.name)
    }

    /// Strikes, and what is wrong with how the job ended and with what it left.
    fn run(&self, training: &Training, dir: &Path) -> Result<(Ended, Option<String>), String> {
        super::empty(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let ended = self.job(training, dir).map_err(|error| format!("{}: {error}", self.describe()))?;
        let _ = fs::write(dir.join("output.txt"), &ended.text);
        let problem = self.problem(&ended).or_else(|| {
            let after = Attempt { number: 1, ranks: 1, kill: None }.run(training, dir).ok()?;
            let weights = after.weights();
            let expected = Some(&training.weights);
            (weights.as_ref() != expected).then(|| format!("then it ends with {weights:?}, not {expected:?}"))
        });
        Ok((ended, problem))
    }

    fn job(&self, training: &Training, dir: &Path) -> std::io::Result<Ended> {
        let mut command = Command::new(&training.program);
        command.args(["launch", "-n", "2", "--mpirun", self.launcher.name, "--"]);
        command.args(Attempt { number: 0, ranks: 1, kill: None }.words(training, dir));
        command.args(["--overlap", "off", "--stall-seconds", "2"]).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (errors, lines) = (read_all(child.stderr.take()), read_lines(&mut child));
        let was_struck = self.strike(dir, &mut child, &lines)?;
        let start = Instant::now();
        let status = wait(&mut child, HANGS)?;
        let took = start.elapsed();
        let remained = if status.is_none() { processes(dir) } else { Vec::new() };
        if status.is_none() {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
            child.wait()?;
        }
        let left = wait_for_none(dir);
        left.iter().try_for_each(|&process| signal(process, "KILL"))?;
        // Until they are gone they hold the lock of the checkpoint directory, which the next attempt needs.
        let stay = if left.is_empty() { Vec::new() } else { wait_for_none(dir) };
        if !stay.is_empty() {
            return Err(std::io::Error::other(format!("processes {stay:?} do not end by a kill")));
        }
        let text = lines.iter().chain([errors.join().unwrap_or_default()]).collect::<Vec<_>>().join("\n");
        let success = status.is_some_and(|status| status.success());
        Ok(Ended { by_itself: status.is_some(), success, took, text, was_struck, left, remained })
    }

    /// Waits for the moment and strikes; whether the rank was there.
    fn strike(&self, dir: &Path, child: &mut Child, lines: &Receiver<String>) -> std::io::Result<bool> {
        let step = match self.phase {
            Phase::Start => None,
            Phase::Step(step) => Some(step),
            Phase::End => Some(STEPS),
        };
        if let Some(step) = step {
            let is_reported = |line: &String| line.starts_with(&format!("{{\"step\":{step},"));
            let _ = lines.iter().find(is_reported);
        }
        let moment = Instant::now() + self.delay;
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let victim = loop {
            if let Some(victim) = processes(dir).into_iter().find(|&id| rank_of(id) == Some(self.rank)) {
                break victim;
            }
            // Before it has started there is none yet.
            if self.phase != Phase::Start || child.try_wait()?.is_some() {
                return Ok(false);
            }
        };
        match self.strike {
            Strike::Kill => signal(victim, "KILL")?,
            Strike::Stop => signal(victim, "STOP")?,
            Strike::Freeze => {
                signal(victim, "STOP")?;
                // Half of the limit after which the others ask.
                let _ = wait(child, Duration::from_secs(1))?;
                signal(victim, "CONT")?;
            }
        }
        Ok(true)
    }

    /// What is wrong with the end of a job, if anything.
    fn problem(&self, ended: &Ended) -> Option<String> {
        let (other, text) = (1 - self.rank, &ended.text);
        let blames_other = [format!("rank {other} does not answer"), format!("rank {other} has not started")]
            .iter()
            .any(|blame| text.contains(blame));
        match () {
            () if !ended.by_itself && ended.had_left() => None,
            () if !ended.by_itself => Some("it did not end".into()),
            () if !ended.left.is_empty() => Some(format!("processes {:?} are left", ended.left)),
            () if ended.success => None,
            () if self.strike == Strike::Freeze => Some("it failed after a pause".into()),
            () if !ended.was_struck => Some("it failed, although no rank was struck".into()),
            () if blames_other => Some(format!("it blames rank {other}")),
            () if self.strike == Strike::Stop && !text.contains("error: ") => {
                Some("no rank says why it ended".into())
            }
            () => None,
        }
    }
}

/// The rank of a process, as its launcher told it.
fn rank_of(process: u32) -> Option<u32> {
    let variables = fs::read(format!("/proc/{process}/environ")).ok()?;
    let rank = |variable: &[u8]| {
        let text = std::str::from_utf8(variable).ok()?;
        let names = ["OMPI_COMM_WORLD_RANK=", "PMI_RANK="];
        names.iter().find_map(|name| text.strip_prefix(name))?.parse().ok()
    };
    variables.split(|&byte| byte == 0).find_map(rank)
}

/// Waits for the end of a process, no longer than `limit`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            None if start.elapsed() < limit => thread::park_timeout(Duration::from_millis(5)),
            ended => return Ok(ended),
        }
    }
}

/// Waits a moment for the last process of a case; those that stay.
fn wait_for_none(dir: &Path) -> Vec<u32> {
    let start = Instant::now();
    loop {
        let left = processes(dir);
        if left.is_empty() || start.elapsed() > Duration::from_secs(3) {
            return left;
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn read_all(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.into_iter().for_each(|mut from| _ = from.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The lines of standard output as they come.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    let out = child.stdout.take();
    thread::spawn(move || {
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok);
        // The other end may have heard enough.
        lines.for_each(|line| _ = tell.send(line));
    });
    told
}

/// Where `--program` is, or the release build.
pub fn program(given: Option<&str>) -> PathBuf {
    given.map_or_else(|| crate::root().join("target/release/phalanx"), PathBuf::from)
}
