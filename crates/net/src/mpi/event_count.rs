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
        if self.count(|| fence(SeqCst)) {
            // The lock makes sure that a thread that has seen no notification waits on the condition variable already.
            let _lock = lock(&self.lock);
            self.condvar.notify_one();
        }
    }

    /// Sleeps until notified, at most for `longest`; not at all if there was a notification since `noted`.
    pub(crate) fn wait(&self, noted: Epoch, longest: Duration) {
        let guard = lock(&self.lock);
        if self.is_unchanged(noted, || fence(SeqCst)) {
            drop(self.condvar.wait_timeout(guard, longest));
        }
        // Relaxed: a thread that still sees it resting notifies once too often.
        self.resting.fetch_sub(1, Relaxed);
    }

    /// Counts a notification; whether a thread rests.
    fn count(&self, fence: impl Fn()) -> bool {
        // Release: see `epoch`.
        self.notified.fetch_add(1, Release);
        // Pairs with the fence in `is_unchanged`; see the head.
        fence();
        // Relaxed: ordered by the fence.
        self.resting.load(Relaxed) > 0
    }

    /// Rests from now on; whether there was no notification since `noted`.
    fn is_unchanged(&self, noted: Epoch, fence: impl Fn()) -> bool {
        // Relaxed: ordered by the fence.
        self.resting.fetch_add(1, Relaxed);
        // Pairs with the fence in `count`; see the head.
        fence();
        self.epoch() == noted
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
    #[test]
    fn a_driver_that_rests_hears_of_a_fault() {
        loom::model(|| {
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
                sleepers.wait(noted, Duration::MAX);
            }
            worker.join().expect("the worker does not panic");
        });
    }

    /// Whether loom finds an order in which the driver is about to sleep and the worker does not wake it. A driver that does
    /// not `count` sleeps whatever was notified.
    fn loses_a_notification(worker_fence: fn(), driver_fence: fn(), counts: bool) -> bool {
        let model = move || {
            let (sleepers, failed) = (Arc::new(EventCount::new()), Arc::new(AtomicBool::new(false)));
            let worker = spawn({
                let (sleepers, failed) = (Arc::clone(&sleepers), Arc::clone(&failed));
                move || {
                    failed.store(true, Relaxed);
                    sleepers.count(worker_fence)
                }
            });
            let noted = sleepers.epoch();
            let sleeps = !failed.load(Relaxed) && (sleepers.is_unchanged(noted, driver_fence) || !counts);
            let wakes = worker.join().expect("the worker does not panic");
            assert!(!sleeps || wakes, "a notification is lost");
        };
        catch_unwind(|| loom::model(model)).is_err()
    }

    /// As it was before notifications were counted, one between the driver's last poll and its sleep was lost.
    #[test]
    fn without_counting_or_without_a_fence_a_notification_is_lost() {
        let fenced = || fence(SeqCst);
        assert!(!loses_a_notification(fenced, fenced, true));
        assert!(loses_a_notification(fenced, fenced, false));
        assert!(loses_a_notification(|| {}, fenced, true));
        assert!(loses_a_notification(fenced, || {}, true));
    }
}
