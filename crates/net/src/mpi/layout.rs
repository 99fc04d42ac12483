//! How a message's bytes are described to the library: a count of a datatype.
//!
//! A contiguous region is a count of bytes, with no datatype of its own. Counts are C integers, so that a region beyond
//! [`BLOCK`] becomes one datatype with as many blocks as fit and the rest; it still is a single message.

use std::ffi::c_int;

use phalanx_strided::ByteRuns;

use super::abi::{Handle, Handles};
use super::library::Library;
use crate::{NetError, Region};

/// Bytes that a count is trusted with: the largest power of two that fits a C integer.
pub(crate) const BLOCK: usize = 1 << 30;

/// A count of a datatype.
pub(crate) struct MpiLayout<'a> {
    library: &'a Library,
    /// How many.
    pub count: c_int,
    /// Of what.
    pub datatype: Handle,
}

impl<'a> MpiLayout<'a> {
    /// That of a region.
    ///
    /// # Safety
    /// No other thread is in the library.
    pub(crate) unsafe fn new(library: &'a Library, region: &Region) -> Result<MpiLayout<'a>, NetError> {
        let ByteRuns { run, extents, places: [place] } = &region.runs;
        let run = *run;
        if extents.is_empty() && run <= BLOCK {
            return Ok(MpiLayout { library, count: run as c_int, datatype: library.abi.byte });
        }
        // SAFETY: the caller's duty.
        let mut layout = unsafe { MpiLayout::contiguous(library, run) }?;
        for (&count, &stride) in extents.iter().zip(&place.strides).rev() {
            // SAFETY: the caller's duty.
            unsafe { layout.repeat(count, stride) }?;
        }
        // SAFETY: it is not of the library's own, for it was made above.
        unsafe { library.type_commit(&mut layout.datatype) }?;
        Ok(layout)
    }

    /// A single datatype of `run` bytes.
    unsafe fn contiguous(library: &'a Library, run: usize) -> Result<MpiLayout<'a>, NetError> {
        let byte = library.abi.byte;
        let mut layout = MpiLayout { library, count: 1, datatype: byte };
        if run <= BLOCK {
            // SAFETY: the caller's duty.
            unsafe { library.type_contiguous(run as c_int, byte, &mut layout.datatype) }?;
            return Ok(layout);
        }
        // SAFETY: the caller's duty.
        let block = unsafe { MpiLayout::contiguous(library, BLOCK) }?;
        let mut types = Handles::new(&library.abi);
        types.push(block.datatype);
        types.push(byte);
        let counts = [(run / BLOCK) as c_int, (run % BLOCK) as c_int];
        let offsets = [0, (run - run % BLOCK) as isize];
        let made = &mut layout.datatype;
        // SAFETY: the arrays have two elements each.
        unsafe {
            library.type_create_struct(2, counts.as_ptr(), offsets.as_ptr(), types.as_mut_ptr(), made)
        }?;
        Ok(layout)
    }

    /// Makes it `count` times itself, `stride` bytes from one to the next.
    unsafe fn repeat(&mut self, count: usize, stride: usize) -> Result<(), NetError> {
        let mut outer = MpiLayout { library: self.library, count: 1, datatype: self.library.abi.byte };
        let made = &mut outer.datatype;
        // SAFETY: the caller's duty. A grid has no more runs than its memory has bytes and each run has more than one.
        unsafe { self.library.type_create_hvector(count as c_int, 1, stride as isize, self.datatype, made) }?;
        std::mem::swap(self, &mut outer);
        Ok(())
    }
}

impl Drop for MpiLayout<'_> {
    /// Whatever was made with the datatype keeps it.
    fn drop(&mut self) {
        if self.datatype != self.library.abi.byte {
            // SAFETY: a layout lives within one call of the thread that is in the library; it made this datatype.
            let _ = unsafe { self.library.type_free(&mut self.datatype) };
        }
    }
}
