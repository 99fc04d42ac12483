//! How an idle worker falls asleep, how work wakes it, and how a helper thread serves in its place.
//!
//! The thread that serves a processor holds its worker core. A worker that sleeps leaves it *parked*, and takes it
//! again when it is called. A thread outside that waits for the processor's work anyway may take it first, a *helper
//! thread*: then no thread needs to be woken. One word says which it is: [`AWAKE`], a thread holds it; [`ASLEEP`], it
//! is parked, or about to be, and the worker was not called; [`CALLED`], the same and the worker was called.
//!
//! * To sleep or, as a helper thread, to leave: store `ASLEEP`, fence, look everywhere for work once more; then park
//!   the worker core. A worker waits until the word is `CALLED` and the worker core is parked; a helper thread that has
//!   found work calls the worker, and so does one that has been called meanwhile.
//! * To wake: make the work visible, fence, load the word; if it is `ASLEEP`, change it and notify the condition
//!   variable.
//!
//! No wake-up is lost: of two sequentially consistent fences one comes first. If that of the thread that leaves does,
//! the other side's load sees `ASLEEP`. If the other side's does, the thread that leaves sees the work. Release and
//! Acquire alone would let both miss. A waker that finds the processor served pays one load, of a cache line that
//! changes only when a thread sleeps.

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, fence, lock, sleep};

use super::worker_core::WorkerCore;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const CALLED: u32 = 2;

pub(crate) struct Sleep<T = Box<WorkerCore>> {
    state: AtomicU32,
    parked: Mutex<Option<T>>,
    condvar: Condvar,
}

impl<T> Sleep<T> {
    pub(crate) fn new() -> Sleep<T> {
        Sleep { state: AtomicU32::new(AWAKE), parked: Mutex::new(None), condvar: Condvar::new() }
    }

    /// Leaves the worker core parked and sleeps until called, unless `work` finds some.
    pub(crate) fn sleep_unless(&self, core: T, work: impl FnOnce(&T) -> bool) -> T {
        // Pairs with the fence in `wake`; see the head.
        if !self.falls_asleep(|| fence(Ordering::SeqCst), || work(&core)) {
            return core;
        }
        let mut parked = lock(&self.parked);
        *parked = Some(core);
        loop {
            // Relaxed: changed under the lock, or before the worker core was parked; the work itself is published
            // by its own words.
            if self.state.load(Ordering::Relaxed) == CALLED
                && let Some(core) = parked.take()
            {
                // Relaxed: a waker that sees an older value notifies a condition variable that no thread waits on.
                self.state.store(AWAKE, Ordering::Relaxed);
                return core;
            }
            parked = sleep(&self.condvar, parked);
        }
    }

    /// Takes the worker core for a helper thread, if it is parked.
    pub(crate) fn take(&self) -> Option<T> {
        // Relaxed: a hint. The lock decides, and orders what the one before did with the worker core.
        if self.state.load(Ordering::Relaxed) == AWAKE {
            return None;
        }
        let mut parked = lock(&self.parked);
        let core = parked.take()?;
        // Relaxed: as in `sleep_unless`. The worker, if it was called, finds no parked core.
        self.state.store(AWAKE, Ordering::Relaxed);
        Some(core)
    }

    /// A helper thread puts the worker core back: for the next thread that takes it, or for the worker if `work` finds
    /// some. Whether it found none.
    pub(crate) fn give(&self, core: T, work: impl FnOnce(&T) -> bool) -> bool {
        // Pairs with the fence in `wake`; see the head.
        self.give_fenced(core, || fence(Ordering::SeqCst), work)
    }

    /// Apart so that models can leave `fence` out.
    fn give_fenced(&self, core: T, fence: impl FnOnce(), work: impl FnOnce(&T) -> bool) -> bool {
        let sleeps = self.falls_asleep(fence, || work(&core));
        let mut parked = lock(&self.parked);
        *parked = Some(core);
        // Relaxed: as in `sleep_unless`. A call meanwhile has woken a worker that found no parked core.
        if !sleeps || self.state.load(Ordering::Relaxed) == CALLED {
            self.state.store(CALLED, Ordering::Relaxed);
            self.condvar.notify_one();
        }
        sleeps
    }

    /// Whether the caller is to sleep. Models leave `fence` out to see themselves fail.
    fn falls_asleep(&self, fence: impl FnOnce(), work: impl FnOnce() -> bool) -> bool {
        // Relaxed: ordered by the fence.
        self.state.store(ASLEEP, Ordering::Relaxed);
        fence();
        if work() {
            // Relaxed: a waker that sees the old value notifies a condition variable that no thread waits on.
            self.state.store(AWAKE, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Wakes the sleeper, if there is one, for work that the caller has made visible.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `sleep_unless` and in `give`; see the head.
        fence(Ordering::SeqCst);
        self.wake_fenced();
    }

    /// The same after a sequentially consistent fence of the caller's own, so that one serves several processors.
    pub(crate) fn wake_fenced(&self) {
        // Relaxed: ordered by the fence.
        if self.state.load(Ordering::Relaxed) == ASLEEP {
            self.notify();
        }
    }

    #[cold]
    fn notify(&self) {
        let _parked = lock(&self.parked);
        // Relaxed: a thread that leaves the worker core looks under the lock. One that has taken it up meanwhile looks
        // for work anyway, and is not to be marked as called.
        let called = self.state.compare_exchange(ASLEEP, CALLED, Ordering::Relaxed, Ordering::Relaxed);
        if called.is_ok() {
            self.condvar.notify_one();
        }
    }
}

#[cfg(all(loom, test))]
mod models {
    use std::panic::catch_unwind;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// One thread makes work visible and wakes; another sleeps unless it sees the work. If it may sleep forever
    /// although the work is there, loom reports a deadlock.
    #[test]
    fn no_worker_sleeps_on_while_there_is_work() {
        loom::model(|| {
            let (sleep, work) = (Arc::new(Sleep::<()>::new()), Arc::new(AtomicU32::new(0)));
            let producer = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    // Relaxed, as are the loads: only the fences may order them.
                    work.store(1, Ordering::Relaxed);
                    sleep.wake();
                }
            });
            while work.load(Ordering::Relaxed) == 0 {
                sleep.sleep_unless((), |()| work.load(Ordering::Relaxed) == 1);
            }
            producer.join().expect("the producer does not panic");
        });
    }

    /// The same up to the point where one sleeps and the other has woken it: whether loom found an order in which the
    /// work is there, the one is about to sleep and the other has not woken it.
    fn loses_a_wake_up(waker_fence: fn(), sleeper_fence: fn()) -> bool {
        let model = move || {
            let (sleep, work) = (Arc::new(Sleep::<()>::new()), Arc::new(AtomicU32::new(0)));
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
            assert!(!sleeps || sleep.state.load(Ordering::Relaxed) == CALLED, "a wake-up is lost");
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

    /// A worker sleeps, a helper thread may take its place and leaves again, and a third thread makes work visible and
    /// wakes: the worker or the helper thread finds the work, and only the thread that has the worker core touches what
    /// it guards.
    #[test]
    fn a_helper_leaves_no_work_behind_and_is_alone() {
        let mut model = loom::model::Builder::new();
        // Three threads have too many orders; those with up to three preemptions show every step in every gap.
        model.preemption_bound = Some(3);
        model.check(|| {
            let (sleep, work) = (Arc::new(Sleep::new()), Arc::new(AtomicU32::new(0)));
            let done = |core: &UnsafeCell<u32>| {
                // SAFETY: loom checks that no other thread has access.
                core.with_mut(|done| unsafe { *done = work.load(Ordering::Relaxed) });
                // SAFETY: as above.
                core.with(|done| unsafe { *done == 1 })
            };
            let producer = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    work.store(1, Ordering::Relaxed);
                    sleep.wake();
                }
            });
            let helper = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    let Some(core) = sleep.take() else { return };
                    // SAFETY: loom checks that no other thread has access.
                    UnsafeCell::with_mut(&core, |done| unsafe { *done = work.load(Ordering::Relaxed) });
                    sleep.give(core, |_| work.load(Ordering::Relaxed) == 1);
                }
            });
            let mut core = UnsafeCell::new(0);
            while !done(&core) {
                core = sleep.sleep_unless(core, |_| work.load(Ordering::Relaxed) == 1);
            }
            producer.join().expect("the producer does not panic");
            helper.join().expect("the helper does not panic");
        });
    }

    /// A helper thread leaves while a producer wakes, with or without its fence: whether loom found an order in which
    /// the work is there and the worker core parked, and the worker was not called.
    fn helper_misses_work(helper_fence: fn()) -> bool {
        let model = move || {
            let (sleep, work) = (Arc::new(Sleep::new()), Arc::new(AtomicU32::new(0)));
            let producer = thread::spawn({
                let (sleep, work) = (Arc::clone(&sleep), Arc::clone(&work));
                move || {
                    work.store(1, Ordering::Relaxed);
                    sleep.wake();
                }
            });
            sleep.give_fenced((), helper_fence, |()| work.load(Ordering::Relaxed) == 1);
            producer.join().expect("the producer does not panic");
            assert_eq!(sleep.state.load(Ordering::Relaxed), CALLED, "a wake-up is lost");
        };
        catch_unwind(|| loom::model(model)).is_err()
    }

    #[test]
    fn without_its_fence_a_helper_misses_work() {
        assert!(!helper_misses_work(|| fence(Ordering::SeqCst)));
        assert!(helper_misses_work(|| {}));
    }
}
