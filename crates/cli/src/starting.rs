//! What a run does before its first step, on standard error: a bar while kernels are measured at a terminal, and a line
//! for everything else that takes longer than a second.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use phalanx::train::{StartPhase, StartProgress};

use crate::{costs, output};

/// What is done sooner is not mentioned.
const LONG: Duration = Duration::from_secs(1);

/// How often a phase that goes on is mentioned again.
const AGAIN: Duration = Duration::from_secs(10);

/// Does `start`, and shows what it is busy with.
pub fn shown<T>(start: impl FnOnce(&mut StartProgress<'_>) -> T) -> T {
    let (tell, told) = channel();
    thread::scope(|scope| {
        scope.spawn(move || print_long_phases(&told, |line| eprintln!("{line}")));
        let started = costs::with_bar(|bar| {
            start(&mut |phase| {
                let mut is_in_bar = false;
                if let StartPhase::Measuring { done, total, kernel } = phase {
                    bar(done, total, kernel);
                    is_in_bar = io::stderr().is_terminal();
                }
                // The other end listens until this one is dropped.
                _ = tell.send(Phase::new(phase).filter(|_| !is_in_bar));
            })
        });
        drop(tell);
        started
    })
}

/// A phase: what distinguishes it from others, and how far it is.
struct Phase {
    name: &'static str,
    line: String,
}

impl Phase {
    /// What there is to say of a phase, unless it has ended.
    fn new(phase: StartPhase<'_>) -> Option<Phase> {
        Some(match phase {
            StartPhase::Measuring { done, total, .. } if done == total => return None,
            StartPhase::Measuring { done, total, .. } => {
                Phase { name: "measuring", line: format!("measuring kernels: {done} of {total}") }
            }
            StartPhase::Compiling { devices } => {
                let line = format!("compiling and scheduling for {}", output::count(devices, "device"));
                Phase { name: "compiling", line }
            }
        })
    }
}

/// Prints a line for each phase that is `told` and not followed by another one within [`LONG`], and more while it goes on.
fn print_long_phases(told: &Receiver<Option<Phase>>, print: impl Fn(&str)) {
    let mut current: Option<Phase> = None;
    let mut due = Instant::now() + LONG;
    loop {
        match told.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(phase) => {
                let name = |phase: &Option<Phase>| phase.as_ref().map(|phase| phase.name);
                if name(&phase) != name(&current) {
                    due = Instant::now() + LONG;
                }
                current = phase;
            }
            Err(RecvTimeoutError::Timeout) => {
                current.iter().for_each(|phase| print(&phase.line));
                due = Instant::now() + AGAIN;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
