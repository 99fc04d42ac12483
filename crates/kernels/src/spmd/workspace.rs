//! What a kernel works in besides its arguments, and where each block's slice of it lies.
//!
//! The size lives neither in the graph nor in a kernel: it is the layout of what the kernel declares, for the number of
//! slices there are. A slice belongs to the member that runs a block, so there are as many as blocks run at once.
//! [`Layout`] alone rounds, multiplies and aligns; what lies inside a slice is its block's matter.

use std::ops::Range;

use super::LaunchError;

/// Slices start this many bytes apart, or a multiple: two lines, because the processor fetches the neighbour along.
const APART: u64 = 128;

/// What the memory of a workspace starts at a multiple of, as everything in an arena.
const GIVEN: u64 = 64;

/// The largest alignment of slices.
pub const MAX_ALIGN: u64 = 1 << 20;

/// Bytes a kernel wants for some parameters and number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// For all blocks together: what they leave for the next phase.
    pub common: u64,
    /// For each block that runs.
    pub block: u64,
    /// The power of two that the address of each block's slice is a multiple of. One that memory does not have by itself
    /// costs as many bytes.
    pub align: u64,
}

impl Default for Workspace {
    fn default() -> Self {
        Workspace::NONE
    }
}

impl Workspace {
    /// A kernel that works in its arguments alone.
    pub const NONE: Workspace = Workspace { common: 0, block: 0, align: GIVEN };

    /// Room for `common` and for every block `block` elements of `T`.
    pub fn of<T>(common: usize, block: usize) -> Workspace {
        let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<T>() as u64);
        Workspace { common: bytes(common), block: bytes(block), ..Workspace::NONE }
    }

    /// Bytes by which the first slice may have to move to an address it may start at.
    fn slack(&self) -> u64 {
        if self.align > GIVEN && self.block > 0 { self.align } else { 0 }
    }
}

/// Where the parts of a workspace lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    workspace: Workspace,
    /// From one slice to the next.
    stride: u64,
    slices: u64,
    /// Bytes left free in front of every slice.
    gap: u64,
    /// Bytes left free before all slices, so that they are aligned.
    skip: u64,
}

impl Layout {
    /// Lays out a workspace of `kernel` with so many slices: each is rounded up first and then counted, so that none is
    /// too small. Where its memory starts is not known yet.
    pub fn new(kernel: &'static str, workspace: Workspace, slices: usize) -> Result<Layout, LaunchError> {
        let Workspace { common, block, align } = workspace;
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(LaunchError::Alignment { kernel, align });
        }
        let total = || {
            let stride = block.checked_next_multiple_of(align.max(APART))?;
            let all = stride.checked_mul(slices as u64)?.checked_add(workspace.slack())?;
            let total = common.checked_next_multiple_of(APART)?.checked_add(all)?;
            isize::try_from(total).is_ok().then_some(stride)
        };
        let stride = total().ok_or(LaunchError::TooLarge { kernel, bytes: block, slices })?;
        Ok(Layout { workspace, stride, slices: slices as u64, gap: 0, skip: 0 })
    }

    /// So many slices of no bytes.
    pub(super) fn empty(slices: usize) -> Layout {
        Layout { slices: slices as u64, ..Layout::default() }
    }

    /// The same in memory that starts at this address.
    pub fn at(self, address: usize) -> Layout {
        let first = address as u64 + self.first();
        let skip = if self.workspace.slack() == 0 { 0 } else { first.wrapping_neg() % self.workspace.align };
        Layout { skip, ..self }
    }

    /// The same with `gap` bytes, a multiple of [`APART`], left free in front of every slice, or more so that all stay
    /// aligned.
    pub(crate) fn spaced(self, gap: u64) -> Layout {
        let gap = gap.next_multiple_of(self.workspace.align);
        Layout { stride: self.stride + gap, gap, ..self }
    }

    /// How many slices.
    pub(crate) fn slices(&self) -> usize {
        self.slices as usize
    }

    /// What the addresses of slices are multiples of.
    pub(crate) fn align(&self) -> usize {
        self.workspace.align as usize
    }

    /// Bytes of the whole workspace, wherever it starts.
    pub fn total(&self) -> u64 {
        self.first() + self.workspace.slack() + self.stride * self.slices
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
        (self.first() + self.skip) as usize
    }

    /// Where it would start if that address were aligned.
    fn first(&self) -> u64 {
        self.workspace.common.next_multiple_of(APART) + self.gap
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slices_are_disjoint_aligned_and_inside(
            common in 0u64..5000,
            block in 0u64..5000,
            log in 0u32..=12,
            slices in 1usize..=64,
            moved in 0usize..64,
            gap in 0u64..3,
        ) {
            let (align, gap) = (1 << log, gap * 4096);
            let layout = Layout::new("k", Workspace { common, block, align }, slices).unwrap();
            let slack = if align > GIVEN { align } else { 0 };
            let most = common + APART + slices as u64 * (block + align.max(APART)) + slack;
            prop_assert!(layout.total() <= most);
            let layout = layout.spaced(gap);
            // As arenas give it for alignments that cost nothing; for others memory may start anywhere.
            let memory = vec![0u8; layout.total() as usize + 2 * 64];
            let moved = memory.as_ptr().align_offset(64) + if align > GIVEN { moved } else { 0 };
            let address = memory[moved..].as_ptr().addr();
            let layout = layout.at(address);
            let mut end = layout.common().end;
            prop_assert_eq!(layout.common().len() as u64, common);
            for slice in (0..slices).map(|index| layout.slice(index)) {
                prop_assert!(slice.start as u64 >= end as u64 + gap);
                prop_assert!(block == 0 || ((address + slice.start) as u64).is_multiple_of(align));
                prop_assert!((slice.start - layout.start()).is_multiple_of(APART as usize));
                prop_assert_eq!(slice.len() as u64, block);
                end = slice.end;
            }
            prop_assert!(end as u64 <= layout.total());
        }

        #[test]
        fn what_cannot_be_addressed_is_an_error(over in 0u64..1 << 20, slices in 2usize..=64, log in 0u32..=20) {
            let bytes = u64::MAX / slices as u64 + 1 + over;
            let workspace = Workspace { common: 0, block: bytes, align: 1 << log };
            let error = LaunchError::TooLarge { kernel: "k", bytes, slices };
            prop_assert_eq!(Layout::new("k", workspace, slices), Err(error));
        }
    }

    #[test]
    fn sizes_at_the_end_of_memory_are_told_apart() {
        let lay_out = |common, block, align| Layout::new("k", Workspace { common, block, align }, 1);
        let most = isize::MAX as u64 / APART * APART;
        assert_eq!(lay_out(0, most, 64).map(|layout| layout.total()), Ok(most));
        let too_large = |bytes| Err(LaunchError::TooLarge { kernel: "k", bytes, slices: 1 });
        assert_eq!(lay_out(0, most, APART), too_large(most), "its alignment costs bytes, too");
        assert_eq!(lay_out(1, most, 64), too_large(most));
        assert_eq!(lay_out(0, most + 1, 64), too_large(most + 1));
        assert_eq!(lay_out(u64::MAX, 1, 64), too_large(1));
        assert_eq!(lay_out(0, u64::MAX, 64), too_large(u64::MAX));
    }

    #[test]
    fn an_alignment_that_is_no_power_of_two_or_too_large_names_the_kernel() {
        for align in [0, 3, 96, MAX_ALIGN + 1, 2 * MAX_ALIGN, u64::MAX] {
            let error = Layout::new("k", Workspace { align, ..Workspace::NONE }, 1).unwrap_err();
            assert_eq!(error, LaunchError::Alignment { kernel: "k", align });
        }
        assert!(Layout::new("k", Workspace { align: MAX_ALIGN, ..Workspace::NONE }, 1).is_ok());
        assert_eq!(
            LaunchError::Alignment { kernel: "k", align: 96 }.to_string(),
            "kernel `k` wants slices at multiples of 96 bytes; it can have powers of two up to 1048576"
        );
    }
}
