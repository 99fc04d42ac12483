//! A number that only grows, and threads that wait until it has grown far enough.
//!
//! `reached` is the number, `wanted` the smallest one that somebody sleeps for. Growing costs no system call unless
//! that one is reached: a sleeper further ahead is left alone.
//!
//! * To grow: store `reached`; if `wanted` is reached, take the lock, forget `wanted` and ring the bell.
//! * To sleep: under the lock, lower `wanted` to the own number; look at `reached` again; sleep, which frees the lock.
//!   Every sleeper that the bell wakes starts over, so forgotten wishes come back.
//!
//! No wake-up is lost: the store of `reached` then load of `wanted`, against the store of `wanted` then load of `reached`,
//! are all sequentially consistent, so at least one side sees the other's store (Release and Acquire would let both
//! miss). If the sleeper sees it, it does not sleep. If the one who grows sees it, it takes the lock, which the sleeper
//! holds until it sleeps, and so rings after that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// On cache lines of its own: every operation of a lane writes it.
#[repr(align(128))]
pub(crate) struct Counter {
    reached: AtomicU64,
    wanted: AtomicU64,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Counter {
    /// Starts at zero.
    pub(crate) fn new() -> Counter {
        Counter {
            reached: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            lock: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// Grows to `number`; only one thread may do so. What it wrote before is seen by those who waited for it.
    pub(crate) fn advance(&self, number: u64) {
        // SeqCst: see the head. As a Release it publishes the thread's writes to the loads in `wait`.
        self.reached.store(number, SeqCst);
        // SeqCst: see the head.
        if self.wanted.load(SeqCst) <= number {
            self.ring();
        }
    }

    /// Wakes everybody, to look again.
    pub(crate) fn ring(&self) {
        let _guard = self.lock();
        // Relaxed: other accesses that matter here hold the lock; a stale one in `advance` rings once more than needed.
        self.wanted.store(u64::MAX, Relaxed);
        self.bell.notify_all();
    }

    /// Waits until `number` is reached or `stop` is set (by one who then rings); looks `spins` times before it sleeps.
    pub(crate) fn wait(&self, number: u64, spins: u32, stop: &AtomicBool) {
        for _ in 0..=spins {
            // Acquire pairs with the store in `advance`. Relaxed: a stopped wait reads nothing that was written.
            if self.reached.load(Acquire) >= number || stop.load(Relaxed) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock();
        loop {
            // Relaxed load: stores to `wanted` hold the lock. SeqCst store: see the head.
            self.wanted.store(number.min(self.wanted.load(Relaxed)), SeqCst);
            // SeqCst: see the head; as an Acquire it pairs with the store in `advance`. Relaxed: `stop` is set before
            // the ringer takes the lock, so it is seen here or the bell rings after this thread sleeps.
            if self.reached.load(SeqCst) >= number || stop.load(Relaxed) {
                return;
            }
            guard = self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave half changed.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// Two threads that take turns through two counters: each sees what the other wrote before.
    #[test]
    fn turns_alternate_and_publish_what_was_written() {
        for spins in [0, 100] {
            let (ping, pong, cell) = (Counter::new(), Counter::new(), AtomicU64::new(0));
            let rounds = 5_000;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=rounds {
                        ping.wait(round, spins, &NEVER);
                        assert_eq!(cell.load(Relaxed), 2 * round - 1, "round {round}");
                        cell.store(2 * round, Relaxed);
                        pong.advance(round);
                    }
                });
                for round in 1..=rounds {
                    cell.store(2 * round - 1, Relaxed);
                    ping.advance(round);
                    pong.wait(round, spins, &NEVER);
                    assert_eq!(cell.load(Relaxed), 2 * round, "round {round}");
                }
            });
        }
    }

    /// Sleepers for different numbers, near and far, all wake up.
    #[test]
    fn every_sleeper_wakes_at_its_number() {
        let counter = Counter::new();
        let last = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 1..=8u64 {
                let (counter, last) = (&counter, &last);
                scope.spawn(move || {
                    for round in 0..500 {
                        let number = 8 * round + number;
                        counter.wait(number, 0, &NEVER);
                        assert!(last.load(Relaxed) >= number, "woken before {number}");
                    }
                });
            }
            for number in 1..=4_000 {
                last.store(number, Relaxed);
                counter.advance(number);
            }
        });
    }

    #[test]
    fn a_stopped_wait_ends() {
        let (counter, stop) = (Counter::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| counter.wait(7, 0, &stop));
            stop.store(true, Relaxed);
            counter.ring();
            waiter.join().expect("the waiter ends");
        });
        assert_eq!(counter.reached.load(Relaxed), 0, "the number was never reached");
    }
}
