//! What a kernel is given for one execution: argument slices, parameter words, and the blocks it runs on.

use std::array::from_fn;

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

    /// Computes all results element by element: from element i of each operand, of which shorter ones are repeated, `f` gives
    /// that of each result. With `accumulate` the first result is added to.
    pub fn each<const N: usize, const M: usize>(
        &mut self,
        accumulate: bool,
        f: impl Fn([f32; N]) -> [f32; M],
    ) {
        let reads: [&[f32]; N] = from_fn(|slot| self.read(slot));
        let mut writes: [&mut [f32]; M] = from_fn(|slot| self.write(slot));
        for i in 0..writes[0].len() {
            let mut values = f(reads.map(|x| x[i % x.len()]));
            if accumulate {
                values[0] += writes[0][i];
            }
            writes.iter_mut().zip(values).for_each(|(write, value)| write[i] = value);
        }
    }
}
