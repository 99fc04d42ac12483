//! The contract between a program and its kernels: argument slices, parameter words, blocks and their workspace.

use arrayvec::ArrayVec;
use phalanx_ir::tasks::TaskView;
use phalanx_ir::{MAX_NAMES, Names};

use crate::spmd::{Launch, LaunchError, Layout, MAX_BLOCKS, Planned, Team, Workspace};

/// The most slices of one kind (read or written) that a kernel takes.
pub const MAX_ARGS: usize = MAX_NAMES;

/// Everything a kernel is given for one execution.
///
/// The slices are disjoint wherever one of them is written, start on 64-byte boundaries and live in one arena.
pub struct Call<'a> {
    /// Sizes and settings, decoded by the kernel's own parameter struct.
    pub params: &'a [u64],
    /// Slices the kernel only reads, in the order of its names for them.
    pub reads: ArrayVec<&'a [u8], MAX_ARGS>,
    /// Slices the kernel writes, likewise; it may read them too where its file says so.
    pub writes: ArrayVec<&'a mut [u8], MAX_ARGS>,
    /// The blocks it runs on.
    pub launch: Launch<'a>,
}

/// The parameter words of a kernel for a task, or what is wrong with its attributes.
pub type FromTask = fn(&TaskView<'_>) -> Result<Vec<u64>, String>;

/// One operation the arena machine can execute.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// The name by which programs refer to it.
    pub name: &'static str,
    /// Its parameters for a task that is called like it; without, they come from typed task operators.
    pub task: Option<FromTask>,
    /// What it does that takes its time, if it states that itself.
    pub work: Option<fn(&Sizes<'_>) -> Work>,
    /// What it calls its arguments with these parameters, in the order in which it takes them.
    pub arguments: fn(params: &[u64]) -> Names,
    /// The tuned version.
    pub fast: fn(&mut Call<'_>),
    /// Plain loops; the meaning of the kernel.
    pub reference: fn(&mut Call<'_>),
    /// How many blocks it wants for these parameters on this many cores.
    pub blocks: fn(params: &[u64], cores: usize) -> i64,
    /// What it works in with these parameters on this many blocks.
    pub workspace: fn(params: &[u64], blocks: usize) -> Workspace,
}

/// What a kernel does that takes its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations: one for an addition, product, comparison or function of one element.
    pub flops: f64,
    /// Bytes read and written, each operand once.
    pub bytes: f64,
}

/// Parameters of a kernel and the bytes of its slices, from which its work follows.
pub struct Sizes<'a> {
    /// The parameter words.
    pub words: &'a [u64],
    /// Bytes of the slices that are only read.
    pub reads: &'a [u64],
    /// Bytes of the slices that are written.
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

    /// So many operations; with `accumulate`, the first result is read and added to as well.
    pub fn work(&self, flops: f64, accumulate: bool) -> Work {
        let all = |sizes: &[u64]| sizes.iter().map(|&bytes| bytes as f64).sum::<f64>();
        let added = if accumulate { self.result(0) } else { 0.0 };
        Work { flops: flops + added, bytes: all(self.reads) + all(self.writes) + 4.0 * added }
    }

    /// Whether word `at` is there and not zero: words may come from a file.
    pub fn is(&self, at: usize) -> bool {
        self.words.get(at).is_some_and(|&word| word != 0)
    }
}

/// For kernels that work in their arguments alone.
pub fn no_workspace(_params: &[u64], _blocks: usize) -> Workspace {
    Workspace::NONE
}

/// For kernels that have little to do.
pub fn one_block(_params: &[u64], _cores: usize) -> i64 {
    1
}

impl Kernel {
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

/// A value that travels in one parameter word.
pub trait Word: Sized {
    /// The word that stands for this value.
    fn to_word(self) -> u64;
    /// The value a word stands for.
    fn from_word(word: u64) -> Self;
}

impl Word for usize {
    fn to_word(self) -> u64 {
        self as u64
    }
    fn from_word(word: u64) -> Self {
        word as usize
    }
}

impl Word for u64 {
    fn to_word(self) -> u64 {
        self
    }
    fn from_word(word: u64) -> Self {
        word
    }
}

impl Word for i64 {
    fn to_word(self) -> u64 {
        self as u64
    }
    fn from_word(word: u64) -> Self {
        word as i64
    }
}

impl Word for bool {
    fn to_word(self) -> u64 {
        u64::from(self)
    }
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl Word for f32 {
    fn to_word(self) -> u64 {
        u64::from(self.to_bits())
    }
    fn from_word(word: u64) -> Self {
        f32::from_bits(word as u32)
    }
}

/// Declares a parameter struct whose fields are [`Word`]s, with its encoding to and from parameter words.
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $name {
            /// The parameter words of these settings.
            pub fn to_words(self) -> Vec<u64> {
                vec![$($crate::call::Word::to_word(self.$field)),*]
            }

            /// The settings these parameter words stand for.
            pub fn from_words(words: &[u64]) -> Self {
                let mut words = words.iter().copied();
                Self { $($field: $crate::call::Word::from_word(
                    words.next().expect("a kernel gets every parameter word it declares"))),* }
            }
        }
    };
}

/// Declares a fieldless enum that travels as a parameter word.
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            /// Every variant, in word order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
        }

        impl $crate::call::Word for $name {
            fn to_word(self) -> u64 {
                self as u64
            }
            fn from_word(word: u64) -> Self {
                Self::ALL[word as usize]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(blocks: fn(&[u64], usize) -> i64) -> Kernel {
        let workspace = |_: &[u64], blocks| Workspace::of::<f32>(3, 10 * blocks);
        let arguments = |_: &[u64]| Names::default();
        Kernel {
            name: "k",
            task: None,
            work: None,
            arguments,
            fast: |_| (),
            reference: |_| (),
            blocks,
            workspace,
        }
    }

    #[test]
    fn blocks_follow_from_constants_cores_and_parameters() {
        let blocks = |kernel: Kernel, cores| kernel.plan(&[6], cores).map(|planned| planned.blocks);
        assert_eq!(blocks(kernel(one_block), 4), Ok(1));
        assert_eq!(blocks(kernel(|_, cores| cores as i64), 4), Ok(4));
        assert_eq!(blocks(kernel(|params, _| params[0] as i64), 4), Ok(6));
    }

    #[test]
    fn the_workspace_has_a_slice_for_every_block_that_runs_at_once() {
        // Rounded up to 128 bytes: 3 floats in common, then 60 floats for each of 4 of the 6 blocks.
        let planned = kernel(|params, _| params[0] as i64).plan(&[6], 4);
        assert_eq!(planned, Ok(Planned { blocks: 6, bytes: 128 + 4 * 256 }));
        let planned = kernel(|params, _| params[0] as i64).plan(&[6], 8);
        assert_eq!(planned, Ok(Planned { blocks: 6, bytes: 128 + 6 * 256 }), "more cores, more slices");
    }

    #[test]
    fn no_blocks_and_too_many_name_the_kernel() {
        for blocks in [0, -1, i64::MIN, 65_537, 1 << 32, i64::MAX] {
            let error = kernel(|params, _| params[0] as i64).plan(&[blocks as u64], 4);
            assert_eq!(error, Err(LaunchError::Blocks { kernel: "k", blocks }));
        }
        let text = LaunchError::Blocks { kernel: "k", blocks: -1 }.to_string();
        assert_eq!(text, "kernel `k` asks for -1 blocks; it can have 1 to 65536");
    }
}
