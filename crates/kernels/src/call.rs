//! What a kernel is given for one execution: argument slices, parameter words, and the blocks it runs on.

use arrayvec::ArrayVec;
use phalanx_ir::MAX_NAMES;

use crate::spmd::Launch;

/// The most slices of one kind (read or written) that a kernel takes.
pub const MAX_ARGS: usize = MAX_NAMES;

/// Everything a kernel is given for one execution.
///
/// The slices are disjoint wherever one of them is written, start on 64-byte boundaries and live in one arena.
pub struct Call<'a> {
    /// The words of the kernel's parameters.
    pub params: &'a [u64],
    /// Slices the kernel only reads, in the order of its names for them.
    pub reads: ArrayVec<&'a [u8], MAX_ARGS>,
    /// Slices the kernel writes, likewise; it may read them too where its file says so.
    pub writes: ArrayVec<&'a mut [u8], MAX_ARGS>,
    /// The blocks it runs on.
    pub launch: Launch<'a>,
}

impl<'a> Call<'a> {
    /// Argument `index` of the reads, as elements of `T`.
    pub fn read<T: bytemuck::Pod>(&self, index: usize) -> &'a [T] {
        bytemuck::cast_slice(self.reads[index])
    }

    /// Takes argument `index` of the writes, as elements of `T`; a second taking gives an empty slice.
    pub fn write<T: bytemuck::Pod>(&mut self, index: usize) -> &'a mut [T] {
        bytemuck::cast_slice_mut(std::mem::take(&mut self.writes[index]))
    }
}
