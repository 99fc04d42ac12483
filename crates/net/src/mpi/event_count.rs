//! An event count: wakes a thread that sleeps between its polls of the network.
//!
//! A thread reads the epoch, polls everything, and sleeps only if there was no notification since. So no notification
//! is lost: both sides write, fence and read, and of two sequentially consistent fences one comes first. If that of the
//! thread about to sleep does, the notifying thread sees it resting and wakes it; if the other one does, the thread sees
//! the notification and does not sleep.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, fence},
};

/// Counts notifications and wakes threads that sleep until the next one.
pub(crate) struct EventCount {
    notified: AtomicUsize,
    resting: AtomicUsize,
    lock: Mutex<()>,
    condvar: Condvar,
}

/// How many notifications there had been when a thread began to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(usize);

impl EventCount {
    pub(crate) fn new() -> EventCount {
        EventCount {
            notified: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            lock: Mutex::new(()),
            condvar: Condvar::new(),
        }
    }

    /// To be read before the poll that a sleep may follow.
    pub(crate) fn epoch(&self) -> Epoch {
        // Acquire, pairs with `notify_one`: a thread that sees the notification sees what it is about.
        Epoch(self.notified.load(Acquire))
    }

    /// Ends the sleep of one thread that sleeps, or is about to.
    pub(crate) fn notify_one(&self) {
        // Release: see `epoch`.
        self.notified.fetch_add(1, Release);
        // Pairs with the fence in `wait`; see the head.
        fence(SeqCst);
        // Relaxed: ordered by the fence.
        if self.resting.load(Relaxed) > 0 {
            // The lock makes sure that a thread that has seen no notification waits on the condition variable already.
            let _lock = lock(&self.lock);
            self.condvar.notify_one();
        }
    }

    /// Sleeps until notified, at most for `longest`; not at all if there was a notification since `noted`.
    pub(crate) fn wait(&self, noted: Epoch, longest: Duration) {
        let guard = lock(&self.lock);
        // Relaxed, here and below: a hint that the fence orders before the look at the epoch.
        self.resting.fetch_add(1, Relaxed);
        // Pairs with the fence in `notify_one`; see the head.
        fence(SeqCst);
        if self.epoch() == noted {
            drop(self.condvar.wait_timeout(guard, longest));
        }
        self.resting.fetch_sub(1, Relaxed);
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
mod models {
    use std::panic::catch_unwind;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread::spawn;

    use super::*;

    /// A worker publishes a fault and notifies; a driver that finds none sleeps. Loom has no time, so a sleep that a
    /// notification does not end is a deadlock.
    fn hears_of_the_fault(rest: fn(&EventCount, Epoch)) {
        loom::model(move || {
            let (sleepers, failed) = (Arc::new(EventCount::new()), Arc::new(AtomicBool::new(false)));
            let worker = spawn({
                let (sleepers, failed) = (Arc::clone(&sleepers), Arc::clone(&failed));
                move || {
                    // Relaxed, as is the load: only the event count may order them.
                    failed.store(true, Relaxed);
                    sleepers.notify_one();
                }
            });
            loop {
                let noted = sleepers.epoch();
                if failed.load(Relaxed) {
                    break;
                }
                rest(&sleepers, noted);
            }
            worker.join().expect("the worker does not panic");
        });
    }

    #[test]
    fn a_driver_that_rests_hears_of_a_fault() {
        hears_of_the_fault(|sleepers, noted| sleepers.wait(noted, Duration::MAX));
    }

    /// Without counting, a notification between the driver's last poll and its sleep is lost.
    #[test]
    fn without_counting_notifications_one_is_lost() {
        let uncounted = |sleepers: &EventCount, _| {
            let guard = lock(&sleepers.lock);
            sleepers.resting.fetch_add(1, Relaxed);
            fence(SeqCst);
            drop(sleepers.condvar.wait_timeout(guard, Duration::MAX));
            sleepers.resting.fetch_sub(1, Relaxed);
        };
        assert!(catch_unwind(|| hears_of_the_fault(uncounted)).is_err());
    }
}
