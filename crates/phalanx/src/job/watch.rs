//! The watchdog of a rank: when nothing moves, it finds the operation that holds the others up, says so once, and ends
//! the job.
//!
//! Each rank looks at its own operations. If none was completed for the limit, though steps are under way, the rank
//! sends all others how far its lanes are, and each of them answers likewise. If one moves, all go on. Else, a little
//! later, the lowest rank that has said anything prints the chain of waits and ends the job. No rank waits for another
//! meanwhile: a rank that is stopped or dead is the one that does not answer.
//!
//! A known failure comes first. The fault of an operation wakes the watchdog of its rank, which informs all others at
//! once. From then on no rank looks for a chain of waits: the thread that waits for the run reports the fault and ends
//! the job, and if it does not come to that, the watchdog does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_program::Program;
use phalanx_runtime::{LaneState, Watch};

use super::alerts::{Alerts, FORWARD, Heard};
use super::chain::{LaneProgress, ProgressReport, chain, held_up};

/// How long ranks have to say how far they are, and to report a failure that is known.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How much longer the others leave the last word to the lowest rank.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(4);

/// The exit code of a job that stood still.
pub const STALLED: i32 = 3;

/// The exit code of a job in which an operation has failed.
pub const FAILED: i32 = 5;

/// Says what is wrong, for people.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Watches a rank until it is dropped.
pub struct Watchdog {
    alerts: Arc<Alerts>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the watched rank sends to its watchdog.
#[derive(Default)]
struct Shared {
    active: AtomicBool,
    /// Steps of the run that were done before this process started.
    past: AtomicU64,
}

/// What the watchdog looks at.
pub struct Watched {
    /// The operations of this rank.
    pub watch: Watch,
    /// Those of a program that it runs between steps, if there is one: completing them is moving, too.
    pub between: Option<Watch>,
    /// Gives the parts of all ranks of the program, when they are needed.
    pub parts: Box<dyn Fn() -> Vec<Program> + Send>,
    /// How long nothing may be completed.
    pub limit: Duration,
    /// How every rank is called, for people: host and process.
    pub names: Vec<String>,
    /// Says what is wrong.
    pub say: Say,
}

impl Watched {
    /// Operations that are complete so far.
    fn completed(&self) -> u64 {
        self.watch.completed() + self.between.as_ref().map_or(0, Watch::completed)
    }
}

impl Watchdog {
    /// Starts watching; not active yet.
    pub fn start(alerts: &Arc<Alerts>, watched: Watched) -> Watchdog {
        let shared = Arc::<Shared>::default();
        // Another one may have ended before.
        alerts.heard().over = false;
        for watch in [Some(&watched.watch), watched.between.as_ref()].into_iter().flatten() {
            let hears = Arc::downgrade(alerts);
            watch.on_failure(move |failure| {
                let name = |alerts: &Alerts| format!("rank {}: {}", alerts.network().rank(), failure.fault);
                hears.upgrade().into_iter().for_each(|alerts| alerts.fault(name(&alerts)));
            });
        }
        let (hears, tells) = (Arc::clone(alerts), Arc::clone(&shared));
        let watch = move || run(&hears, &tells, &watched);
        let thread = thread::Builder::new().name("phalanx-watch".into()).spawn(watch);
        Watchdog { alerts: Arc::clone(alerts), shared, thread: thread.ok() }
    }

    /// How many steps of the run were done before this process started.
    pub fn set_past(&self, steps: u64) {
        // Relaxed: the watchdog reads it long after.
        self.shared.past.store(steps, Relaxed);
    }

    /// From now on standing still is wrong, or not.
    pub fn set_active(&self, active: bool) {
        // Relaxed: the watchdog may learn of it a little later.
        self.shared.active.store(active, Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.alerts.end();
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

/// A watchdog at work.
struct Guard<'a> {
    alerts: &'a Alerts,
    watched: &'a Watched,
    /// Operations that were complete when it last looked, and since when that is so.
    completed: u64,
    since: Instant,
    /// Operations that were complete when it last sent a progress report.
    told: Option<u64>,
    /// Whether it has informed them that this rank has failed.
    told_failure: bool,
}

/// What a rank knows of the others.
enum Known {
    /// Nothing is wrong.
    Nothing,
    /// A rank has said that nothing moves.
    Alarm { since: Instant, is_lowest: bool },
    /// A rank has failed.
    Failure { since: Instant, is_own: bool },
}

fn run(alerts: &Alerts, watchdog: &Shared, watched: &Watched) {
    let tick = (watched.limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let completed = watched.completed();
    let mut guard =
        Guard { alerts, watched, completed, since: Instant::now(), told: None, told_failure: false };
    loop {
        let mut heard = alerts.heard();
        if !heard.over && heard.failure().is_none_or(|_| guard.told_failure) {
            heard = alerts.wait(heard, tick);
        }
        if heard.over {
            return;
        }
        let known = guard.known(&heard);
        drop(heard);
        // Relaxed: see `set_active`.
        guard.look(watchdog.active.load(Relaxed));
        match known {
            Known::Failure { since, is_own } => guard.wait_for_the_end(since, is_own),
            Known::Alarm { since, is_lowest } => guard.answer(since, is_lowest, watchdog),
            Known::Nothing if guard.since.elapsed() >= watched.limit => guard.tell(),
            Known::Nothing => {}
        }
    }
}

impl Guard<'_> {
    fn known(&self, heard: &Heard) -> Known {
        let rank = self.alerts.network().rank();
        let is_lowest = || heard.reports.keys().next().is_none_or(|&lowest| lowest >= rank);
        match (heard.failure(), heard.alarm) {
            (Some((first, _, since)), _) => Known::Failure { since, is_own: first == rank },
            (None, Some(since)) => Known::Alarm { since, is_lowest: is_lowest() },
            (None, None) => Known::Nothing,
        }
    }

    /// Looks whether operations were completed; where that is not expected, time does not count.
    fn look(&mut self, active: bool) {
        let completed = self.watched.completed();
        if completed != self.completed || !active {
            (self.completed, self.since) = (completed, Instant::now());
        }
    }

    fn tell(&mut self) {
        self.told = Some(self.completed);
        self.alerts.send_progress(&report(&self.watched.watch, self.since.elapsed()));
    }

    /// A failure is known: the thread that waits for the run reports it, unless it does not come to that in time.
    fn wait_for_the_end(&mut self, since: Instant, is_own: bool) {
        if !self.told_failure {
            self.told_failure = true;
            self.alerts.tell_failure();
        }
        if since.elapsed() >= if is_own { GRACE } else { GRACE + REPORT_TIMEOUT } {
            let message = self.alerts.heard().failure().map(|(_, why, _)| why.to_string());
            self.end(&message.unwrap_or_default(), FAILED);
        }
    }

    /// A rank says that nothing moves. This one says how far it is, and again if it moves on after all.
    fn answer(&mut self, since: Instant, is_lowest: bool, watchdog: &Shared) {
        if self.told != Some(self.completed) {
            self.tell();
        }
        if since.elapsed() < GRACE {
            return;
        }
        let mut heard = self.alerts.heard();
        // A rank that waits for a slow one is not stuck, as long as any rank moves.
        let moves = |report: &ProgressReport| report.seconds < self.watched.limit.as_secs() / 2;
        if heard.reports.values().any(moves) {
            (heard.alarm, self.told) = (None, None);
            heard.reports.clear();
            self.since = Instant::now();
        } else if is_lowest || since.elapsed() >= GRACE + REPORT_TIMEOUT {
            let reports = std::mem::take(&mut heard.reports);
            drop(heard);
            // Relaxed: set before the first step.
            let past = watchdog.past.load(Relaxed);
            self.end(&explain(self.watched, past, self.alerts.network().size(), reports), STALLED);
        }
    }

    /// Says why, and ends the job.
    fn end(&self, message: &str, code: i32) -> ! {
        (self.watched.say)(message);
        self.alerts.pause(FORWARD);
        self.alerts.network().abort(code)
    }
}

fn report(watch: &Watch, still: Duration) -> ProgressReport {
    let at = |lane: LaneState| LaneProgress { run: lane.run, done: lane.done as u32, running: lane.running };
    let lanes = watch.lanes().into_iter().map(at).collect();
    ProgressReport { launched: watch.launched(), seconds: still.as_secs(), lanes }
}

/// What is known, for people.
fn explain(watched: &Watched, past: u64, size: u32, mut reports: BTreeMap<u32, ProgressReport>) -> String {
    let reports: Vec<_> = (0..size).map(|rank| reports.remove(&rank)).collect();
    let parts = (watched.parts)();
    let mut links = chain(&parts, &reports, held_up(&parts, &reports));
    links.iter_mut().filter_map(|link| link.run.as_mut()).for_each(|run| *run += past);
    let seconds = watched.limit.as_secs_f64();
    let mut text = format!("no operation was completed for {seconds} s (--stall-seconds); chain of waits:");
    links.iter().for_each(|link| text.push_str(&format!("\n  {link}")));
    if let Some(last) = links.last() {
        let name = watched.names.get(last.rank as usize).map_or("", String::as_str);
        let report = reports[last.rank as usize].as_ref();
        let since =
            report.map_or(String::new(), |at| format!(", where nothing moves since {} s", at.seconds));
        text.push_str(&format!("\n  it stands at rank {} ({name}){since}", last.rank));
    }
    text
}

#[cfg(test)]
mod tests;
