//! A launcher while it runs: what it prints passes on, signals are handed to it, and nothing of it outlives us.
//!
//! The launcher is a process group of its own, so that Ctrl-C in a terminal reaches it only through us: the first
//! one asks the ranks to stop after their step, the second one ends them. A launcher that has lost a host may wait for
//! it long after the ranks have said why they end; a job that is to be started again does not wait with it.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::log_filter::{LogFilter, StreamEnd};

/// How long a launcher may take to end its ranks.
#[derive(Clone, Copy)]
pub struct GracePeriods {
    /// After the second signal.
    pub signal: Duration,
    /// After a rank has said why it fails, or the launcher that one has died. Open MPI sometimes waits for ever after that.
    pub error: Duration,
}

/// What launchers get.
pub const GRACE: GracePeriods =
    GracePeriods { signal: Duration::from_secs(10), error: Duration::from_secs(5) };

/// What happens while a job runs.
pub enum JobEvent {
    /// The user wants the job to stop.
    Signal,
    /// A rank has said why it fails.
    Error,
    /// The launcher has ended.
    End,
}

/// A launcher that runs.
pub struct Running {
    child: Child,
    streams: [JoinHandle<StreamEnd>; 2],
    end: JoinHandle<()>,
}

/// How a job ended.
pub struct Ending {
    /// The launcher's own.
    pub status: ExitStatus,
    /// How often it was asked to stop.
    pub signals: usize,
    /// What is left of standard output and of standard error.
    pub stream_ends: [StreamEnd; 2],
}

/// What hwloc looks for. Left to itself it loads every OpenCL driver into the launcher, and one that is built on LLVM
/// catches SIGUSR1, which Open MPI then does not hand on to the ranks.
const HWLOC: &str = "HWLOC_COMPONENTS";

impl Running {
    /// Starts a command line with these variables, beside those of this process; its end is sent to `events`.
    pub fn start(
        line: &[OsString],
        variables: &[(String, OsString)],
        events: Sender<JobEvent>,
    ) -> io::Result<Running> {
        let [program, args @ ..] = line else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut command = Command::new(program);
        command.args(args).envs(variables.iter().cloned());
        if std::env::var_os(HWLOC).is_none() {
            command.env(HWLOC, "-opencl");
        }
        // Standard input stays open and empty: Hydra hands its end on to the first rank, and dies if that is gone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let streams = [
            filter_stream(child.stdout.take(), io::stdout(), events.clone()),
            filter_stream(child.stderr.take(), io::stderr(), events.clone()),
        ];
        let pid = pid(&child);
        let end = thread::spawn(move || {
            // Its number stays its own until `finish` asks for its status, so that no signal can hit a stranger.
            _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            _ = events.send(JobEvent::End);
        });
        Ok(Running { child, streams, end })
    }

    /// Hands signals on until the launcher ends; `stop` is what asks it to let the ranks stop after their step.
    pub fn finish(
        mut self,
        stop: Signal,
        grace: GracePeriods,
        events: &Receiver<JobEvent>,
    ) -> io::Result<Ending> {
        let mut signals = self.hand_on(stop, grace, events);
        end(pid(&self.child));
        let status = self.child.wait()?;
        end_orphans();
        let stream_ends = self.streams.map(|stream| stream.join().unwrap_or_default());
        _ = self.end.join();
        // All threads of this launcher have ended and send no more events; those that are left must not be taken for
        // events of the next launcher.
        signals += events.try_iter().filter(|event| matches!(event, JobEvent::Signal)).count();
        Ok(Ending { status, signals, stream_ends })
    }

    /// Hands signals on until the launcher ends or takes too long; how many there were.
    fn hand_on(&self, stop: Signal, grace: GracePeriods, events: &Receiver<JobEvent>) -> usize {
        let (pid, mut signals, mut deadline) = (pid(&self.child), 0, None);
        loop {
            match next(events, deadline) {
                Some(JobEvent::Signal) if signals < 2 => {
                    signals += 1;
                    _ = signal::kill(pid, if signals == 1 { stop } else { Signal::SIGTERM });
                    if signals == 2 {
                        deadline = Some(Instant::now() + grace.signal);
                    }
                }
                Some(JobEvent::Error) => {
                    deadline = deadline.or_else(|| Some(Instant::now() + grace.error));
                }
                Some(JobEvent::Signal) => return signals + 1,
                Some(JobEvent::End) | None => return signals,
            }
        }
    }
}

/// What happens next, if it does before the deadline.
fn next(events: &Receiver<JobEvent>, deadline: Option<Instant>) -> Option<JobEvent> {
    match deadline {
        None => events.recv().ok(),
        Some(deadline) => events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
    }
}

/// From now on ranks that outlive their launcher become children of this process, and end with their job.
///
/// A job that is started again must not meet them. Where the system cannot do it they end when they miss their
/// launcher.
pub fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    {
        _ = nix::sys::prctl::set_child_subreaper(true);
    }
}

/// Kills all processes below this one and waits until they are gone, if orphans are adopted.
fn end_orphans() {
    #[cfg(target_os = "linux")]
    while nix::sys::prctl::get_child_subreaper() == Ok(true) {
        let left = descendants(Pid::this());
        left.iter().for_each(|&pid| _ = signal::kill(pid, Signal::SIGKILL));
        if left.is_empty() || nix::sys::wait::waitpid(None, None).is_err() {
            return;
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Filters a stream of the job into one of ours, and reports errors.
fn filter_stream(
    from: Option<impl Read + Send + 'static>,
    mut to: impl Write + Send + 'static,
    events: Sender<JobEvent>,
) -> JoinHandle<StreamEnd> {
    let tell = move || _ = events.send(JobEvent::Error);
    thread::spawn(move || {
        from.map(|from| LogFilter::new(tell).pass(BufReader::new(from), &mut to)).unwrap_or_default()
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
        let running = Running::start(&line("exit $CODE"), &[("CODE".into(), "7".into())], sender).unwrap();
        let ending = running.finish(Signal::SIGUSR1, GRACE, &events).unwrap();
        assert_eq!((ending.status.code(), ending.signals), (Some(7), 0));
        assert_eq!(ending.stream_ends, [StreamEnd::default(), StreamEnd::default()]);
    }

    #[test]
    fn what_ignores_signals_is_killed_with_its_descendants() {
        let pipe = std::env::temp_dir().join(format!("phalanx-launch-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script =
            format!("trap '' USR1 TERM; setsid sleep 3600 & echo ready >'{}'; sleep 3600", pipe.display());
        let (sender, events) = mpsc::channel();
        let running = Running::start(&line(&script), &[], sender.clone()).unwrap();
        assert_eq!(std::fs::read_to_string(&pipe).unwrap(), "ready\n");
        std::fs::remove_file(&pipe).unwrap();
        for _ in 0..2 {
            sender.send(JobEvent::Signal).unwrap();
        }
        // Its streams end only when all processes that hold them are gone.
        let grace = GracePeriods { signal: Duration::ZERO, error: Duration::from_secs(3600) };
        let ending = running.finish(Signal::SIGUSR1, grace, &events).unwrap();
        assert_eq!((ending.status.signal(), ending.signals), (Some(9), 2));
    }

    #[test]
    fn a_launcher_that_waits_after_an_error_is_ended_and_leaves_no_news() {
        let (sender, events) = mpsc::channel();
        let running =
            Running::start(&line("echo 'error: lost' >&2; sleep 3600"), &[], sender.clone()).unwrap();
        let grace = GracePeriods { signal: Duration::ZERO, error: Duration::ZERO };
        let ending = running.finish(Signal::SIGUSR1, grace, &events).unwrap();
        assert_eq!((ending.status.signal(), ending.signals), (Some(9), 0));
        assert_eq!(ending.stream_ends[1].errors, ["error: lost\n"]);
        assert!(events.try_recv().is_err());
    }
}
