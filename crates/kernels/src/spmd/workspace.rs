//! What a kernel works in besides its arguments, and where each block's slice of it lies.
//!
//! The size lives neither in the graph nor in a kernel: it is the layout of what the kernel declares, for the number of
//! slices there are. A slice belongs to the member that runs a block, so there are as many as blocks run at once.

use std::ops::Range;

use super::LaunchError;

/// Slices start this many bytes apart, or a multiple: two lines, because the processor fetches the neighbour along.
const APART: u64 = 128;

/// Bytes a kernel wants for some parameters and number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// For all blocks together: what they leave for the next phase.
    pub common: u64,
    /// For each block that runs.
    pub block: u64,
}

impl Workspace {
    /// A kernel that works in its arguments alone.
    pub const NONE: Workspace = Workspace { common: 0, block: 0 };

    /// Room for `common` and for every block `block` elements of `T`.
    pub fn of<T>(common: usize, block: usize) -> Workspace {
        let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<T>() as u64);
        Workspace { common: bytes(common), block: bytes(block) }
    }
}

/// Where the parts of a workspace lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub(super) workspace: Workspace,
    /// From one slice to the next.
    pub(super) stride: u64,
    pub(super) slices: u64,
    /// Bytes left free in front of every slice.
    pub(super) gap: u64,
}

impl Layout {
    /// Lays out a workspace with so many slices: each is rounded up first and then counted, so that none is too small.
    pub fn new(workspace: Workspace, slices: usize) -> Result<Layout, LaunchError> {
        let too_large = || LaunchError::TooLarge { bytes: workspace.block, slices };
        let round = |bytes: u64| bytes.checked_next_multiple_of(APART).ok_or_else(too_large);
        let layout = Layout { workspace, stride: round(workspace.block)?, slices: slices as u64, gap: 0 };
        let all = layout.stride.checked_mul(layout.slices).ok_or_else(too_large)?;
        let total = round(workspace.common)?.checked_add(all).ok_or_else(too_large)?;
        usize::try_from(total).map_err(|_| too_large())?;
        Ok(layout)
    }

    /// The same with `gap` bytes, whole lines, left free in front of every slice.
    pub(crate) fn spaced(self, gap: u64) -> Layout {
        Layout { stride: self.stride + gap, gap, ..self }
    }

    /// How many slices.
    pub(crate) fn slices(&self) -> usize {
        self.slices as usize
    }

    /// Bytes of the whole workspace.
    pub fn total(&self) -> u64 {
        self.start() as u64 + self.stride * self.slices
    }

    /// The part that all blocks have in common.
    pub fn common(&self) -> Range<usize> {
        0..self.workspace.common as usize
    }

    /// Slice number `index`.
    pub fn slice(&self, index: usize) -> Range<usize> {
        assert!((index as u64) < self.slices, "slice {index} of {}", self.slices);
        let start = self.start() + self.stride as usize * index;
        start..start + self.workspace.block as usize
    }

    /// Where the first slice starts.
    pub fn start(&self) -> usize {
        (self.workspace.common.next_multiple_of(APART) + self.gap) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slices_are_disjoint_aligned_and_inside(common in 0u64..5000, block in 0u64..5000, slices in 1usize..=64) {
            let layout = Layout::new(Workspace { common, block }, slices).unwrap();
            let mut end = layout.common().end;
            prop_assert_eq!(layout.common().len() as u64, common);
            for slice in (0..slices).map(|index| layout.slice(index)) {
                prop_assert!(slice.start >= end && (slice.start as u64).is_multiple_of(APART));
                prop_assert_eq!(slice.len() as u64, block);
                end = slice.end;
            }
            prop_assert!(end as u64 <= layout.total());
            prop_assert!(layout.total() <= (common + APART) + slices as u64 * (block + APART));
        }

        #[test]
        fn what_cannot_be_addressed_is_an_error(over in 0u64..1 << 20, slices in 2usize..=64) {
            let block = u64::MAX / slices as u64 + 1 + over;
            let error = LaunchError::TooLarge { bytes: block, slices };
            prop_assert_eq!(Layout::new(Workspace { common: 0, block }, slices), Err(error));
        }
    }
}
