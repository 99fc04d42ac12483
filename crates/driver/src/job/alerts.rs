//! What ranks tell each other out of turn: how far they are when nothing moves, and that they have failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_net::Network;
use serde::{Deserialize, Serialize};

use super::chain::Standing;

/// How long a rank that has failed listens whether a lower one has, too: of several with one cause, one speaks.
const LISTEN: Duration = Duration::from_millis(300);

/// How long launchers have to pass on what a rank said before it ends the job.
const FORWARD: Duration = Duration::from_millis(200);

/// How long a rank that leaves the last word to a lower one waits for it to end the job.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Serialize, Deserialize)]
enum Alert {
    Standing(Standing),
    Failed(String),
}

/// What was heard so far.
#[derive(Default)]
pub struct Heard {
    /// How far ranks are, since the first of them said that nothing moves.
    pub standings: BTreeMap<u32, Standing>,
    /// When the first of them came.
    pub alarm: Option<Instant>,
    failed: BTreeMap<u32, String>,
    /// Whether nobody listens any more.
    pub over: bool,
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
        // The network outlives nobody: it must not own itself through its listener.
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
    pub fn tell_standing(&self, standing: &Standing) {
        self.tell(&Alert::Standing(standing.clone()));
        self.hear(self.network.rank(), Alert::Standing(standing.clone()));
    }

    /// Ends the job because this rank has failed. Of all ranks that fail, the lowest says why.
    pub fn fail(&self, message: &str, code: i32, say: impl FnOnce(&str)) -> ! {
        self.tell(&Alert::Failed(message.into()));
        let (rank, start) = (self.network.rank(), Instant::now());
        let mut heard = self.heard();
        let is_first = |heard: &Heard| heard.failed.keys().next().is_none_or(|&first| first > rank);
        while rank > 0 && is_first(&heard) && start.elapsed() < LISTEN {
            heard = self.wait(heard, LISTEN);
        }
        let first = is_first(&heard);
        if first {
            say(message);
        }
        // Ending the job at once could swallow what was said last.
        let (said, pause) = (Instant::now(), if first { FORWARD } else { PATIENCE });
        while let Some(rest) = pause.checked_sub(said.elapsed()).filter(|rest| *rest > Duration::ZERO) {
            heard = self.wait(heard, rest);
        }
        drop(heard);
        self.network.abort(code)
    }

    fn tell(&self, alert: &Alert) {
        self.network.alert(&serde_json::to_string(alert).unwrap_or_default());
    }

    /// On the network's thread, if it comes from another rank: somebody else answers.
    fn hear(&self, rank: u32, alert: Alert) {
        let mut heard = self.heard();
        match alert {
            Alert::Standing(standing) => {
                heard.standings.insert(rank, standing);
                heard.alarm.get_or_insert_with(Instant::now);
            }
            Alert::Failed(message) => _ = heard.failed.insert(rank, message),
        }
        self.changed.notify_all();
    }
}
