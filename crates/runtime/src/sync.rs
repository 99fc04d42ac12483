//! Atomics, locks and threads of the protocols: the standard ones, loom's under `--cfg loom`, or some that
//! ThreadSanitizer understands under `--cfg tsan`.
//!
//! Files that hold a protocol take their primitives from here alone, so that loom can run every order of their steps.

#[cfg(tsan)]
mod spin;

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex, MutexGuard, RwLock},
    thread_local,
};
#[cfg(tsan)]
pub use spin::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, tsan)))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
    thread_local,
};

pub use std::sync::atomic::Ordering;

/// Takes a lock, also one whose last holder panicked: what our locks guard is never left half changed, since bodies of
/// tasks run without any.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps on `condvar` until notified.
pub fn sleep<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps on `condvar` while `asleep` holds and less than `limit` has passed.
#[cfg(not(loom))]
pub(crate) fn sleep_at_most<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
    asleep: impl Fn(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout_while(guard, limit, asleep).unwrap_or_else(PoisonError::into_inner).0
}

/// Loom knows no time: every limit has passed at once.
#[cfg(loom)]
pub(crate) fn sleep_at_most<'a, T>(
    _: &Condvar,
    guard: MutexGuard<'a, T>,
    _: Duration,
    _: impl Fn(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    guard
}
