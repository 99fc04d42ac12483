//! What a kernel starts its blocks with.

use std::ops::Range;

use super::{Block, Layout, MAX_ALIGN, Parts, Team, Workspace, elements};

/// The most blocks of a launch.
pub const MAX_BLOCKS: u32 = 1 << 16;

/// Why a kernel cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The number of blocks makes no sense.
    #[error("kernel `{kernel}` asks for {blocks} blocks; it can have 1 to {MAX_BLOCKS}")]
    Blocks {
        /// The kernel.
        kernel: &'static str,
        /// How many it asks for.
        blocks: i64,
    },
    /// No slice can start at such addresses.
    #[error(
        "kernel `{kernel}` wants slices at multiples of {align} bytes; it can have powers of two up to {MAX_ALIGN}"
    )]
    Alignment {
        /// The kernel.
        kernel: &'static str,
        /// What it asks for.
        align: u64,
    },
    /// The workspace cannot be addressed.
    #[error("kernel `{kernel}` wants {slices} slices of {bytes} bytes, more than can be addressed")]
    TooLarge {
        /// The kernel.
        kernel: &'static str,
        /// Bytes of a slice.
        bytes: u64,
        /// How many.
        slices: usize,
    },
    /// More blocks than were declared, or none.
    #[error("a launch of up to {bound} blocks is to run {blocks}; it can run 1 to {bound}")]
    Bound {
        /// How many blocks were decided on.
        blocks: usize,
        /// How many were declared.
        bound: usize,
    },
    /// The memory is not that of the plan.
    #[error("kernel `{kernel}` on {blocks} blocks works in {need} bytes, not in {found}")]
    Memory {
        /// The kernel.
        kernel: &'static str,
        /// On how many blocks.
        blocks: usize,
        /// Bytes of its workspace.
        need: u64,
        /// Bytes it was given.
        found: usize,
    },
}

/// A launch that has been decided on and not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// How many blocks.
    pub blocks: u32,
    /// Bytes of the workspace.
    pub bytes: u64,
}

/// Runs the blocks of a launch instead of its team: one after the other, with a look at memory in between.
pub(crate) trait Steps {
    /// Runs `body(block, slice)` once for every block of `0..n`.
    fn run(&self, n: usize, body: &(dyn Fn(usize, usize) + Sync));
}

/// The blocks of a kernel, about to run on a team.
pub struct Launch<'a> {
    blocks: usize,
    common: &'a mut [u8],
    slices: Slices<'a>,
    team: &'a Team,
    steps: Option<&'a dyn Steps>,
}

/// The slices of a workspace.
pub(super) struct Slices<'a> {
    layout: Layout,
    /// From the first slice on.
    memory: Parts<'a, u8>,
}

impl Slices<'_> {
    /// How many.
    pub(super) fn count(&self) -> usize {
        self.layout.slices()
    }

    /// Slice `index`.
    ///
    /// # Safety
    /// While it is alive no other reference to it may exist.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn get(&self, index: usize) -> &mut [u8] {
        let Range { start, end } = self.layout.slice(index);
        let first = self.layout.start();
        // SAFETY: slices do not overlap, and this one is not shared by the caller's promise.
        unsafe { self.memory.part(start - first..end - first) }
    }
}

impl<'a> Launch<'a> {
    /// `blocks` blocks of `kernel` that work in `memory`, which has the size of the layout.
    pub fn new(
        kernel: &'static str,
        blocks: usize,
        workspace: Workspace,
        memory: &'a mut [u8],
        team: &'a Team,
    ) -> Result<Launch<'a>, LaunchError> {
        if !(1..=MAX_BLOCKS as usize).contains(&blocks) {
            return Err(LaunchError::Blocks { kernel, blocks: i64::try_from(blocks).unwrap_or(i64::MAX) });
        }
        let layout = Layout::new(kernel, workspace, blocks.min(team.cores()))?.at(memory.as_ptr().addr());
        let (need, found) = (layout.total(), memory.len());
        if need != found as u64 {
            return Err(LaunchError::Memory { kernel, blocks, need, found });
        }
        Ok(Launch::laid_out(blocks, layout, memory, team))
    }

    /// The blocks in `memory`, for whose address the layout is made.
    fn laid_out(blocks: usize, layout: Layout, memory: &'a mut [u8], team: &'a Team) -> Launch<'a> {
        let (common, slices) = memory.split_at_mut(layout.start());
        let common = &mut common[layout.common()];
        let slices = Slices { layout, memory: Parts::new(slices) };
        Launch { blocks, common, slices, team, steps: None }
    }

    /// The same blocks in other memory, laid out so, and run by `steps`.
    pub(crate) fn stepped<'b>(&self, layout: Layout, memory: &'b mut [u8], steps: &'b dyn Steps) -> Launch<'b>
    where
        'a: 'b,
    {
        Launch { steps: Some(steps), ..Launch::laid_out(self.blocks, layout, memory, self.team) }
    }

    /// A block for every core, without workspace.
    pub fn plain(team: &'a Team) -> Launch<'a> {
        let blocks = team.cores();
        Launch::laid_out(blocks, Layout::empty(blocks), &mut [], team)
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Lets only `blocks` blocks run from now on, for a kernel that knows when it runs how many it needs. The number it was
    /// launched with is the bound, and its workspace is that of the bound.
    pub fn narrow(&mut self, blocks: usize) -> Result<(), LaunchError> {
        if !(1..=self.blocks).contains(&blocks) {
            return Err(LaunchError::Bound { blocks, bound: self.blocks });
        }
        self.blocks = blocks;
        Ok(())
    }

    /// The cores it runs on.
    pub fn team(&self) -> &'a Team {
        self.team
    }

    /// Where the parts of its workspace lie.
    pub(crate) fn layout(&self) -> Layout {
        self.slices.layout
    }

    /// The slices of its workspace.
    pub(super) fn slices(&self) -> &Slices<'a> {
        &self.slices
    }

    /// What runs its blocks, if not the team.
    pub(super) fn steps(&self) -> Option<&'a dyn Steps> {
        self.steps
    }

    /// Takes the part of the workspace that all blocks have in common, as elements of `T`; a second taking gives an
    /// empty slice.
    pub fn common<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        elements(std::mem::take(&mut self.common))
    }

    /// Runs `body` once for every block and returns when all are done: one phase of the kernel.
    pub fn run(&mut self, body: impl Fn(Block<'_>) + Sync) {
        let (count, slices) = (self.blocks, &self.slices);
        let block = |index, member| {
            // SAFETY: a member runs one block at a time, and it alone uses its slice.
            let own = unsafe { slices.get(member) };
            body(Block { index, count, own });
        };
        match self.steps {
            None => self.team.run(count, &block),
            Some(steps) => steps.run(count, &block),
        }
    }

    /// Splits `rows` rows over the blocks: `body` gets its range of rows, those rows of every output in `outs` (each
    /// given with its elements per row), and its own slice of the workspace.
    pub fn split_rows<const N: usize>(
        &mut self,
        rows: usize,
        outs: [(&mut [f32], usize); N],
        body: impl Fn(Range<usize>, [&mut [f32]; N], &mut [f32]) + Sync,
    ) {
        let outs = outs.map(|(out, width)| (Parts::new(out), width));
        self.run(|mut block| {
            let range = block.share(rows);
            // SAFETY: the shares of the blocks are disjoint, and so are the rows of one output.
            let parts = outs
                .each_ref()
                .map(|(out, width)| unsafe { out.part(range.start * width..range.end * width) });
            body(range, parts, block.own());
        });
    }

    /// Runs `body(first, part)` on contiguous parts that cover `out` exactly, one for each block.
    ///
    /// `first` is the position of the part in `out`, a multiple of `unit`; only the last part may end off a multiple.
    pub fn for_each_part<T: Send>(
        &mut self,
        out: &mut [T],
        unit: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let parts = Parts::new(out);
        self.run(|block| {
            let share = block.share(parts.len().div_ceil(unit));
            let range = share.start * unit..(share.end * unit).min(parts.len());
            // SAFETY: the blocks' shares are disjoint, and so are their multiples.
            body(range.start, unsafe { parts.part(range) });
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// Runs `test` with a launch of so many blocks on so many cores.
    fn launch(cores: usize, blocks: usize, workspace: Workspace, test: impl FnOnce(Launch<'_>)) {
        let layout = Layout::new("kernel", workspace, blocks.min(cores)).unwrap();
        let (mut memory, team) = (vec![0; layout.total() as usize], Team::new(cores));
        test(Launch::new("kernel", blocks, workspace, &mut memory, &team).unwrap());
    }

    #[test]
    fn parts_cover_a_slice_exactly_and_start_on_units() {
        for (cores, blocks, unit) in [(1, 1, 1), (2, 2, 16), (3, 7, 7), (4, 4, 50_000)] {
            for len in [0, 1, 1000, 1005] {
                let mut hits = vec![0u32; len];
                launch(cores, blocks, Workspace::NONE, |mut launch| {
                    launch.for_each_part(&mut hits, unit, |first, part| {
                        assert_eq!(first % unit, 0);
                        part.iter_mut().enumerate().for_each(|(i, hit)| *hit += (first + i) as u32 + 1);
                    });
                });
                let right = |(i, &hit): (usize, &u32)| hit == i as u32 + 1;
                assert!(hits.iter().enumerate().all(right), "{len} on {blocks} blocks");
            }
        }
    }

    #[test]
    fn every_row_of_every_output_is_given_once() {
        for cores in 1..5 {
            for (blocks, rows) in [(1, 3), (cores, 1), (cores, 7), (9, 7)] {
                let (mut wide, mut narrow) = (vec![0.0; rows * 3], vec![0.0; rows]);
                launch(cores, blocks, Workspace::of::<f32>(0, 8), |mut launch| {
                    let outs = [(&mut wide[..], 3), (&mut narrow[..], 1)];
                    launch.split_rows(rows, outs, |range, [wide, narrow], own| {
                        assert_eq!(own.len(), 8);
                        wide.iter_mut().enumerate().for_each(|(i, x)| *x += (range.start + i / 3) as f32);
                        narrow.iter_mut().zip(range).for_each(|(x, row)| *x += row as f32);
                    });
                });
                assert!(wide.iter().enumerate().all(|(i, &x)| x == (i / 3) as f32));
                assert!(narrow.iter().enumerate().all(|(row, &x)| x == row as f32));
            }
        }
    }

    #[test]
    fn every_slice_starts_where_the_kernel_wants_it_wherever_memory_does() {
        let team = Team::new(3);
        for align in [128, 4096, 1 << 16] {
            let workspace = Workspace { common: 5, block: 300, align };
            let bytes = Layout::new("k", workspace, 3).unwrap().total() as usize;
            let mut memory = vec![0; bytes + 64];
            for moved in [0, 1, 64] {
                let mut launch =
                    Launch::new("k", 7, workspace, &mut memory[moved..][..bytes], &team).unwrap();
                launch.run(|block| {
                    assert_eq!((block.own.as_ptr().addr() as u64 % align, block.own.len()), (0, 300));
                });
            }
        }
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let (mut memory, team) = (vec![0; 512], Team::new(2));
        let launch =
            Launch::new("k", 2, Workspace { common: 1, block: 200, ..Workspace::NONE }, &mut memory, &team);
        let error = LaunchError::Memory { kernel: "k", blocks: 2, need: 128 + 2 * 256, found: 512 };
        assert_eq!(launch.err(), Some(error));
    }

    #[test]
    fn as_many_blocks_as_a_plan_may_have_and_no_more() {
        let team = Team::new(2);
        let launch = |blocks| Launch::new("k", blocks, Workspace::NONE, &mut [], &team).err();
        assert_eq!([1, MAX_BLOCKS as usize].map(launch), [None, None]);
        for blocks in [0, MAX_BLOCKS as usize + 1, i64::MAX as usize, usize::MAX] {
            let told = i64::try_from(blocks).unwrap_or(i64::MAX);
            assert_eq!(launch(blocks), Some(LaunchError::Blocks { kernel: "k", blocks: told }));
        }
    }

    /// A kernel that finds out how many rows there are when it runs.
    #[test]
    fn a_launch_runs_as_many_blocks_as_are_decided_on_within_its_bound() {
        for (cores, bound) in [(1, 1), (2, 5), (3, 8)] {
            launch(cores, bound, Workspace::of::<f32>(0, 4), |mut launch| {
                for wrong in [0, bound + 1, usize::MAX] {
                    assert_eq!(launch.narrow(wrong), Err(LaunchError::Bound { blocks: wrong, bound }));
                }
                for blocks in (1..=bound).rev() {
                    launch.narrow(blocks).unwrap();
                    let calls: Vec<_> = (0..bound).map(|_| AtomicU32::new(0)).collect();
                    launch.run(|mut block| {
                        assert_eq!((block.count, block.own::<f32>().len()), (blocks, 4));
                        calls[block.index].fetch_add(1, Relaxed);
                    });
                    let calls: Vec<_> = calls.iter().map(|calls| calls.load(Relaxed)).collect();
                    assert!(
                        calls.iter().enumerate().all(|(index, &calls)| calls == u32::from(index < blocks))
                    );
                }
            });
        }
    }
}
