//! What is done before the first step, on standard error: at a terminal a bar while text becomes tokens and kernels are
//! measured, and a line for everything else that takes longer than a second.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::train::{StartPhase, StartProgress};

use crate::output;

/// What is done sooner is not mentioned.
const LONG: Duration = Duration::from_secs(1);

/// How often a phase that goes on is mentioned again.
const AGAIN: Duration = Duration::from_secs(10);

/// Does `start`, and shows what it is busy with.
pub fn shown<T>(start: impl FnOnce(&mut StartProgress<'_>) -> T) -> T {
    let (tell, told) = channel();
    let is_terminal = io::stderr().is_terminal();
    thread::scope(|scope| {
        scope.spawn(move || print_long_phases(&told, |line| eprintln!("{line}")));
        let mut bar = None;
        let started = start(&mut |phase| {
            let phase = Phase::new(phase);
            if is_terminal {
                draw(&mut bar, phase.as_ref());
            }
            // The other end listens until this one is dropped.
            _ = tell.send(phase.filter(|_| bar.is_none()));
        });
        draw(&mut bar, None);
        drop(tell);
        started
    })
}

/// Shows how far measuring has come.
pub fn measuring<T>(measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> T) -> T {
    shown(|show| measure(&mut |done, total, kernel| show(StartPhase::Measuring { done, total, kernel })))
}

/// Shows how much text has been encoded.
pub fn tokenizing<T>(encode: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    shown(|show| encode(&mut |done, total| show(StartPhase::Tokenizing { done, total })))
}

/// A phase: what distinguishes it from others, and how far it is.
struct Phase {
    name: &'static str,
    line: String,
    /// How much is done, of how much, what is next, and what a bar shows of it.
    bar: Option<(u64, u64, String, &'static str)>,
}

impl Phase {
    /// What there is to say of a phase, unless it has ended.
    fn new(phase: StartPhase<'_>) -> Option<Phase> {
        Some(match phase {
            StartPhase::Tokenizing { done, total } if done == total => return None,
            StartPhase::Tokenizing { done, total } => {
                let line = format!("tokenizing: {} of {}", output::bytes(done), output::bytes(total));
                let style = "tokenizing {bytes}/{total_bytes} {bar:24} {binary_bytes_per_sec}, {eta} left";
                Phase { name: "tokenizing", line, bar: Some((done, total, String::new(), style)) }
            }
            StartPhase::Measuring { done, total, .. } if done == total => return None,
            StartPhase::Measuring { done, total, kernel } => {
                let style = "measuring kernel {pos}/{len} {bar:24} {msg}";
                let bar = Some((done as u64, total as u64, kernel.to_string(), style));
                Phase { name: "measuring", line: format!("measuring kernels: {done} of {total}"), bar }
            }
            StartPhase::Compiling { devices } => {
                let line = format!("compiling and scheduling for {}", output::count(devices, "device"));
                Phase { name: "compiling", line, bar: None }
            }
        })
    }
}

/// Draws the bar of a phase, in place of that of another one.
fn draw(shown: &mut Option<(&'static str, ProgressBar)>, phase: Option<&Phase>) {
    if let Some((_, bar)) = shown.take_if(|(name, _)| phase.is_none_or(|phase| phase.name != *name)) {
        bar.finish_and_clear();
    }
    let Some((phase, (done, total, next, style))) =
        phase.and_then(|phase| Some((phase, phase.bar.as_ref()?)))
    else {
        return;
    };
    let (_, bar) = shown.get_or_insert_with(|| {
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        (phase.name, ProgressBar::new(*total).with_style(style))
    });
    bar.set_length(*total);
    bar.set_message(next.clone());
    bar.set_position(*done);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_tell_how_far_they_are() {
        let line = |phase| Phase::new(phase).map(|phase| phase.line);
        for (phase, expected) in [
            (
                StartPhase::Tokenizing { done: 3 << 20, total: 3 << 29 },
                Some("tokenizing: 3.0 MiB of 1.5 GiB"),
            ),
            (StartPhase::Tokenizing { done: 9, total: 9 }, None),
            (
                StartPhase::Measuring { done: 1, total: 9, kernel: "matmul" },
                Some("measuring kernels: 1 of 9"),
            ),
            (StartPhase::Compiling { devices: 2 }, Some("compiling and scheduling for 2 devices")),
        ] {
            assert_eq!(line(phase).as_deref(), expected);
        }
    }
}
