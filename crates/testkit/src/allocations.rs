//! An allocator that counts, for tests that a replayed step allocates nothing.
//!
//! ```
//! use phalanx_testkit::allocations::{self, Counting};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = allocations::count();
//! let memory = vec![0u8; 64];
//! assert!(allocations::count() > before, "{} bytes", memory.len());
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The system's allocator, counted.
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this process so far. Relaxed: a test reads it while its threads have nothing to do.
pub fn count() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Bytes that are allocated now. Relaxed: as [`count`].
pub fn bytes() -> i64 {
    BYTES.load(Relaxed)
}

/// Allocations of this thread so far.
pub fn of_this_thread() -> u64 {
    OWN.get()
}

/// Relaxed: counters that order nothing.
fn note(allocations: u64, bytes: i64) {
    ALLOCATIONS.fetch_add(allocations, Relaxed);
    BYTES.fetch_add(bytes, Relaxed);
    OWN.set(OWN.get() + allocations);
}

// SAFETY: every call is passed on to the system's allocator unchanged. Counting allocates nothing: the thread's counter
// is a constant without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(1, bytes as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
