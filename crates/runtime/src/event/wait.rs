//! Waiting from threads that are not the runtime's.
//!
//! Each thread has one parker, which is notified when the event triggers; waiting allocates nothing once the lists of
//! waiters have grown. A wait has a number, one more than the thread's wait before: a notice of an earlier one, which
//! timed out while its notice was under way, wakes no thread.

use std::sync::Arc;
use std::time::Duration;

use crate::fault::Outcome;
use crate::sync::{Condvar, Mutex, lock, sleep, sleep_at_most, thread_local};

use super::{Event, Events, Notify};

impl Events {
    /// Blocks this thread until `event` has triggered. Not for waiters: what they wait for may be theirs to trigger.
    pub fn wait(&self, event: Event) -> Outcome {
        loop {
            if let Some(outcome) = self.outcome(event) {
                return outcome;
            }
            PARKER.with(|parker| {
                let wait = parker.next_wait();
                self.notify(event, Arc::clone(parker) as Arc<dyn Notify>, wait);
                parker.park(wait);
            });
        }
    }

    /// Blocks this thread until `event` has triggered, but no longer than `limit`: nothing if it has not by then.
    pub fn wait_timeout(&self, event: Event, limit: Duration) -> Option<Outcome> {
        if let Some(outcome) = self.outcome(event) {
            return Some(outcome);
        }
        PARKER.with(|parker| {
            let wait = parker.next_wait();
            let subscription = self.notify(event, Arc::clone(parker) as Arc<dyn Notify>, wait);
            parker.park_at_most(wait, limit);
            if let Some(subscription) = subscription {
                self.unsubscribe(subscription);
            }
        });
        self.outcome(event)
    }
}

thread_local! {
    static PARKER: Arc<Parker> = Arc::new(Parker::default());
}

#[derive(Default)]
struct Parker {
    waits: Mutex<Waits>,
    condvar: Condvar,
}

#[derive(Default)]
struct Waits {
    /// The number of the thread's last wait.
    started: u64,
    /// The largest number that has been notified.
    told: u64,
}

impl Parker {
    fn next_wait(&self) -> u64 {
        let mut waits = lock(&self.waits);
        waits.started += 1;
        waits.started
    }

    fn park(&self, wait: u64) {
        let mut waits = lock(&self.waits);
        while waits.told < wait {
            waits = sleep(&self.condvar, waits);
        }
    }

    fn park_at_most(&self, wait: u64, limit: Duration) {
        drop(sleep_at_most(&self.condvar, lock(&self.waits), limit, |waits| waits.told < wait));
    }
}

impl Notify for Parker {
    fn notify(self: Arc<Self>, wait: u64, _: &Outcome) {
        let mut waits = lock(&self.waits);
        waits.told = waits.told.max(wait);
        // Only the parker's own thread ever sleeps here.
        self.condvar.notify_one();
    }
}
