//! One device's memory: a fixed number of bytes, allocated once, zero at first.

use std::ptr::NonNull;

use memmap2::MmapMut;
use phalanx_program::Slice;

/// An owned, page-aligned block of bytes, in large pages where the system has them: kernels walk through matrices in
/// strides that would miss the translation buffers of small ones.
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// Owns the memory at `start`.
    _memory: MmapMut,
}

// SAFETY: the arena owns its bytes; access goes through `&self` and `&mut self` like that of a `Vec<u8>`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates `bytes` zeroed bytes.
    pub fn new(bytes: u64) -> Arena {
        let bytes = usize::try_from(bytes).expect("an arena fits the address space");
        let mut memory = MmapMut::map_anon(bytes.max(1)).expect("the system has the memory it said it has");
        // Only a hint: a system without large pages refuses it, and small ones do.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let start = NonNull::new(memory.as_mut_ptr()).expect("a mapping has an address");
        Arena { start, bytes, _memory: memory }
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of `slice`.
    pub fn get(&self, slice: Slice) -> &[u8] {
        let start = self.address(slice);
        // SAFETY: `address` has checked that the range lies in the allocation, which lives as long as `self`; bytes
        // are always initialised, and writers need `&mut self` or promise to keep away (`part`).
        unsafe { std::slice::from_raw_parts(start, slice.bytes as usize) }
    }

    /// The bytes of `slice`, to be written.
    pub fn get_mut(&mut self, slice: Slice) -> &mut [u8] {
        // SAFETY: `&mut self` excludes every other access.
        unsafe { self.part(slice) }
    }

    /// The bytes of `slice` while other parts of the arena are written.
    ///
    /// # Safety
    /// Until the returned slice ends, nothing may write bytes that overlap it.
    pub(crate) unsafe fn shared(&self, slice: Slice) -> &[u8] {
        self.get(slice)
    }

    /// The bytes of `slice`, to be written, while other parts of the arena are in use.
    ///
    /// # Safety
    /// Until the returned slice ends, nothing else may hold bytes that overlap it.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, slice: Slice) -> &mut [u8] {
        let start = self.address(slice);
        // SAFETY: in the allocation by `address`, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, slice.bytes as usize) }
    }

    /// Where `slice` lies.
    pub(crate) fn address(&self, slice: Slice) -> *mut u8 {
        let end = slice.offset.checked_add(slice.bytes);
        assert!(end.is_some_and(|end| end <= self.bytes() as u64), "{slice} of {} bytes", self.bytes());
        // SAFETY: the offset is at most the size of the allocation.
        unsafe { self.start.as_ptr().add(slice.offset as usize) }
    }
}
