//! Soaking the ends of jobs: every kind of fault under plain `mpirun`, again and again, half of the runs beside busy
//! loops.
//!
//! Each job must end soon with the one message that names the cause. What is expected of a kind of fault stands in one
//! table; a run that ends otherwise is kept with all that it printed.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::number;
use crate::{cargo, root, works};

/// The longest that a job may take to its end.
const SOON: Duration = Duration::from_secs(15);

/// When a job counts as hanging and is killed.
const HANGS: Duration = Duration::from_secs(60);

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

const KINDS: [Kind; 7] = [
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
    // The launcher reports it, in its own words.
    Kind { drill: "kill@1:3", words: &[], errors: None },
];

struct Launcher {
    name: &'static str,
    /// What it needs to start more ranks than there are cores.
    flags: &'static [&'static str],
    /// What it says when rank 1 is killed.
    killed: &'static [&'static str],
}

const LAUNCHERS: [Launcher; 2] = [
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

/// The runs of a kind under a launcher, of which half were beside busy loops.
#[derive(Default)]
struct Row {
    runs: usize,
    wrong: usize,
    late: usize,
    longest: Duration,
}

/// `--faults N` runs of each kind under each launcher; `--jobs J` of them at a time, one if absent.
pub fn faults(args: &[&str], runs: u64) -> Result<(), String> {
    let jobs = number(args, "--jobs")?.unwrap_or(1).max(1) as usize;
    if runs == 0 {
        return Err("--faults takes the number of runs of each kind, at least 1".into());
    }
    let missing: Vec<_> = LAUNCHERS.iter().filter(|launcher| !works(launcher.name, &["--version"])).collect();
    if let Some(launcher) = missing.first() {
        return Err(format!("{} is not installed: `cargo xtask test` installs it", launcher.name));
    }
    cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    let dir = root().join("target/soak-faults");
    super::empty(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let mut table = String::from("launcher        fault      runs  wrong  over 15 s  longest\n");
    let mut bad = 0;
    for launcher in &LAUNCHERS {
        for kind in &KINDS {
            let mut row = Row::default();
            for busy in [false, true] {
                let half = if busy { runs / 2 } else { runs.div_ceil(2) } as usize;
                beside_loops(busy, || soak(&dir, launcher, kind, (half, jobs), &mut row));
            }
            let Row { runs, wrong, late, longest } = row;
            bad += wrong + late;
            let line = format!(
                "{:15} {:9} {runs:5}  {wrong:5}  {late:9}  {:6.1} s",
                launcher.name,
                kind.drill,
                longest.as_secs_f64()
            );
            println!("{line}");
            let _ = writeln!(table, "{line}");
        }
    }
    println!("\n{table}");
    match bad {
        0 => Ok(()),
        bad => {
            Err(format!("{bad} jobs did not end as they should; what they printed is in {}", dir.display()))
        }
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
fn soak(dir: &Path, launcher: &Launcher, kind: &Kind, (count, jobs): (usize, usize), row: &mut Row) {
    let (next, (tell, told)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                while next.fetch_add(1, Relaxed) < count {
                    tell.send(job(launcher, kind)).unwrap_or_default();
                }
            });
        }
        drop(tell);
        for (took, text, is_right) in told {
            row.runs += 1;
            row.wrong += usize::from(!is_right);
            row.late += usize::from(took > SOON);
            row.longest = row.longest.max(took);
            if !is_right || took > SOON {
                let drill = kind.drill.replace(['@', ':'], "-");
                let name = format!("{}-{drill}-{}.txt", launcher.name, row.runs);
                let _ = fs::write(dir.join(name), format!("{took:?}\n{text}"));
            }
        }
    });
}

/// How long a job took, what it printed, and whether that is what the kind of its fault asks for.
fn job(launcher: &Launcher, kind: &Kind) -> (Duration, String, bool) {
    let start = Instant::now();
    let mut command = Command::new(launcher.name);
    command.args(launcher.flags).args(["-n", "2"]).arg(root().join("target/release/phalanx"));
    command.args(TRAIN.split_whitespace()).arg(kind.drill).env_remove("RUST_BACKTRACE");
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
