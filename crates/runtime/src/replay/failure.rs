//! The failure of a part on a network: known as soon as the fault arises, not when its run ends.
//!
//! A run ends when all of its operations have. One that waits for a message of another rank may never end once an
//! operation has failed here: the other rank waits for what that operation was to send. So the fault is kept beside the
//! runs, where threads that wait for one find it, and is handed to a listener at once.

use std::fmt;

use crate::fault::Fault;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The fault after which no run of a part can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The run in which it arose; runs before it are not affected.
    pub run: u64,
    /// The first fault.
    pub fault: Fault,
}

type Listener = Box<dyn FnOnce(&Failure) + Send>;

/// Where a failure is kept.
#[derive(Default)]
pub(super) struct FailureCell {
    /// Whether there is one: all that is looked at as long as there is none.
    known: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    failure: Option<Failure>,
    /// To be called with the failure when it comes.
    listener: Option<Listener>,
}

impl FailureCell {
    /// Keeps the first failure and calls the listener, if there is one.
    pub(super) fn fail(&self, run: u64, fault: &Fault) {
        let mut inner = lock(&self.inner);
        if inner.failure.is_some() {
            return;
        }
        let failure = Failure { run, fault: fault.clone() };
        inner.failure = Some(failure.clone());
        // Release, pairs with `of`, for the order alone: the lock publishes the failure.
        self.known.store(true, Ordering::Release);
        let listener = inner.listener.take();
        drop(inner);
        listener.into_iter().for_each(|listener| listener(&failure));
    }

    /// Calls `listener` once with the failure: now if there is one, else when it comes.
    pub(super) fn listen(&self, listener: Listener) {
        // Under the lock: either the failure is found here, or `fail` finds the listener.
        let mut inner = lock(&self.inner);
        match inner.failure.clone() {
            None => inner.listener = Some(listener),
            Some(failure) => {
                drop(inner);
                listener(&failure);
            }
        }
    }

    /// Why `run` cannot succeed, if that is known.
    pub(super) fn of(&self, run: u64) -> Option<Fault> {
        // Acquire: see `fail`.
        if !self.known.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.inner).failure.as_ref().filter(|failure| failure.run <= run).map(|it| it.fault.clone())
    }
}

impl fmt::Debug for FailureCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailureCell").field(&lock(&self.inner).failure).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts_for_its_run_and_those_after_it() {
        let (cell, fault) = (FailureCell::default(), |why| Fault::failed("op", why));
        assert_eq!(cell.of(u64::MAX), None);
        cell.fail(3, &fault("first"));
        cell.fail(1, &fault("second"));
        assert_eq!([2, 3, 4].map(|run| cell.of(run)), [None, Some(fault("first")), Some(fault("first"))]);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::panic::catch_unwind;

    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Notify};
    use loom::thread::spawn;

    use super::*;

    /// What the threads of a rank share: a run with two units of work, an operation that fails and a message that never
    /// arrives, because another rank waits for what the operation was to send.
    struct TestRank {
        cell: FailureCell,
        units: AtomicUsize,
        woken: Notify,
        told: AtomicUsize,
    }

    /// A worker fails while a listener is set and another thread waits until `is_decided`, looking again after every
    /// wake-up. Loom finds a deadlock if that thread is never notified.
    fn model(is_decided: fn(&TestRank) -> bool) {
        loom::model(move || {
            let (cell, units, told) = (FailureCell::default(), AtomicUsize::new(2), AtomicUsize::new(0));
            let rank = Arc::new(TestRank { cell, units, woken: Notify::new(), told });
            let [worker, watchdog] = [Arc::clone(&rank), Arc::clone(&rank)];
            let worker = spawn(move || {
                worker.cell.fail(0, &Fault::refused("model", "on purpose"));
                worker.units.fetch_sub(1, Ordering::AcqRel);
                worker.woken.notify();
            });
            let listener = Arc::clone(&rank);
            let watchdog = spawn(move || {
                watchdog.cell.listen(Box::new(move |_| _ = listener.told.fetch_add(1, Ordering::Relaxed)));
            });
            while !is_decided(&rank) {
                rank.woken.wait();
            }
            worker.join().expect("the worker does not panic");
            watchdog.join().expect("the watchdog does not panic");
            assert_eq!(rank.told.load(Ordering::Relaxed), 1, "the watchdog is told once");
        });
    }

    #[test]
    fn a_failure_reaches_the_watchdog_and_the_thread_that_waits() {
        model(|rank| rank.cell.of(0).is_some() || rank.units.load(Ordering::Acquire) == 0);
    }

    /// As it was before: a fault was reported with the end of its run, which waits for the message.
    #[test]
    fn a_thread_that_waits_for_the_end_of_the_run_is_never_told() {
        assert!(catch_unwind(|| model(|rank| rank.units.load(Ordering::Acquire) == 0)).is_err());
    }
}
