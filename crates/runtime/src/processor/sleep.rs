//! How a worker that finds nothing to do falls asleep, and how work wakes it.
//!
//! One word: [`AWAKE`] or [`ASLEEP`]. At most one thread sleeps here, the one that serves the processor.
//!
//! * To sleep: store `ASLEEP`, fence, look everywhere for work once more; then wait until the word is `AWAKE` again.
//! * To wake: make the work visible, fence, load the word; if it is `ASLEEP`, change it and ring the bell.
//!
//! No wake-up is lost: of two sequentially consistent fences one comes first. If the sleeper's does, the other side's load
//! sees `ASLEEP`. If the other side's does, the sleeper sees the work. Release and Acquire alone would let both miss.
//! Who finds the worker awake pays one load, of a line that changes only when somebody sleeps.

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, fence, lock, sleep};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

pub(crate) struct Sleep {
    state: AtomicU32,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Sleep {
    pub(crate) fn new() -> Sleep {
        Sleep { state: AtomicU32::new(AWAKE), lock: Mutex::new(()), bell: Condvar::new() }
    }

    /// Sleeps until woken, unless `work` finds some.
    pub(crate) fn sleep_unless(&self, work: impl FnOnce() -> bool) {
        // Pairs with the fence in `wake`; see the head.
        if !self.falls_asleep(|| fence(Ordering::SeqCst), work) {
            return;
        }
        let mut guard = lock(&self.lock);
        // Relaxed: changed under the lock or before this thread took it; the work itself is published by its own words.
        while self.state.load(Ordering::Relaxed) == ASLEEP {
            guard = sleep(&self.bell, guard);
        }
    }

    /// Whether the caller is to sleep. Models leave `fence` out to see themselves fail.
    fn falls_asleep(&self, fence: impl FnOnce(), work: impl FnOnce() -> bool) -> bool {
        // Relaxed: ordered by the fence.
        self.state.store(ASLEEP, Ordering::Relaxed);
        fence();
        if work() {
            // Relaxed: whoever sees the old value rings a bell that nobody hears.
            self.state.store(AWAKE, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Wakes the sleeper, if there is one, for work that the caller has made visible.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `sleep_unless`; see the head.
        fence(Ordering::SeqCst);
        self.wake_fenced();
    }

    /// The same after a sequentially consistent fence of the caller's own, so that one serves several processors.
    pub(crate) fn wake_fenced(&self) {
        // Relaxed: ordered by the fence.
        if self.state.load(Ordering::Relaxed) == ASLEEP {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        let _guard = lock(&self.lock);
        // Relaxed: the sleeper looks under the lock.
        self.state.store(AWAKE, Ordering::Relaxed);
        self.bell.notify_one();
    }
}

#[cfg(all(loom, test))]
mod models {
    use std::panic::catch_unwind;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// One thread makes work visible and wakes; another sleeps unless it sees the work. If it may sleep for ever although
    /// the work is there, loom tells of a deadlock.
    #[test]
    fn nobody_sleeps_on_while_there_is_work() {
        loom::model(|| {
            let (sleep, work) = (Arc::new(Sleep::new()), Arc::new(AtomicU32::new(0)));
            let producer = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    // Relaxed, as are the loads: only the fences may order them.
                    work.store(1, Ordering::Relaxed);
                    sleep.wake();
                }
            });
            while work.load(Ordering::Relaxed) == 0 {
                sleep.sleep_unless(|| work.load(Ordering::Relaxed) == 1);
            }
            producer.join().expect("the producer does not panic");
        });
    }

    /// The same up to the point where one sleeps and the other has woken it: whether loom found an order in which the
    /// work is there, the one is about to sleep and the other has not woken it.
    fn loses_a_wake_up(waker_fence: fn(), sleeper_fence: fn()) -> bool {
        let model = move || {
            let (sleep, work) = (Arc::new(Sleep::new()), Arc::new(AtomicU32::new(0)));
            let producer = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    work.store(1, Ordering::Relaxed);
                    waker_fence();
                    sleep.wake_fenced();
                }
            });
            let sleeps = sleep.falls_asleep(sleeper_fence, || work.load(Ordering::Relaxed) == 1);
            producer.join().expect("the producer does not panic");
            assert!(!sleeps || sleep.state.load(Ordering::Relaxed) == AWAKE, "a wake-up is lost");
        };
        catch_unwind(|| loom::model(model)).is_err()
    }

    #[test]
    fn without_either_fence_a_wake_up_is_lost() {
        let fenced = || fence(Ordering::SeqCst);
        assert!(!loses_a_wake_up(fenced, fenced));
        assert!(loses_a_wake_up(|| {}, fenced));
        assert!(loses_a_wake_up(fenced, || {}));
    }
}
