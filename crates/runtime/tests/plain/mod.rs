//! Data without locks or atomics, shared by threads whose order the code under test must provide.
//!
//! A race detector sees every access that is not ordered; without one, a wrong value may still show it.

use std::cell::UnsafeCell;

pub struct Plain(UnsafeCell<u64>);

// SAFETY: the tests hand the right to access on through the code that they test, which is what they test.
unsafe impl Sync for Plain {}

impl Plain {
    pub fn new(value: u64) -> Plain {
        Plain(UnsafeCell::new(value))
    }

    pub fn get(&self) -> u64 {
        // SAFETY: the caller has the right to read by the order that it tests.
        unsafe { *self.0.get() }
    }

    pub fn set(&self, value: u64) {
        // SAFETY: the caller alone has the right to access by the order that it tests.
        unsafe { *self.0.get() = value };
    }
}
