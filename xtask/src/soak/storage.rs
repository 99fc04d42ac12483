//! Soaking what a run depends on outside of itself: bits of checkpoints flip, disks are full, readers of its output leave,
//! the clock of the wall jumps.
//!
//! Whatever happens, a run that ends well has the weights of a run that nothing happened to, a checkpoint that is there is
//! whole, and what is missing is in the exit code.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::attempt::{Attempt, Ended};
use super::case::Random;
use super::{STEPS, Training, names};

/// What is done, and its name.
type Trial = fn(&Training, &Path, &mut Random) -> Result<(), String>;
const TRIALS: [(&str, Trial); 4] = [
    ("bit flips", flip_a_bit),
    ("full disks", fill_a_disk),
    ("closed pipes", close_the_pipe),
    ("clock jumps", move_the_clock),
];

/// `--storage N` of each kind.
pub fn storage(training: &Training, seed: u64, count: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let mut bad = 0;
    println!("seed {seed}: {count} of each kind");
    for (name, trial) in TRIALS {
        let mut failures = 0;
        if name == "full disks"
            && let Err(reason) = Disk::mount(&training.dir.join("disk"), 64)
        {
            println!("{name:14} left out: {reason}");
            continue;
        }
        for number in 0..count {
            let dir = training.dir.join(format!("{}-{number}", name.replace(' ', "-")));
            let made = super::empty(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()));
            match made.and_then(|()| trial(training, &dir, &mut random)) {
                Ok(()) => _ = fs::remove_dir_all(&dir),
                Err(problem) => {
                    failures += 1;
                    println!("{name} {number}: {problem}; {}", dir.display());
                }
            }
        }
        println!("{name:14} {count:5} runs, {failures} wrong");
        bad += failures;
    }
    if bad == 0 { Ok(()) } else { Err(format!("{bad} runs did not end as they should; seed {seed}")) }
}

/// A run to the end in `dir`, which goes on from what is there.
fn whole(training: &Training, dir: &Path) -> Result<Ended, String> {
    let ended = Attempt { number: 9, ranks: 1, kill: None }.run(training, dir)?;
    match ended.weights() {
        Some(weights) if weights == training.weights => Ok(ended),
        weights => Err(format!("it ends with the weights {weights:?}: {}", ended.stderr.trim_end())),
    }
}

/// Checks all checkpoints that have a name.
fn verify(training: &Training, checkpoints: &Path) -> Result<(), String> {
    if !names(checkpoints).iter().any(|name| name.starts_with("step-")) {
        return Ok(());
    }
    let mut command = Command::new(&training.program);
    let output = command.args(["ckpt", "verify", "--all"]).arg(checkpoints).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("a checkpoint is damaged: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Flips a bit of the newest checkpoint, and resumes: with the weights of a whole run, from there or from the one before.
fn flip_a_bit(training: &Training, dir: &Path, random: &mut Random) -> Result<(), String> {
    let killed = Attempt { number: 0, ranks: 1, kill: Some(super::attempt::Kill::Step(0, STEPS - 1)) };
    killed.run(training, dir)?;
    let checkpoints = dir.join("checkpoints");
    let newest = names(&checkpoints).into_iter().rfind(|name| name.starts_with("step-"));
    let newest = checkpoints.join(newest.ok_or("there is no checkpoint")?);
    let files = names(&newest);
    let file = newest.join(&files[random.below(files.len() as u64) as usize]);
    let mut flip = || -> io::Result<()> {
        let mut bytes = fs::read(&file)?;
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        fs::write(&file, bytes)
    };
    flip().map_err(|error| format!("{}: {error}", file.display()))?;
    match whole(training, dir)?.stderr.contains("is damaged") {
        true => Ok(()),
        false => Err(format!("a flipped bit of {} was not noticed", file.display())),
    }
}

/// A disk in memory of limited size, as long as this lives.
struct Disk<'a>(&'a Path);

impl Disk<'_> {
    fn mount(dir: &Path, kib: u64) -> Result<Disk<'_>, String> {
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let size = format!("size={kib}k");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir).output();
        match output {
            Ok(output) if output.status.success() => Ok(Disk(dir)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim_end().into()),
            Err(error) => Err(format!("cannot run mount: {error}")),
        }
    }

    fn grow(&self) -> Result<(), String> {
        let output = Command::new("mount").args(["-o", "remount,size=64m"]).arg(self.0).output();
        output.map(|_| ()).map_err(|error| error.to_string())
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // What stays mounted is seen by the next soak, which cannot empty the directory.
        _ = Command::new("umount").arg(self.0).output();
    }
}

/// Trains onto a disk that becomes full; what is there is whole, and with more room the run goes on.
fn fill_a_disk(training: &Training, dir: &Path, random: &mut Random) -> Result<(), String> {
    let disk = Disk::mount(dir, 64 + random.below(2048))?;
    // What the run prints goes to the same disk.
    let ended = Attempt { number: 0, ranks: 1, kill: None }.run(training, dir)?;
    let complete = ended.weights().is_some();
    let has_last = names(&dir.join("checkpoints")).contains(&format!("step-{STEPS:08}"));
    if complete && !has_last {
        return Err("it ended well without its last checkpoint".into());
    }
    verify(training, &dir.join("checkpoints"))?;
    disk.grow()?;
    whole(training, dir).map(|_| ())
}

/// Reads some lines of a run and leaves; it trains on to its last checkpoint, or stops with a whole one if it is strict.
fn close_the_pipe(training: &Training, dir: &Path, random: &mut Random) -> Result<(), String> {
    let is_strict = random.below(2) == 0;
    let mut command = Command::new(&training.program);
    command.args(Attempt { number: 0, ranks: 1, kill: None }.words(training, dir));
    command.args(is_strict.then_some("--strict"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut run = || -> io::Result<(bool, usize)> {
        let mut child = command.spawn()?;
        let lines = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
        let read = lines.take(random.below(STEPS - 1) as usize).count();
        Ok((child.wait()?.success(), read))
    };
    let (success, read) = run().map_err(|error| error.to_string())?;
    if success {
        return Err(format!("it ended well although its reader left after {read} lines"));
    }
    let checkpoints = dir.join("checkpoints");
    if !is_strict && !names(&checkpoints).contains(&format!("step-{STEPS:08}")) {
        return Err(format!("its last checkpoint is missing; its reader left after {read} lines"));
    }
    verify(training, &checkpoints)?;
    whole(training, dir).map(|_| ())
}

/// Answers every question for the time of day with another one, up to two days before or after.
const JUMPING_CLOCK: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static _Thread_local unsigned long state = SEEDul;
int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    if (result == 0 && id == CLOCK_REALTIME) time->tv_sec += (long)(state >> 33) % 345600 - 172800;
    return result;
}
";

/// Trains half of the way and then the rest, each with a clock of the wall that jumps whenever it is read.
fn move_the_clock(training: &Training, dir: &Path, random: &mut Random) -> Result<(), String> {
    let [source, clock] = ["clock.c", "clock.so"].map(|name| dir.join(name));
    let text = JUMPING_CLOCK.replace("SEED", &random.below(u64::MAX).to_string());
    fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    let run = |command: &mut Command| command.output().map_err(|error| format!("{command:?}: {error}"));
    let built = run(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&clock, &source]))?;
    if !built.status.success() {
        return Err(format!("the clock cannot be built: {}", String::from_utf8_lossy(&built.stderr)));
    }
    let kill = super::attempt::Kill::Step(0, 1 + random.below(STEPS - 1));
    let mut weights = None;
    for (number, kill) in (0..).zip([Some(kill), None]) {
        let mut command = Command::new(&training.program);
        command.args(Attempt { number, ranks: 1, kill }.words(training, dir)).env("LD_PRELOAD", &clock);
        let output = run(command.stdin(Stdio::null()))?;
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        weights = Ended { status: output.status, stdout, stderr }.weights();
    }
    match weights.as_ref() == Some(&training.weights) {
        true => verify(training, &dir.join("checkpoints")),
        false => Err(format!("it ends with the weights {weights:?}")),
    }
}
