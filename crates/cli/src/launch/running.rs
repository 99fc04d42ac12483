//! A launcher while it runs: what it prints passes on, signals are handed to it, and nothing of it outlives us.
//!
//! The launcher is a process group of its own, so that Ctrl-C in a terminal reaches it only through us: the first
//! one asks the ranks to stop after their step, the second one ends them.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::sieve::{Rest, Sieve};

/// How long a launcher may take to end its ranks after the second signal.
pub const GRACE: Duration = Duration::from_secs(10);

/// What happens while a job runs.
pub enum Event {
    /// Somebody wants the job to stop.
    Signal,
    /// The launcher has ended.
    End,
}

/// A launcher that runs.
pub struct Running {
    child: Child,
    streams: [JoinHandle<Rest>; 2],
}

/// How a job ended.
pub struct Ending {
    /// The launcher's own.
    pub status: ExitStatus,
    /// How often it was asked to stop.
    pub signals: usize,
    /// What is left of standard output and of standard error.
    pub rests: [Rest; 2],
}

impl Running {
    /// Starts a command line, whose end will be told to `events`.
    pub fn start(line: &[OsString], events: Sender<Event>) -> io::Result<Running> {
        let [program, args @ ..] = line else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        // Standard input stays open and empty: Hydra hands its end on to the first rank, and dies if that is gone.
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let streams = [sift(child.stdout.take(), io::stdout()), sift(child.stderr.take(), io::stderr())];
        let pid = pid(&child);
        thread::spawn(move || {
            // Its number stays its own until `finish` asks for its status, so that no signal can hit a stranger.
            _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            events.send(Event::End)
        });
        Ok(Running { child, streams })
    }

    /// Hands signals on until the launcher ends; `stop` is what asks it to let the ranks stop after their step.
    pub fn finish(mut self, stop: Signal, grace: Duration, events: &Receiver<Event>) -> io::Result<Ending> {
        let pid = pid(&self.child);
        let mut signals = 0;
        // Before the second signal a job may take as long as it likes.
        while let Ok(Event::Signal) = match signals < 2 {
            true => events.recv().map_err(|_| ()),
            false => events.recv_timeout(grace).map_err(|_| ()),
        } {
            signals += 1;
            match signals {
                1 => _ = signal::kill(pid, stop),
                2 => _ = signal::kill(pid, Signal::SIGTERM),
                _ => break,
            }
        }
        end(pid);
        let status = self.child.wait()?;
        let rests = self.streams.map(|stream| stream.join().unwrap_or_default());
        Ok(Ending { status, signals, rests })
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Lets a stream of the job through to one of ours.
fn sift(from: Option<impl Read + Send + 'static>, mut to: impl Write + Send + 'static) -> JoinHandle<Rest> {
    thread::spawn(move || {
        from.map(|from| Sieve::default().pass(BufReader::new(from), &mut to)).unwrap_or_default()
    })
}

/// Kills what is left of a launcher: its process group, and its descendants, which may have groups of their own.
fn end(launcher: Pid) {
    let descendants = descendants(launcher);
    _ = signal::killpg(launcher, Signal::SIGKILL);
    for pid in descendants {
        _ = signal::kill(pid, Signal::SIGKILL);
    }
}

/// The processes below `root`, where the system has `/proc`.
fn descendants(root: Pid) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may contain anything; state and parent follow the last one.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((Pid::from_raw(pid), Pid::from_raw(parent)))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::mpsc;

    use super::*;

    fn line(script: &str) -> [OsString; 3] {
        ["sh", "-c", script].map(Into::into)
    }

    #[test]
    fn the_status_is_the_launchers() {
        let (sender, events) = mpsc::channel();
        let running = Running::start(&line("exit 7"), sender).unwrap();
        let ending = running.finish(Signal::SIGUSR1, GRACE, &events).unwrap();
        assert_eq!((ending.status.code(), ending.signals), (Some(7), 0));
        assert_eq!(ending.rests, [Rest::default(), Rest::default()]);
    }

    #[test]
    fn what_ignores_signals_is_killed_with_its_descendants() {
        let pipe = std::env::temp_dir().join(format!("phalanx-launch-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script =
            format!("trap '' USR1 TERM; setsid sleep 3600 & echo ready >'{}'; sleep 3600", pipe.display());
        let (sender, events) = mpsc::channel();
        let running = Running::start(&line(&script), sender.clone()).unwrap();
        assert_eq!(std::fs::read_to_string(&pipe).unwrap(), "ready\n");
        std::fs::remove_file(&pipe).unwrap();
        for _ in 0..2 {
            sender.send(Event::Signal).unwrap();
        }
        // Its streams end only when all processes that hold them are gone.
        let ending = running.finish(Signal::SIGUSR1, Duration::ZERO, &events).unwrap();
        assert_eq!((ending.status.signal(), ending.signals), (Some(9), 2));
    }
}
