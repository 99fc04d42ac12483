//! What a kernel is: a type that holds the parameters of one execution, and what it does with them.
//!
//! A library user's own kernels implement the same trait and are added by [`table::add`](crate::table::add).

use std::any::type_name;

use phalanx_ir::Names;
use phalanx_ir::tasks::TaskView;

use crate::Words;
use crate::call::Call;
use crate::spmd::{Launch, LaunchError, Layout, MAX_BLOCKS, Planned, Team, Workspace};

/// One operation on slices of an arena; the implementing type is its parameters. It allocates nothing, and gives the
/// same bits on any number of blocks.
pub trait Kernel: Words + 'static {
    /// The name by which programs refer to it.
    const NAME: &'static str;

    /// The task operators that it executes.
    const TASKS: &'static [&'static str] = &[Self::NAME];

    /// Whether its time is that of matrix products.
    const IS_PRODUCT: bool = false;

    /// The parameters for a task, from its attributes and the shapes of its operands; or what is wrong with it.
    fn from_task(task: &TaskView<'_>) -> Result<Self, String>;

    /// Whether it takes the first two operands of the task in the other order.
    fn swaps(_task: &TaskView<'_>) -> bool {
        false
    }

    /// What it calls its arguments, in the order in which it takes them.
    fn arguments(&self) -> Names;

    /// Plain loops; the meaning of the kernel.
    fn reference(&self, call: &mut Call<'_>);

    /// The tuned version.
    fn fast(&self, call: &mut Call<'_>) {
        self.reference(call);
    }

    /// What it does that takes its time.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(0.0, false)
    }

    /// How many blocks it wants on this many cores.
    fn blocks(&self, _cores: usize) -> i64 {
        1
    }

    /// What it works in on this many blocks.
    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::NONE
    }

    /// The same work at the beginning of its tensor and with no seed: its time depends on neither.
    fn anywhere(self) -> Self {
        self
    }

    /// The integers that it reads are below this.
    fn ids(&self) -> usize {
        1
    }

    /// Its sizes for people, where they tell more than bytes do.
    fn sizes(&self) -> Option<String> {
        None
    }
}

/// Writes the name of a [`Kernel`] and what it calls its arguments: reads, an arrow, writes. If it has one result, the functions
/// that are its reference and its fast version may follow; they take result, operands, parameters, and the latter the launch.
///
/// ```text
/// signature!("topk": x => values, indices);
/// signature!("reverse": x => y by reverse_reference, reverse);
/// ```
#[macro_export]
macro_rules! signature {
    (@read $call:ident, $slots:ident, $name:ident) => { $call.read($slots.next().unwrap_or(0)) };
    ($name:literal: $($read:ident),* => $write:ident by $reference:ident, $fast:ident) => {
        $crate::signature!($name: $($read),* => $write);
        fn reference(&self, call: &mut $crate::Call<'_>) {
            let mut slots = 0..;
            $reference(call.write(0), $($crate::signature!(@read call, slots, $read),)* *self);
        }
        fn fast(&self, call: &mut $crate::Call<'_>) {
            let mut slots = 0..;
            $fast(call.write(0), $($crate::signature!(@read call, slots, $read),)* *self, &mut call.launch);
        }
    };
    ($name:literal: $($arguments:tt)*) => {
        const NAME: &'static str = $name;
        fn arguments(&self) -> $crate::Names {
            $crate::names!($($arguments)*)
        }
    };
}

/// A kernel as the table has it: the functions of a [`Kernel`] on parameter words.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "each field is what the trait calls so")]
pub struct KernelEntry {
    pub name: &'static str,
    pub tasks: &'static [&'static str],
    pub is_product: bool,
    pub type_name: fn() -> &'static str,
    pub task: fn(&TaskView<'_>) -> Result<Vec<u64>, String>,
    pub swaps: fn(&TaskView<'_>) -> bool,
    pub arguments: fn(&[u64]) -> Names,
    pub reference: fn(&mut Call<'_>),
    pub fast: fn(&mut Call<'_>),
    pub work: fn(&[u64], &Sizes<'_>) -> Work,
    pub blocks: fn(&[u64], usize) -> i64,
    pub workspace: fn(&[u64], usize) -> Workspace,
    pub anywhere: fn(&[u64]) -> Vec<u64>,
    pub ids: fn(&[u64]) -> usize,
    pub sizes: fn(&[u64]) -> Option<String>,
}

impl KernelEntry {
    /// The entry of a kernel.
    pub const fn of<K: Kernel>() -> KernelEntry {
        KernelEntry {
            name: K::NAME,
            tasks: K::TASKS,
            is_product: K::IS_PRODUCT,
            type_name: type_name::<K>,
            task: |task| Ok(K::from_task(task)?.to_words()),
            swaps: K::swaps,
            arguments: |words| K::from_words(words).arguments(),
            reference: |call| K::from_words(call.params).reference(call),
            fast: |call| K::from_words(call.params).fast(call),
            work: |words, sizes| K::from_words(words).work(sizes),
            blocks: |words, cores| K::from_words(words).blocks(cores),
            workspace: |words, blocks| K::from_words(words).workspace(blocks),
            anywhere: |words| K::from_words(words).anywhere().to_words(),
            ids: |words| K::from_words(words).ids(),
            sizes: |words| K::from_words(words).sizes(),
        }
    }

    /// Decides how it is launched with these parameters on a device of `cores` cores.
    pub fn plan(&self, params: &[u64], cores: usize) -> Result<Planned, LaunchError> {
        let blocks = (self.blocks)(params, cores);
        match u32::try_from(blocks) {
            Ok(count @ 1..=MAX_BLOCKS) => {
                let workspace = (self.workspace)(params, count as usize);
                let bytes = Layout::new(self.name, workspace, cores.min(count as usize))?.total();
                Ok(Planned { blocks: count, bytes })
            }
            _ => Err(LaunchError::Blocks { kernel: self.name, blocks }),
        }
    }

    /// The launch on so many blocks of `team` that was planned for these parameters, working in `memory`.
    pub fn launch<'a>(
        &self,
        params: &[u64],
        blocks: u32,
        memory: &'a mut [u8],
        team: &'a Team,
    ) -> Result<Launch<'a>, LaunchError> {
        let blocks = blocks as usize;
        Launch::new(self.name, blocks, (self.workspace)(params, blocks), memory, team)
    }
}

/// What a kernel does that takes its time.
///
/// Bytes are those of a cache that keeps everything while a kernel runs and nothing longer: each operand is read once, each
/// result written once, and what is added to is both. Operations are those of the formula: an addition, a product, a
/// comparison or a function of one element is one, whatever it takes inside. Random numbers, integers and what happens once
/// in a row do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// The bytes of a kernel's slices, from which its work follows.
pub struct Sizes<'a> {
    /// Of those that are only read.
    pub reads: &'a [u64],
    /// Of those that are written.
    pub writes: &'a [u64],
}

impl Sizes<'_> {
    /// Floats in a slice that is only read.
    pub fn operand(&self, slot: usize) -> f64 {
        self.reads.get(slot).copied().unwrap_or(0) as f64 / 4.0
    }

    /// Floats in a slice that is written.
    pub fn result(&self, slot: usize) -> f64 {
        self.writes.get(slot).copied().unwrap_or(0) as f64 / 4.0
    }

    /// Bytes of all slices that are written.
    pub fn written(&self) -> f64 {
        self.writes.iter().map(|&bytes| bytes as f64).sum()
    }

    /// So many operations; with `accumulate`, the first result is read and added to as well.
    pub fn work(&self, flops: f64, accumulate: bool) -> Work {
        let read = self.reads.iter().map(|&bytes| bytes as f64).sum::<f64>();
        let added = if accumulate { self.result(0) } else { 0.0 };
        Work { flops: flops + added, bytes: read + self.written() + 4.0 * added }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params;

    params! {
        /// A kernel that asks for so many blocks, or for one on each core.
        struct Asking {
            /// How many; zero for one on each core.
            pub blocks: i64,
        }
    }

    impl Kernel for Asking {
        const NAME: &'static str = "k";
        fn from_task(_: &TaskView<'_>) -> Result<Self, String> {
            Err("it is for tests".into())
        }
        fn arguments(&self) -> Names {
            Names::default()
        }
        fn reference(&self, _: &mut Call<'_>) {}
        fn blocks(&self, cores: usize) -> i64 {
            if self.blocks == 0 { cores as i64 } else { self.blocks }
        }
        fn workspace(&self, blocks: usize) -> Workspace {
            Workspace::of::<f32>(3, 10 * blocks)
        }
    }

    fn plan(blocks: i64, cores: usize) -> Result<Planned, LaunchError> {
        KernelEntry::of::<Asking>().plan(&Asking { blocks }.to_words(), cores)
    }

    #[test]
    fn the_workspace_has_a_slice_for_every_block_that_runs_at_once() {
        assert_eq!(plan(0, 4).map(|planned| planned.blocks), Ok(4));
        // Rounded up to 128 bytes: 3 floats in common, then 60 floats for each of 4 of the 6 blocks.
        assert_eq!(plan(6, 4), Ok(Planned { blocks: 6, bytes: 128 + 4 * 256 }));
        assert_eq!(plan(6, 8), Ok(Planned { blocks: 6, bytes: 128 + 6 * 256 }), "more cores, more slices");
    }

    #[test]
    fn no_blocks_and_too_many_name_the_kernel() {
        for blocks in [-1, i64::MIN, 65_537, 1 << 32, i64::MAX] {
            assert_eq!(plan(blocks, 4), Err(LaunchError::Blocks { kernel: "k", blocks }));
        }
        assert_eq!(plan(0, 0), Err(LaunchError::Blocks { kernel: "k", blocks: 0 }));
        let text = LaunchError::Blocks { kernel: "k", blocks: -1 }.to_string();
        assert_eq!(text, "kernel `k` asks for -1 blocks; it can have 1 to 65536");
    }
}
