//! Locks and bells made of instrumented atomics, for ThreadSanitizer (`--cfg tsan`).
//!
//! The standard library comes without instrumentation, so the sanitizer does not see what its locks order and reports
//! every use of what they guard. These have the same interface and are seen. They spin: they are for that check alone.
#![allow(missing_docs)] // the names are the standard library's

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{LockResult, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the thread that has set `locked`.
unsafe impl<T: Send + ?Sized> Sync for Mutex<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send + ?Sized> Send for Mutex<T> {}

impl<T: ?Sized> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mutex")
    }
}

pub struct MutexGuard<'a, T: ?Sized>(&'a Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // Acquire pairs with the store in `drop`.
        while self.locked.swap(true, Acquire) {
            yield_now();
        }
        Ok(MutexGuard(self))
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // Release pairs with the swap in `lock`.
        self.0.locked.store(false, Release);
    }
}

/// Counts notifications; a thread that sleeps waits for the count to change.
#[derive(Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(AtomicU32::new(0))
    }

    pub fn notify_one(&self) {
        // Release pairs with the loads in `wait`.
        self.0.fetch_add(1, Release);
    }

    pub fn notify_all(&self) {
        self.notify_one();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let mutex = guard.0;
        // Relaxed: read under the lock, before which or after which the notification comes.
        let notified = self.0.load(Relaxed);
        drop(guard);
        // Acquire pairs with `notify_one`.
        while self.0.load(Acquire) == notified {
            yield_now();
        }
        mutex.lock()
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        asleep: impl Fn(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let (mutex, start) = (guard.0, Instant::now());
        while asleep(&mut guard) && start.elapsed() < limit {
            drop(guard);
            yield_now();
            guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        }
        Ok((guard, ()))
    }
}

/// Readers exclude each other too: enough for a check.
pub struct RwLock<T>(Mutex<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(Mutex::new(value))
    }

    pub fn read(&self) -> LockResult<MutexGuard<'_, T>> {
        self.0.lock()
    }

    pub fn write(&self) -> LockResult<MutexGuard<'_, T>> {
        self.0.lock()
    }
}
