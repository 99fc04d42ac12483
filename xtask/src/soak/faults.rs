//! Soaking the ends of jobs: every kind of fault under plain `mpirun`, again and again, half of the runs beside busy
//! loops. Where an operation panics, ranks print when it does and when each of them knows.
//!
//! Each job must end soon with the one message that names the cause. What is expected of a kind of fault stands in one
//! table; a run that ends otherwise is kept with all that it printed.

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::number;
use crate::bench::option;
use crate::{cargo, root, works};

/// The longest that a job may take to its end.
pub const SOON: Duration = Duration::from_secs(15);

/// When a job counts as hanging and is killed.
pub const HANGS: Duration = Duration::from_secs(60);

/// Loops that take the cores from half of the runs.
const LOOPS: usize = 2;

/// A kind of fault and how a job must end that has it.
struct Kind {
    drill: &'static str,
    /// What its output must say; nothing where the launcher reports.
    words: &'static [&'static str],
    /// How many lines begin with `error: `; none where the launcher reports.
    errors: Option<usize>,
}

impl Kind {
    /// What the output of a job under a launcher must say.
    fn words(&self, launcher: &Launcher) -> &'static [&'static str] {
        if self.words.is_empty() { launcher.killed } else { self.words }
    }
}

const KINDS: [Kind; 9] = [
    Kind { drill: "panic@1:3", words: &["error: rank 1: ", "this is a fire drill"], errors: Some(1) },
    Kind { drill: "panic@0:3", words: &["error: rank 0: ", "this is a fire drill"], errors: Some(1) },
    Kind { drill: "nan@1:3", words: &["the loss is NaN at step 3"], errors: Some(1) },
    Kind {
        drill: "hang@1:5",
        words: &["of step 5 is being executed", "it stands at rank 1 ("],
        errors: Some(1),
    },
    Kind { drill: "stop@1:3", words: &["rank 1 does not answer", "it stands at rank 1 ("], errors: Some(1) },
    Kind { drill: "stop@0:3", words: &["rank 0 does not answer", "it stands at rank 0 ("], errors: Some(1) },
    Kind { drill: "stop@1:0", words: &["rank 1 does not answer; rank 0 is "], errors: Some(1) },
    Kind { drill: "stop@1:end", words: &["rank 1 does not answer; rank 0 is "], errors: Some(1) },
    // The launcher reports it, in its own words.
    Kind { drill: "kill@1:3", words: &[], errors: None },
];

/// A launcher of jobs.
pub struct Launcher {
    /// Its program.
    pub name: &'static str,
    /// What it needs to start more ranks than there are cores.
    flags: &'static [&'static str],
    /// What it says when rank 1 is killed.
    killed: &'static [&'static str],
}

/// The launchers that are tried.
pub const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        name: "mpirun.openmpi",
        flags: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        killed: &["process rank 1 with", "signal 9"],
    },
    // The other rank's library may abort its own process first, when it finds its peer gone in the middle of a message,
    // and the launcher then names that one.
    Launcher {
        name: "mpiexec.mpich",
        flags: &[],
        killed: &["BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "(signal "],
    },
];

const TRAIN: &str = "train --steps 1000 --plan dp --devices 2 --stall-seconds 3 \
                     --layers 1 --heads 2 --width 16 --context 16 --batch 8 --drill";

/// The runs of a kind under a launcher, quiet or beside busy loops.
#[derive(Default)]
struct Row {
    runs: usize,
    wrong: usize,
    late: usize,
    longest: Duration,
    /// From the panic of an operation until its own rank knows, and until all others do.
    known: [Vec<Duration>; 2],
}

/// What is to be run.
struct Plan<'a> {
    /// How many jobs at a time.
    jobs: usize,
    /// The program to test.
    program: &'a Path,
    /// Where what went wrong is kept.
    dir: &'a Path,
}

/// `--faults N` runs of each kind under each launcher, or of the one kind `--drill D`: half of them quiet and half beside
/// busy loops, or all beside them with `--busy`; `--jobs J` of them at a time, one if absent. The program is a release
/// build, or `--program FILE`.
pub fn faults(args: &[&str], runs: u64) -> Result<(), String> {
    let jobs = number(args, "--jobs")?.unwrap_or(1).max(1) as usize;
    let (drill, given) = (option(args, "--drill")?, option(args, "--program")?.map(PathBuf::from));
    if runs == 0 {
        return Err("--faults takes the number of runs of each kind, at least 1".into());
    }
    let kinds: Vec<&Kind> =
        KINDS.iter().filter(|kind| drill.is_none_or(|drill| drill == kind.drill)).collect();
    if kinds.is_empty() {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.drill).collect();
        return Err(format!("--drill {} is none of {}", drill.unwrap_or_default(), known.join(", ")));
    }
    let missing: Vec<_> = LAUNCHERS.iter().filter(|launcher| !works(launcher.name, &["--version"])).collect();
    if let Some(launcher) = missing.first() {
        return Err(format!("{} is not installed: `cargo xtask test` installs it", launcher.name));
    }
    if given.is_none() {
        cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    }
    let program = given.unwrap_or_else(|| root().join("target/release/phalanx"));
    let dir = root().join("target/soak-faults");
    super::empty(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let plan = Plan { jobs, program: &program, dir: &dir };
    let halves = match args.contains(&"--busy") {
        true => vec![("busy", runs)],
        false => vec![("quiet", runs.div_ceil(2)), ("busy", runs / 2)],
    };
    println!("times are medians and, after the slash, the longest of all");
    println!("{:15} {:9} {:5} {}", "launcher", "fault", "cores", Row::HEAD);
    let mut bad = 0;
    for launcher in &LAUNCHERS {
        for kind in &kinds {
            for &(load, runs) in halves.iter().filter(|(_, runs)| *runs > 0) {
                let mut row = Row::default();
                beside_loops(load == "busy", || soak(&plan, launcher, kind, runs as usize, &mut row));
                bad += row.wrong + row.late;
                println!("{:15} {:9} {load:5} {row}", launcher.name, kind.drill);
            }
        }
    }
    match bad {
        0 => Ok(()),
        bad => {
            Err(format!("{bad} jobs did not end as they should; what they printed is in {}", dir.display()))
        }
    }
}

impl Row {
    const HEAD: &'static str = " runs  wrong  over 15 s  longest  own rank knows  all ranks know";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { runs, wrong, late, longest, known } = self;
        write!(f, "{runs:5}  {wrong:5}  {late:9}  {:5.1} s", longest.as_secs_f64())?;
        known.iter().try_for_each(|times| write!(f, "  {:>14}", median_and_longest(times)))
    }
}

fn median_and_longest(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let ms = |time: &Duration| 1e3 * time.as_secs_f64();
    match (times.get(times.len() / 2), times.last()) {
        (Some(median), Some(longest)) => format!("{:.1}/{:.1} ms", ms(median), ms(longest)),
        _ => "-".into(),
    }
}

/// Does `work` beside loops that want all cores, or alone.
fn beside_loops(busy: bool, work: impl FnOnce()) {
    let over = AtomicBool::new(!busy);
    thread::scope(|scope| {
        for _ in 0..if busy { LOOPS } else { 0 } {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work();
        over.store(true, Relaxed);
    });
}

/// Runs `count` jobs of a kind, some at a time.
fn soak(plan: &Plan<'_>, launcher: &Launcher, kind: &Kind, count: usize, row: &mut Row) {
    let (next, (tell, told)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..plan.jobs {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                while next.fetch_add(1, Relaxed) < count {
                    tell.send(job(plan.program, launcher, kind)).unwrap_or_default();
                }
            });
        }
        drop(tell);
        for (took, text, is_right) in told {
            row.runs += 1;
            row.wrong += usize::from(!is_right);
            row.late += usize::from(took > SOON);
            row.longest = row.longest.max(took);
            row.known.iter_mut().zip(known(&text)).for_each(|(times, time)| times.extend(time));
            if !is_right || took > SOON {
                let drill = kind.drill.replace(['@', ':'], "-");
                let name = format!("{}-{drill}-{}.txt", launcher.name, row.runs);
                let _ = fs::write(plan.dir.join(name), format!("{took:?}\n{text}"));
            }
        }
    });
}

/// How long it took from the panic of an operation until its rank knew, and until the last of the others did: from the
/// stamps that ranks print.
fn known(text: &str) -> [Option<Duration>; 2] {
    let stamps: Vec<(u32, &str, u64)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("stamp rank ")?.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?, words.next()?.parse().ok()?))
        })
        .collect();
    let Some(&(failed, _, start)) = stamps.iter().find(|(_, what, _)| *what == "panics") else {
        return [None; 2];
    };
    let knows = |is_own: bool| {
        let of = stamps.iter().filter(|(rank, what, _)| *what == "knows" && (*rank == failed) == is_own);
        of.map(|(_, _, at)| Duration::from_nanos(at.saturating_sub(start))).max()
    };
    [knows(true), knows(false)]
}

/// How long a job took, what it printed, and whether that is what the kind of its fault asks for.
fn job(program: &Path, launcher: &Launcher, kind: &Kind) -> (Duration, String, bool) {
    let start = Instant::now();
    let mut command = Command::new(launcher.name);
    command.args(launcher.flags).args(["-n", "2"]).arg(program);
    command.args(TRAIN.split_whitespace()).arg(kind.drill);
    command.env_remove("RUST_BACKTRACE").env("PHALANX_FAULT_STAMPS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return (start.elapsed(), error.to_string(), false),
    };
    let group = child.id();
    let read = |from: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.into_iter().for_each(|mut from| _ = from.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let outputs = [
        read(child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>)),
        read(child.stderr.take().map(|out| Box::new(out) as Box<dyn Read + Send>)),
    ];
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait()));
    let status = end.recv_timeout(HANGS);
    let took = start.elapsed();
    if status.is_err() {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    }
    let text = outputs.map(|output| output.join().unwrap_or_default()).concat();
    let failed = matches!(&status, Ok(Ok(status)) if !status.success());
    let errors = text.lines().filter(|line| line.starts_with("error: ")).count();
    let is_right = failed
        && kind.words(launcher).iter().all(|word| text.contains(word))
        && kind.errors.is_none_or(|wanted| errors == wanted);
    (took, text, is_right)
}
