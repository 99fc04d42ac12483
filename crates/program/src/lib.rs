//! The frozen step: flat arrays that a runtime replays without looking anything up.
//!
//! A program is a list of operations for each device, its *lane*. A lane runs its operations in order in its own arena;
//! lanes meet in [`Wait`]s, and bytes change arenas only in operations of the kernel [`RECEIVE`]. A device may have further
//! lanes for these, which work in the arena of the first, their *home*: what they receive arrives while the home lane goes
//! on. The host takes part through arguments and results (see [`Record`]), so it touches no arena during a run.
//!
//! Runs may overlap: each lane runs in order, all of one run before the next, and an operation that must not start
//! before one of another lane is complete in the run before has a *carried* wait for it. [`Builder::finish`] finds these.
//!
//! A program for devices of several processes, the *ranks* of a job, is cut into *parts* ([`Program::slice`]), each a
//! program of its own: what a part needs of other ranks arrives in messages, with [`SEND`] on one side and [`ARRIVE`] on
//! the other.
//!
//! A [`Builder`] collects operations, [`Builder::finish`] checks them and freezes them into a [`Program`]. A program
//! names kernels but knows none; it knows bytes and element types but no operators. What holds for every program is
//! listed in `verify`. Its text form is also how it is stored and sent.
#![forbid(unsafe_code)]

mod builder;
mod carry;
pub mod certificate;
mod cover;
mod host;
mod message;
mod piece;
mod placement;
pub mod rect;
mod slice;
mod text;
mod verify;

pub use builder::{Builder, Draft};
pub use certificate::{Certificate, CertificateError};
pub use host::{Field, HostTransfer, Record, feeds, fetches};
pub use message::MessageEnd;
pub use phalanx_ir::{Id, MAX_RANK, id};
pub use phalanx_strided::{ByteRuns, Nest, Place};
pub use piece::{MAX_PARTS, Piece, traffic};
pub use placement::Placement;
pub use slice::{IN_LANES, OUT_LANES, SEGMENT, landing_bytes};
pub use verify::ProgramError;

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use phalanx_ir::{IdVec, TensorType};

/// Arenas and slices start on multiples of this many bytes.
pub const ALIGNMENT: u64 = 64;

/// The most slices an ordinary operation reads, and the most it writes.
pub const MAX_SLICES: usize = 16;

/// The kernel that moves bytes between lanes.
pub const RECEIVE: &str = "receive";

/// The kernel that writes a lane's tiles of inputs from the arguments of the run.
pub const FEED: &str = "feed";

/// The kernel that reads a lane's tiles of outputs into the results of the run.
pub const FETCH: &str = "fetch";

/// The kernel that sends bytes of a lane to other ranks.
pub const SEND: &str = "send";

/// The kernel that takes bytes of other ranks into a lane's arena.
pub const ARRIVE: &str = "arrive";

/// The kernels that the runtime executes itself. They have any number of slices. [`SEND`] and [`ARRIVE`] have
/// [`MessageEnd`]s, the others [`Piece`]s.
pub const TRANSFERS: [&str; 5] = [RECEIVE, FEED, FETCH, SEND, ARRIVE];

/// The most bytes of an output that is part of the results.
pub const MAX_RESULT: u64 = 64 << 10;

/// A range of a lane's arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Whose arena: that of a home lane.
    pub lane: u32,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Slice {
    /// The byte after the last one.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// An operation of another lane that must be complete: in this run, or in the run before if the wait is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Which lane.
    pub lane: u32,
    /// The operation's place in that lane.
    pub position: u32,
}

/// How many blocks an operation runs on: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks(NonZeroU32);

impl Blocks {
    /// An operation that is not cut.
    pub const ONE: Blocks = Blocks(NonZeroU32::MIN);
    /// The most.
    pub const MOST: u32 = 1 << 16;

    /// So many, if that makes sense.
    pub fn new(blocks: u32) -> Option<Blocks> {
        NonZeroU32::new(blocks).filter(|blocks| blocks.get() <= Blocks::MOST).map(Blocks)
    }

    /// How many.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks::ONE
    }
}

id! {
    /// What an operation of the kernels [`RECEIVE`], [`FEED`] and [`FETCH`] moves.
    pub struct MovementId("m");
    /// The message ends of an operation of the kernels [`SEND`] and [`ARRIVE`].
    pub struct EndsId("e");
}

/// What an operation does, beside its slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The parameters of a kernel; see [`Program::params`].
    Params(Range<u32>),
    /// Pieces; see [`Program::pieces`].
    Movement(MovementId),
    /// Ends of messages; see [`Program::messages`].
    Messages(EndsId),
}

/// One kernel execution: ranges and entries of the program's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Position in [`Program::kernels`].
    pub kernel: u32,
    /// Where it comes from, for people; see [`Program::label`].
    pub label: u32,
    /// How many blocks it runs on.
    pub blocks: Blocks,
    /// What it does.
    pub payload: Payload,
    /// Slices only read.
    pub reads: Range<u32>,
    /// Slices written.
    pub writes: Range<u32>,
    /// Working memory; may be empty.
    pub scratch: Slice,
    /// What must be complete before, in this run; see [`Program::waits`].
    pub waits: Range<u32>,
    /// What must be complete before, in the run before; see [`Program::carried`].
    pub carried: Range<u32>,
}

/// Operations of one device that run one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The device's number.
    pub device: u32,
    /// The lane in whose arena it works: itself, or for a lane of transfers the device's first one.
    pub home: u32,
    /// Bytes of its arena: the device's peak memory; none for a lane beside another one.
    pub arena: u64,
    /// Its part of [`Program::operations`].
    pub operations: Range<u32>,
}

/// What the host does with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Writes it before each run.
    Input,
    /// A weight of the model, trained or set by the program itself: sets it before the first run, reads it after any.
    Param,
    /// A constant: sets it before the first run.
    Table,
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
    /// Element type and extents of the whole tensor.
    pub ty: TensorType,
    /// Where it lies. The same rectangle may occur on several lanes.
    pub tiles: Vec<PortTile>,
}

/// A rectangle of a tensor in one lane's arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTile {
    /// The coordinates of its first element in the tensor.
    pub origin: Vec<usize>,
    /// Element type and extents of the rectangle.
    pub ty: TensorType,
    /// Where it lies.
    pub slice: Slice,
}

/// Which part of which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOf {
    pub rank: u32,
    pub ranks: u32,
    /// The fingerprint of the whole.
    pub whole: u128,
}

/// A whole step, or one rank's part of it, frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) part: Option<PartOf>,
    pub(crate) kernels: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) params: Vec<u64>,
    pub(crate) movements: IdVec<MovementId, Vec<Piece>>,
    pub(crate) ends: IdVec<EndsId, Vec<MessageEnd>>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) carried: Vec<Wait>,
    pub(crate) ports: Vec<Port>,
}

impl Program {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which rank's part this is and how many there are, if it is not a whole program.
    pub fn part(&self) -> Option<(u32, u32)> {
        self.part.map(|part| (part.rank, part.ranks))
    }

    /// The fingerprint of the program that this one is a part of.
    pub fn whole(&self) -> Option<u128> {
        self.part.map(|part| part.whole)
    }

    /// Bytes of all arenas together: the peak memory of a run.
    pub fn arena(&self) -> u64 {
        self.lanes.iter().fold(0, |sum, lane| sum.saturating_add(lane.arena))
    }

    /// Names of the kernels used, in order of first use.
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// The lanes.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The lanes that have an arena, one for each device.
    pub fn homes(&self) -> impl Iterator<Item = &Lane> {
        (0..).zip(&self.lanes).filter(|(number, lane)| lane.home == *number).map(|(_, lane)| lane)
    }

    /// All operations: lane after lane, those of a lane in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations of a lane, in order.
    pub fn operations_of(&self, lane: &Lane) -> &[Operation] {
        &self.operations[as_usize(&lane.operations)]
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

    /// An operation, for people.
    pub fn describe(&self, operation: &Operation) -> String {
        match self.label(operation) {
            "" => self.kernel(operation).to_string(),
            label => format!("{} of {label}", self.kernel(operation)),
        }
    }

    /// The parameters of an operation's kernel; none if the runtime executes it itself.
    pub fn params(&self, operation: &Operation) -> &[u64] {
        match &operation.payload {
            Payload::Params(range) => &self.params[as_usize(range)],
            _ => &[],
        }
    }

    /// The pieces of an operation that receives, feeds or fetches; none of any other.
    pub fn pieces(&self, operation: &Operation) -> &[Piece] {
        match operation.payload {
            Payload::Movement(movement) => &self.movements[movement],
            _ => &[],
        }
    }

    /// The message ends of an operation that sends or takes in what arrives; none of any other.
    pub fn messages(&self, operation: &Operation) -> &[MessageEnd] {
        match operation.payload {
            Payload::Messages(ends) => &self.ends[ends],
            _ => &[],
        }
    }

    /// The position in [`Program::operations`] of an operation that is there.
    pub fn index_of(&self, at: Wait) -> usize {
        self.lanes[at.lane as usize].operations.start as usize + at.position as usize
    }

    /// What an operation waits for in other lanes.
    pub fn waits(&self, operation: &Operation) -> &[Wait] {
        &self.waits[as_usize(&operation.waits)]
    }

    /// What an operation waits for in other lanes of the run before. In the first run there is nothing to wait for.
    pub fn carried(&self, operation: &Operation) -> &[Wait] {
        &self.carried[as_usize(&operation.carried)]
    }

    /// What the host hands to a run.
    pub fn arguments(&self) -> Record {
        Record::of_arguments(&self.ports)
    }

    /// What the host gets back from a run.
    pub fn results(&self) -> Record {
        Record::of_results(&self.ports)
    }

    /// The slices in `range`.
    pub fn slices(&self, range: &Range<u32>) -> &[Slice] {
        &self.slices[as_usize(range)]
    }

    /// The same program with other labels: that of an operation is made from its position in [`Program::operations`].
    pub fn relabelled(mut self, label: impl Fn(usize) -> String) -> Program {
        self.labels = (0..self.operations.len()).map(label).collect();
        (0..).zip(&mut self.operations).for_each(|(number, operation)| operation.label = number);
        self
    }

    /// A fingerprint of everything in the program: equal programs have equal ones.
    pub fn hash(&self) -> u128 {
        let mut hasher = Fingerprint(xxhash_rust::xxh3::Xxh3::new());
        fmt::Write::write_fmt(&mut hasher, format_args!("{self}")).expect("hashing takes any text");
        hasher.0.digest128()
    }
}

/// Hashes text while it is written: that of a large program would not fit in memory.
struct Fingerprint(xxhash_rust::xxh3::Xxh3);

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

fn as_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}
