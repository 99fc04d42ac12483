//! Which ranks of this host have started, before the message library knows.
//!
//! The start of a message library ends when all ranks are there, and never if one is missing. So every rank shows
//! itself by a socket whose name is its own: names of this kind are no files, go away with the process, and are listed
//! by the system. Ranks that run in separate network namespaces do not see each other here and are all missing.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[cfg(target_os = "linux")]
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// How the ranks of a job on this host show themselves.
#[derive(Clone)]
pub struct Neighbors {
    /// How the names of their sockets begin.
    prefix: String,
}

/// A rank that shows that it has started, as long as this lives.
pub struct Arrival {
    neighbors: Neighbors,
    #[cfg(target_os = "linux")]
    _shown: UnixListener,
}

impl Arrival {
    /// Shows that `rank` has started, to all ranks that the same process started for the same user.
    pub fn of_this_process(rank: u32) -> io::Result<Arrival> {
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        Arrival::show(&format!("phalanx-{}-{parent}-", rustix::process::getuid().as_raw()), rank)
    }

    #[cfg(target_os = "linux")]
    pub(super) fn show(prefix: &str, rank: u32) -> io::Result<Arrival> {
        let neighbors = Neighbors { prefix: prefix.into() };
        Ok(Arrival { neighbors, _shown: UnixListener::bind_addr(&address(prefix, rank)?)? })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn show(_: &str, _: u32) -> io::Result<Arrival> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no sockets with abstract names"))
    }

    /// The ranks beside it, which can be asked for also when it shows itself no more.
    pub fn neighbors(&self) -> Neighbors {
        self.neighbors.clone()
    }
}

impl Neighbors {
    /// Those of `ranks`, all of this host, whose processes are stopped.
    #[cfg(target_os = "linux")]
    pub fn stopped(&self, ranks: &[u32]) -> Vec<u32> {
        let is_stopped = |rank: &u32| process_of(&self.prefix, *rank).is_some_and(is_stopped);
        ranks.iter().copied().filter(is_stopped).collect()
    }

    #[cfg(not(target_os = "linux"))]
    pub fn stopped(&self, _: &[u32]) -> Vec<u32> {
        vec![]
    }

    /// Those of `ranks`, all of this host, that do not show themselves. If the system does not say, none is missing.
    pub fn missing(&self, ranks: &[u32]) -> Vec<u32> {
        let Ok(sockets) = std::fs::read_to_string("/proc/net/unix") else { return vec![] };
        absent(&sockets, &self.prefix, ranks)
    }
}

#[cfg(target_os = "linux")]
fn address(prefix: &str, rank: u32) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(format!("{prefix}{rank}"))
}

/// The process that shows itself as a rank: the system tells a socket that connects, whether it is answered or not.
#[cfg(target_os = "linux")]
fn process_of(prefix: &str, rank: u32) -> Option<i32> {
    let socket = UnixStream::connect_addr(&address(prefix, rank).ok()?).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&socket).ok()?.pid.as_raw_nonzero().get())
}

/// Whether a process is stopped, as by `kill -STOP` or a debugger.
#[cfg(target_os = "linux")]
fn is_stopped(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
}

/// The ranks that have no socket in the system's list, where abstract names follow an `@` at the end of a line.
fn absent(sockets: &str, prefix: &str, ranks: &[u32]) -> Vec<u32> {
    let name = |line: &str| line.rsplit_once('@')?.1.strip_prefix(prefix)?.parse::<u32>().ok();
    let here: Vec<u32> = sockets.lines().filter_map(name).collect();
    ranks.iter().copied().filter(|rank| !here.contains(rank)).collect()
}

/// Time is counted in steps of this.
const TICK: Duration = Duration::from_millis(100);

/// A thread that acts when something takes too long.
pub struct Waiting {
    /// Dropped to say that it is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Unless the result is dropped within `limit`, calls `late` on another thread, which ends the process or returns. Time
    /// in which this process is stopped does not count: when a launcher ends a job, it continues its processes first, and
    /// one that was stopped must not accuse those that have ended meanwhile.
    ///
    /// Returns when the thread has mapped what memory it needs: the start of a message library may replace the code of `mmap`
    /// (UCX does) while no other thread may be in it.
    pub fn start(limit: Duration, late: impl FnOnce() + Send + 'static) -> io::Result<Waiting> {
        let (over, is_over) = channel();
        let (runs, has_begun) = channel();
        let look = move || {
            // Its first allocation, which maps the memory for all that follow.
            _ = runs.send(());
            let ticks = limit.as_millis().div_ceil(TICK.as_millis());
            if (0..ticks).all(|_| is_over.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout)) {
                late();
            }
        };
        let thread = thread::Builder::new().name("phalanx-waiting".into()).spawn(look)?;
        // It sends before all else.
        _ = has_begun.recv();
        Ok(Waiting { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // If `late` panicked, the panic has been printed; what was waited for has come.
            _ = thread.join();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Names that no other process and no other test has.
    fn show(test: &str, rank: u32) -> io::Result<Arrival> {
        Arrival::show(&format!("phalanx-test-{}-{test}-", std::process::id()), rank)
    }

    #[test]
    fn ranks_are_missing_until_they_come_and_after_they_went() {
        let zero = show("come", 0).unwrap();
        assert_eq!(zero.neighbors.missing(&[0, 1, 2]), [1, 2]);
        let two = show("come", 2).unwrap();
        assert_eq!(zero.neighbors.missing(&[0, 1, 2]), [1]);
        assert_eq!(two.neighbors.missing(&[0, 1, 2]), [1]);
        assert!(show("come", 2).is_err(), "there is one rank 2");
        drop(two);
        assert_eq!(zero.neighbors.missing(&[0, 1, 2]), [1, 2]);
    }

    #[test]
    fn a_process_that_is_stopped_is_told_from_one_that_runs() {
        let zero = show("stopped", 0).unwrap();
        assert_eq!(process_of(&zero.neighbors.prefix, 0), Some(std::process::id() as i32));
        assert_eq!((process_of(&zero.neighbors.prefix, 1), zero.neighbors.stopped(&[0, 1])), (None, vec![]));
        let mut child = std::process::Command::new("sh").args(["-c", "kill -STOP $$"]).spawn().unwrap();
        let process = child.id() as i32;
        while !is_stopped(process) {
            assert!(child.try_wait().unwrap().is_none(), "it stops and does not end");
            thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(process));
    }

    #[test]
    fn names_of_others_do_not_count() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
                       0000: 00000002 00000000 00010000 0001 01 17 @phalanx-0-7-1\n\
                       0000: 00000002 00000000 00010000 0001 01 18 @phalanx-0-77-2\n\
                       0000: 00000002 00000000 00010000 0001 01 19 /run/phalanx-0-7-3\n\
                       0000: 00000002 00000000 00010000 0001 01 20\n";
        assert_eq!(absent(sockets, "phalanx-0-7-", &[0, 1, 2, 3]), [0, 2, 3]);
    }

    #[test]
    fn being_late_is_told_with_who_is_missing() {
        let (tell, told) = channel();
        let arrival = show("late", 1).unwrap();
        let late = move || tell.send(arrival.neighbors.missing(&[0, 1, 2])).unwrap();
        let _waiting = Waiting::start(Duration::ZERO, late).unwrap();
        assert_eq!(told.recv().unwrap(), [0, 2]);
    }

    #[test]
    fn being_in_time_is_not_told() {
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        let late = move || tell.store(true, Ordering::SeqCst);
        drop(Waiting::start(Duration::from_secs(3600), late).unwrap());
        assert!(!told.load(Ordering::SeqCst));
    }
}
