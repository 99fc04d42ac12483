//! Alerts between ranks: how far they are when nothing moves, and that they have failed.
//!
//! A failure is known before it is handled: the fault of an operation is heard here as soon as it arises, and the
//! watchdog passes it on. So a rank that stands still because of it does not look for another cause.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_net::Network;
use serde::{Deserialize, Serialize};

use super::chain::ProgressReport;

/// How long a rank that has failed listens whether a lower one has, too: of several with one cause, one speaks.
const LISTEN: Duration = Duration::from_millis(300);

/// How long launchers have to pass on what a rank said before it ends the job.
pub const FORWARD: Duration = Duration::from_millis(200);

/// How long a rank that leaves the last word to a lower one waits for it to end the job.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Serialize, Deserialize)]
enum Alert {
    #[serde(rename = "Standing")]
    Progress(ProgressReport),
    /// Why the rank has failed.
    Failed(String),
    /// The rank asks whether the others are alive.
    Asks,
    /// The rank is alive, and this is what it does.
    Does(String),
}

/// What was heard so far.
#[derive(Default)]
pub struct Heard {
    /// How far ranks are, since the first of them said that nothing moves.
    pub reports: BTreeMap<u32, ProgressReport>,
    /// When the first of them came.
    pub alarm: Option<Instant>,
    /// Ranks that have failed, and why.
    failures: BTreeMap<u32, String>,
    /// When the first of them became known.
    failed: Option<Instant>,
    /// Whether a rank has asked what this one does, and has had no answer.
    pub asked: bool,
    /// What ranks have answered since this one asked.
    pub phases: BTreeMap<u32, String>,
    /// Whether the watchdog has ended.
    pub over: bool,
}

impl Heard {
    /// Whether no rank below this one has failed.
    fn is_first(&self, rank: u32) -> bool {
        self.failures.keys().next().is_none_or(|&first| first >= rank)
    }

    /// The lowest rank that has failed, why, and since when that any has is known.
    pub fn failure(&self) -> Option<(u32, &str, Instant)> {
        let (&rank, why) = self.failures.first_key_value()?;
        Some((rank, why, self.failed?))
    }
}

/// The alerts of a job, as one rank hears them.
pub struct Alerts {
    network: Arc<dyn Network>,
    heard: Mutex<Heard>,
    changed: Condvar,
}

impl Alerts {
    /// Listens from now on.
    pub fn listen(network: &Arc<dyn Network>) -> Arc<Alerts> {
        let (heard, changed) = (Mutex::default(), Condvar::new());
        let alerts = Arc::new(Alerts { network: Arc::clone(network), heard, changed });
        // A network that owned its listener's owner would never be dropped.
        let hears = Arc::downgrade(&alerts);
        network.on_alert(Box::new(move |rank, text| {
            if let (Some(alerts), Ok(alert)) = (hears.upgrade(), serde_json::from_str(text)) {
                alerts.hear(rank, alert);
            }
        }));
        alerts
    }

    /// What connects the ranks.
    pub fn network(&self) -> &Arc<dyn Network> {
        &self.network
    }

    /// What was heard.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is heard, at most so long.
    pub fn wait<'a>(&'a self, heard: MutexGuard<'a, Heard>, most: Duration) -> MutexGuard<'a, Heard> {
        let waited = self.changed.wait_timeout(heard, most);
        waited.map_or_else(|poisoned| poisoned.into_inner().0, |(heard, _)| heard)
    }

    /// Ends all waiting.
    pub fn end(&self) {
        self.heard().over = true;
        self.changed.notify_all();
    }

    /// Tells the others how far this rank is.
    pub fn send_progress(&self, report: &ProgressReport) {
        self.tell(&Alert::Progress(report.clone()));
        self.hear(self.network.rank(), Alert::Progress(report.clone()));
    }

    /// An operation of this rank has failed. Quick: the watchdog informs the others.
    pub fn fault(&self, message: String) {
        self.hear(self.network.rank(), Alert::Failed(message));
    }

    /// Tells the others why this rank has failed, if it has.
    pub fn tell_failure(&self) {
        let own = self.heard().failures.get(&self.network.rank()).cloned();
        own.into_iter().for_each(|message| self.tell(&Alert::Failed(message)));
    }

    /// Ends the job because this rank has failed. Of all ranks that fail, the lowest says why.
    pub fn fail(&self, message: &str, code: i32, say: impl FnOnce(&str)) -> ! {
        self.fault(message.to_string());
        self.tell_failure();
        let (rank, start) = (self.network.rank(), Instant::now());
        let mut heard = self.heard();
        while rank > 0 && heard.is_first(rank) && start.elapsed() < LISTEN {
            heard = self.wait(heard, LISTEN);
        }
        let first = heard.is_first(rank);
        if first {
            say(message);
        }
        drop(heard);
        self.pause(if first { FORWARD } else { ABORT_TIMEOUT });
        self.network.abort(code)
    }

    /// Waits as long; ending the job at once could swallow what was said last.
    pub fn pause(&self, long: Duration) {
        let (start, mut heard) = (Instant::now(), self.heard());
        while let Some(rest) = long.checked_sub(start.elapsed()).filter(|rest| *rest > Duration::ZERO) {
            heard = self.wait(heard, rest);
        }
    }

    /// Asks all other ranks what they do.
    pub fn ask(&self) {
        self.heard().phases.clear();
        self.tell(&Alert::Asks);
    }

    /// Tells the others what this rank does, if one of them has asked.
    pub fn answer(&self, phase: &str) {
        if std::mem::take(&mut self.heard().asked) {
            self.tell(&Alert::Does(phase.into()));
        }
    }

    /// Wakes all threads that wait for something to be heard.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    fn tell(&self, alert: &Alert) {
        self.network.alert(&serde_json::to_string(alert).unwrap_or_default());
    }

    /// On the network's thread, if it comes from another rank; the watchdog answers.
    fn hear(&self, rank: u32, alert: Alert) {
        let mut heard = self.heard();
        match alert {
            Alert::Progress(report) => {
                heard.reports.insert(rank, report);
                heard.alarm.get_or_insert_with(Instant::now);
            }
            Alert::Asks => heard.asked = true,
            Alert::Does(phase) => _ = heard.phases.insert(rank, phase),
            Alert::Failed(why) => {
                heard.failures.entry(rank).or_insert(why);
                heard.failed.get_or_insert_with(Instant::now);
            }
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use phalanx_net::local::Local;

    use super::super::chain::LaneProgress;
    use super::*;

    fn two_ranks() -> [Arc<Alerts>; 2] {
        let networks = Local::job(2).into_iter().map(|local| Arc::new(local) as Arc<dyn Network>);
        let alerts: Vec<_> = networks.map(|network| Alerts::listen(&network)).collect();
        alerts.try_into().unwrap_or_else(|_| panic!("two ranks"))
    }

    fn report(done: u32) -> ProgressReport {
        ProgressReport { launched: 3, seconds: 60, lanes: vec![LaneProgress { run: 2, done, running: true }] }
    }

    #[test]
    fn all_ranks_hear_how_far_each_is() {
        let [low, high] = two_ranks();
        assert_eq!((low.heard().alarm, high.heard().alarm), (None, None));
        low.send_progress(&report(4));
        let alarm = high.heard().alarm;
        assert!(alarm.is_some());
        high.send_progress(&report(5));
        low.send_progress(&report(6));
        for alerts in [&low, &high] {
            let expected = BTreeMap::from([(0, report(6)), (1, report(5))]);
            assert_eq!(alerts.heard().reports, expected, "the last word of each");
        }
        assert_eq!(high.heard().alarm, alarm, "the first one raises it");
    }

    #[test]
    fn of_ranks_that_fail_the_lowest_is_the_first() {
        let [low, high] = two_ranks();
        for (rank, alerts) in [&high, &low].into_iter().enumerate() {
            alerts.tell_failure();
            assert!(low.heard().failure().is_none_or(|(rank, ..)| rank == 1), "nothing to tell yet");
            alerts.fault(format!("failure {rank}"));
            alerts.fault("a consequence".into());
            alerts.tell_failure();
        }
        for alerts in [&low, &high] {
            let heard = alerts.heard();
            assert_eq!(heard.failure().map(|(rank, why, _)| (rank, why)), Some((0, "failure 1")));
            assert_eq!(heard.failures[&1], "failure 0", "the first word of each");
            assert!(heard.is_first(0) && !heard.is_first(1));
            assert_eq!(heard.alarm, None, "a failure is no stall");
        }
    }

    #[test]
    fn who_waits_is_woken_by_what_is_heard_and_by_the_end() {
        let [low, high] = two_ranks();
        let long = Duration::from_secs(600);
        std::thread::scope(|scope| {
            // Between looking and waiting the lock is held, so nothing is missed.
            let waiting = scope.spawn(|| {
                let mut heard = high.heard();
                while heard.reports.is_empty() {
                    heard = high.wait(heard, long);
                }
                while !heard.over {
                    heard = high.wait(heard, long);
                }
                heard.reports.clone()
            });
            low.send_progress(&report(1));
            high.end();
            assert_eq!(waiting.join().unwrap(), BTreeMap::from([(0, report(1))]));
        });
        assert!(!low.heard().over, "the others listen on");
    }

    #[test]
    fn nobody_hears_what_is_no_alert_or_comes_after_the_end() {
        let [low, high] = two_ranks();
        low.network().alert("fire");
        assert!(high.heard().reports.is_empty() && high.heard().is_first(u32::MAX));
        let network = Arc::clone(high.network());
        drop(high);
        low.send_progress(&report(1));
        assert_eq!(Arc::strong_count(&network), 1, "the listener does not keep its network");
    }
}
