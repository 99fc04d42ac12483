//! Waking a thread that rests between its looks at the network.
//!
//! A thread notes how often the bell was rung, looks at everything, and rests only if it was not rung since. So a ring
//! is never lost: of two sequentially consistent accesses to `rings` and `resting` on each side one comes first. If
//! that of the thread about to rest does, the ringing one sees it resting and wakes it; if the ring does, the thread
//! sees it and does not rest.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicUsize};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicUsize};

/// Wakes threads that rest.
pub(crate) struct Bell {
    rings: AtomicUsize,
    resting: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

/// How often a bell had been rung when a thread began to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rings(usize);

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell {
            rings: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            lock: Mutex::new(()),
            rung: Condvar::new(),
        }
    }

    /// To be noted before the look that a rest may follow.
    pub(crate) fn rings(&self) -> Rings {
        Rings(self.rings.load(SeqCst))
    }

    /// Ends the rest of one thread that rests, or is about to.
    pub(crate) fn ring(&self) {
        self.rings.fetch_add(1, SeqCst);
        if self.resting.load(SeqCst) > 0 {
            // The lock makes sure that a thread that has seen no ring is at the condition already.
            let _lock = lock(&self.lock);
            self.rung.notify_one();
        }
    }

    /// Rests until rung, and no longer than this; not at all if the bell was rung since `noted`.
    pub(crate) fn rest(&self, noted: Rings, longest: Duration) {
        let guard = lock(&self.lock);
        self.resting.fetch_add(1, SeqCst);
        if self.rings() == noted {
            drop(self.rung.wait_timeout(guard, longest));
        }
        self.resting.fetch_sub(1, SeqCst);
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

    /// A worker publishes a fault and rings; a driver that finds none rests. Loom knows no time, so a rest that a ring
    /// does not end is a deadlock.
    fn hears_of_the_fault(rest: fn(&Bell, Rings)) {
        loom::model(move || {
            let (bell, failed) = (Arc::new(Bell::new()), Arc::new(AtomicBool::new(false)));
            let worker = spawn({
                let (bell, failed) = (Arc::clone(&bell), Arc::clone(&failed));
                move || {
                    failed.store(true, SeqCst);
                    bell.ring();
                }
            });
            loop {
                let noted = bell.rings();
                if failed.load(SeqCst) {
                    break;
                }
                rest(&bell, noted);
            }
            worker.join().expect("the worker does not panic");
        });
    }

    #[test]
    fn a_driver_that_rests_hears_of_a_fault() {
        hears_of_the_fault(|bell, noted| bell.rest(noted, Duration::MAX));
    }

    /// As it was before rings were counted: a ring between the driver's last look and its rest is lost.
    #[test]
    fn without_counting_rings_one_is_lost() {
        let uncounted = |bell: &Bell, _| {
            let guard = lock(&bell.lock);
            bell.resting.fetch_add(1, SeqCst);
            drop(bell.rung.wait_timeout(guard, Duration::MAX));
            bell.resting.fetch_sub(1, SeqCst);
        };
        assert!(catch_unwind(|| hears_of_the_fault(uncounted)).is_err());
    }
}
