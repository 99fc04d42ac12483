//! One launch of a kernel over many cores: n blocks, each with its own slice of the workspace.
//!
//! A kernel is one operation of a program, whatever the number of its blocks. How many there are is decided once, from
//! its parameters and the device's cores, before memory is laid out ([`KernelEntry::plan`](crate::KernelEntry::plan)); the
//! operation carries the number from then on, and workspace, dispatch and every [`Block`] see that one value. Blocks are
//! unordered and independent; the bits of a result do not depend on their number.
//!
//! [`Team`] is the device's cores, [`Launch`] what a kernel gets to start its blocks with, [`Workspace`] what it wants to
//! work in. A kernel of several phases starts its blocks once for each.

pub mod extent;
pub mod halves;
mod launch;
pub mod layout;
mod parts;
pub mod pin;
pub mod pipe;
mod team;
mod workspace;

use std::ops::Range;

pub(crate) use launch::Steps;
pub use launch::{Launch, LaunchError, MAX_BLOCKS, Planned};
pub use parts::Parts;
pub use team::Team;
pub use workspace::{Layout, MAX_ALIGN, Workspace};

/// Below this many elements a launch costs more than it saves.
pub const ALONE: usize = 16 * 1024;

/// A block for every core if there is enough to do, else one.
pub fn by_work(work: usize, cores: usize) -> i64 {
    if work < ALONE { 1 } else { cores as i64 }
}

/// Part `index` of `0..n` cut into `count` contiguous parts, which cover it exactly, in order.
pub fn share(index: usize, count: usize, n: usize) -> Range<usize> {
    n * index / count..n * (index + 1) / count
}

/// One block of a launch.
pub struct Block<'a> {
    /// Which one, from 0.
    pub index: usize,
    /// Of how many.
    pub count: usize,
    /// Its slice of the workspace, with arbitrary content.
    pub own: &'a mut [u8],
}

impl<'a> Block<'a> {
    /// This block's contiguous share of `0..n`; the shares of all blocks cover it exactly, in order.
    pub fn share(&self, n: usize) -> Range<usize> {
        share(self.index, self.count, n)
    }

    /// Takes its slice of the workspace, as elements of `T`; a second taking gives an empty slice.
    pub fn own<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        elements(std::mem::take(&mut self.own))
    }
}

/// Bytes of a workspace as elements; where there are none the address means nothing.
fn elements<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}
