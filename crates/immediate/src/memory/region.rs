//! Bytes at an address and what keeps them there: a range of a memory, or bytes that the caller supplied.
//!
//! Addresses are handed out only to users that have entered the region's [`Access`], so two threads never touch a byte
//! at the same time unless both read. The bytes of a region are always initialised.

use std::ptr::NonNull;
use std::sync::Arc;

use phalanx_runtime::Arena;

use super::access::{Access, Entered};

/// The bytes of one instance, or of several that share what the caller supplied.
pub(crate) struct Region {
    pub(crate) access: Access,
    /// The first byte of what `keep` keeps; the region starts at the offset that entering returns.
    start: NonNull<u8>,
    bytes: usize,
    keep: Keep,
}

/// What owns the bytes.
enum Keep {
    Memory { _arena: Arc<Arena> },
    Boxed(RawBox),
    Shared { _bytes: Arc<[u8]> },
}

/// A box without its claim to be the only pointer to its bytes.
struct RawBox(NonNull<[u8]>);

// SAFETY: a region owns its bytes or keeps their owner alive, and a thread that reads or writes them has entered
// `access`, which keeps writers apart from all others on all threads.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A part of `arena`, whose first byte is at `start`, of `bytes` bytes; where it lies is said by `access.open`.
    pub(crate) fn of_memory(arena: Arc<Arena>, start: NonNull<u8>, bytes: usize) -> Region {
        Region { access: Access::unready(), start, bytes, keep: Keep::Memory { _arena: arena } }
    }

    fn boxed(bytes: Box<[u8]>) -> Region {
        let (len, raw) = (bytes.len(), RawBox::new(bytes));
        Region { access: Access::ready(), start: raw.0.cast(), bytes: len, keep: Keep::Boxed(raw) }
    }

    fn shared(bytes: Arc<[u8]>) -> Region {
        let start = NonNull::from(&*bytes).cast();
        Region { access: Access::ready(), start, bytes: bytes.len(), keep: Keep::Shared { _bytes: bytes } }
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether they may be written.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.keep, Keep::Shared { .. })
    }

    /// The address of the first byte, for a user that has entered. It is valid for `bytes` bytes until the user leaves,
    /// to be written only if the user entered to write and the region is writable.
    pub(crate) fn address(&self, entered: &Entered) -> *mut u8 {
        self.start.as_ptr().wrapping_add(entered.offset)
    }
}

impl RawBox {
    fn new(bytes: Box<[u8]>) -> RawBox {
        RawBox(NonNull::from(Box::leak(bytes)))
    }

    fn into_box(self) -> Box<[u8]> {
        let bytes = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: the pointer comes from a leaked box; `self` is forgotten, so it becomes a box once.
        unsafe { Box::from_raw(bytes.as_ptr()) }
    }
}

impl Drop for RawBox {
    fn drop(&mut self) {
        // SAFETY: as in `into_box`, which forgets `self` and so does not come here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Bytes of the caller that instances can lie on. Clones are the same bytes.
///
/// The runtime never frees them: releasing the instances leaves them to the owners of clones.
#[derive(Clone)]
pub struct External(pub(crate) Arc<Region>);

impl External {
    /// Bytes to be read and written. [`External::into_bytes`] gives them back.
    pub fn writable(bytes: Box<[u8]>) -> External {
        External(Arc::new(Region::boxed(bytes)))
    }

    /// Bytes only to be read.
    pub fn read_only(bytes: Arc<[u8]>) -> External {
        External(Arc::new(Region::shared(bytes)))
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The bytes as they are now, a copy if they are only to be read. They stay here as long as others have a clone or
    /// an instance or plan on them.
    pub fn into_bytes(self) -> Result<Box<[u8]>, External> {
        let region = Arc::try_unwrap(self.0).map_err(External)?;
        Ok(match region.keep {
            Keep::Boxed(bytes) => bytes.into_box(),
            Keep::Shared { _bytes: bytes } => (*bytes).into(),
            Keep::Memory { .. } => unreachable!("the caller's bytes are not a memory's"),
        })
    }
}
