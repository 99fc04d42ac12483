//! The frozen step: flat arrays that a runtime replays without looking anything up.
//!
//! A [`Builder`] collects operations, [`Builder::finish`] checks them and freezes them into a [`Program`]. A program
//! names kernels but knows none; it knows bytes and element types but no operators. What holds for every program is
//! listed in `verify`. Its text form is also how it is stored and sent.
#![forbid(unsafe_code)]

mod builder;
mod text;
mod verify;

pub use builder::Builder;
pub use verify::ProgramError;

use std::ops::Range;

use phalanx_ir::TensorType;

/// Arenas and slices start on multiples of this many bytes.
pub const ALIGNMENT: u64 = 64;

/// The most slices an operation reads, and the most it writes.
pub const MAX_SLICES: usize = 16;

/// A range of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Slice {
    /// Whether the two share a byte.
    pub fn overlaps(self, other: Slice) -> bool {
        let end = |slice: Slice| slice.offset.saturating_add(slice.bytes);
        self.offset < end(other) && other.offset < end(self)
    }
}

/// One kernel execution: ranges of the program's flat arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Position in [`Program::kernels`].
    pub kernel: u32,
    /// Where it comes from, for people; see [`Program::label`].
    pub label: u32,
    /// Parameter words.
    pub words: Range<u32>,
    /// Slices only read.
    pub reads: Range<u32>,
    /// Slices written.
    pub writes: Range<u32>,
    /// Working memory; may be empty.
    pub scratch: Slice,
}

/// What the host does with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Writes it before each run.
    Input,
    /// A trained tensor: sets it before the first run, reads it after any.
    Param,
    /// Zero before the first run, kept across runs.
    State,
    /// Reads it after a run.
    Output,
}

/// A tensor that the host can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: PortKind,
    /// Element type and extents.
    pub ty: TensorType,
    /// Where it lies.
    pub slice: Slice,
}

/// A whole step, frozen. Operations run in order on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) arena: u64,
    pub(crate) kernels: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) words: Vec<u64>,
    pub(crate) ports: Vec<Port>,
}

impl Program {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the arena: the peak memory of a run.
    pub fn arena(&self) -> u64 {
        self.arena
    }

    /// Names of the kernels used, in order of first use.
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// All operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Everything the host can reach.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The name of an operation's kernel.
    pub fn kernel(&self, operation: &Operation) -> &str {
        &self.kernels[operation.kernel as usize]
    }

    /// Where an operation comes from.
    pub fn label(&self, operation: &Operation) -> &str {
        &self.labels[operation.label as usize]
    }

    /// An operation's parameter words.
    pub fn words(&self, operation: &Operation) -> &[u64] {
        &self.words[as_usize(&operation.words)]
    }

    /// The slices in `range`.
    pub fn slices(&self, range: &Range<u32>) -> &[Slice] {
        &self.slices[as_usize(range)]
    }

    /// A fingerprint of everything in the program: equal programs have equal ones.
    pub fn hash(&self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(self.to_string().as_bytes())
    }
}

fn as_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}
