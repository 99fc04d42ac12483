//! A mutable slice that several threads write at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that the blocks of a launch write in disjoint parts.
pub struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: parts handed to different threads are disjoint by the contract of `part`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: a `Parts` is a mutable slice in disguise.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Opens `slice` for disjoint writes.
    pub fn new(slice: &'a mut [T]) -> Self {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// The whole slice's length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `range` of the slice.
    ///
    /// # Safety
    /// While the part is alive no other part may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: in bounds by the assertion.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: in bounds, alive for 'a, and unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// The address of the first element, for kernels that compute their own disjoint tiles.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.start
    }
}
