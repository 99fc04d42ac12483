//! Flows: which operation releases which, frozen for an executor that counts.
//!
//! A flow is a graph of operations on processors. A [`Builder`] collects operations and edges; [`Builder::finish`]
//! checks them and lays them out as *segments*: a segment is a chain of operations of one processor that runs without
//! asking the scheduler in between, and has one *gate*, which counts the arrivals it still needs. A flow is data only:
//! bodies are numbers of a table of functions that the runtime is given with it.
//!
//! One execution of a flow is a *run*. Edges order operations within a run. Carried edges order an operation of a run
//! before one of the next run; only flows of mode [`Mode::Pipelined`] have them, and only there do runs overlap that
//! touch the same memory. If nothing else does, a carried edge orders every segment after itself in the run before.
//!
//! What holds for every flow:
//!
//! 1. edges, inputs and posts name operations that are there; edges without the carried ones have no circle;
//! 2. an operation lies on exactly one segment; segments of a processor are contiguous, processors ascending, those of
//!    no processor (*direct* ones, executed by the thread that releases them) last;
//! 3. a segment's first operation has the arrivals that `fan_in` and `carried_in` count; every other operation of it
//!    has exactly one predecessor, the operation before it, which is non-blocking;
//! 4. an operation's successors are early if its effects are complete when its body returns or if they wait for its
//!    token, else late (see [`TaskKind`]);
//! 5. interpolations lie within the run's arguments and within the arguments of their operation.

mod builder;
mod compile;
mod error;
mod program;

pub use builder::{Builder, Direct, Nested, Task};
pub use error::FlowError;
pub use program::of_program;

pub use phalanx_program::Id;
use phalanx_program::id;

id! {
    /// An operation of a flow, in the order of definition.
    pub struct OpId("op");
    /// An event outside that operations wait for.
    pub struct InputId("in");
    /// An event outside that operations trigger.
    pub struct PostId("post");
}

/// What the body of a task promises. Of two kinds that fit, the one declared first is always safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    /// Nothing: it may wait, launch, and complete after its body has returned.
    #[default]
    Blocking,
    /// It never waits and never launches; its effects are complete when the body returns.
    NonBlocking,
    /// It does not block, and leaves work behind on its device; complete when the device has done all it was given.
    Async,
    /// It does not block, its effects are all enqueued on the lane it is given, and it looks at nothing that lanes
    /// write; complete when its token fires. A successor of the same kind on the same device need not wait for that: it
    /// orders itself behind the token.
    StreamOrdered,
    /// It starts something outside the process, at once and on whatever thread released it; complete when its
    /// completion is reported, on any thread. Such an operation has no processor: see [`Builder::remote`].
    Remote,
}

/// How runs of one flow relate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// There is one run.
    OneShot,
    /// One at a time, in the order of launch.
    #[default]
    Ordered,
    /// One at a time, in the order in which their start events trigger.
    Serializable,
    /// Any number at a time.
    Concurrent,
    /// In the order of launch, each operation after itself and its carried predecessors in the run before; at most
    /// `depth` runs at a time.
    Pipelined {
        /// Runs at a time.
        depth: u32,
    },
}

/// The processor of direct segments.
pub const DIRECT: u32 = u32::MAX;

/// An operation as it is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number in the order of definition.
    pub op: OpId,
    /// Position of its body in the table of functions.
    pub function: u32,
    /// What the body promises.
    pub kind: TaskKind,
    /// Its part of [`Flow::args`].
    pub args: (u32, u32),
}

/// A chain of operations behind one gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its steps: `first..end`.
    pub first: u32,
    /// The step after the last.
    pub end: u32,
    /// Where it runs, or [`DIRECT`].
    pub processor: u32,
    /// Arrivals in each run: predecessors in the run, inputs, and the start of the run if there is no predecessor.
    pub fan_in: u32,
    /// Arrivals from the run before.
    pub carried_in: u32,
    /// Whether every arrival, the start and inputs left aside, comes from its own processor. Then no other thread
    /// counts at the same time once the run has started.
    pub private: bool,
}

/// Lists of numbers, one for each position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    pub(crate) starts: Vec<u32>,
    pub(crate) items: Vec<u32>,
}

impl Lists {
    /// The list at `position`.
    #[inline]
    pub fn of(&self, position: u32) -> &[u32] {
        let place = position as usize;
        &self.items[self.starts[place] as usize..self.starts[place + 1] as usize]
    }

    /// All items of all lists.
    pub fn items(&self) -> &[u32] {
        &self.items
    }
}

/// What an interpolation does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Replaces the operation's.
    Overwrite,
    /// Adds 64-bit integers to the operation's, wrapping.
    AddI64,
    /// Adds 64-bit floats to the operation's.
    AddF64,
}

/// Bytes of the run's arguments that go into an operation's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpolation {
    /// Where in the run's arguments.
    pub from: u32,
    /// How many bytes.
    pub bytes: u32,
    /// Where in [`Flow::args`].
    pub to: u32,
    /// How.
    pub patch: Patch,
}

/// A checked, frozen graph of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) processors: u32,
    pub(crate) labels: Vec<String>,
    /// By operation: position in `labels`.
    pub(crate) label_of: Vec<u32>,
    pub(crate) steps: Vec<Step>,
    pub(crate) segments: Vec<Segment>,
    /// By processor, and one more for the direct ones: its segments.
    pub(crate) owned: Vec<(u32, u32)>,
    pub(crate) roots: Vec<u32>,
    pub(crate) early: Lists,
    pub(crate) late: Lists,
    pub(crate) carried: Lists,
    pub(crate) tokens: Lists,
    pub(crate) posts: Lists,
    pub(crate) n_posts: u32,
    pub(crate) inputs: Lists,
    pub(crate) args: Vec<u8>,
    pub(crate) run_args: u32,
    pub(crate) interpolations: Vec<Interpolation>,
    pub(crate) functions: u32,
}

impl Flow {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its runs relate.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many processors it is for.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// The name of an operation.
    pub fn label(&self, op: OpId) -> &str {
        &self.labels[self.label_of[op.index()] as usize]
    }

    /// All operations as they are laid out.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// All segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segments of a processor, of the direct ones if `processor` is [`Flow::processors`].
    pub fn owned(&self, processor: u32) -> std::ops::Range<u32> {
        let (first, end) = self.owned[processor as usize];
        first..end
    }

    /// Segments that the start of a run arrives at.
    pub fn roots(&self) -> &[u32] {
        &self.roots
    }

    /// By step: segments to arrive at when its body has returned.
    pub fn early(&self) -> &Lists {
        &self.early
    }

    /// By step: segments to arrive at when its effects are complete.
    pub fn late(&self) -> &Lists {
        &self.late
    }

    /// By step: segments of the next run to arrive at when its effects are complete.
    pub fn carried(&self) -> &Lists {
        &self.carried
    }

    /// By step: steps whose tokens its lane waits for.
    pub fn tokens(&self) -> &Lists {
        &self.tokens
    }

    /// By step: posts that it is part of; a post happens when all of its steps are complete.
    pub fn posts(&self) -> &Lists {
        &self.posts
    }

    /// How many posts there are.
    pub fn n_posts(&self) -> u32 {
        self.n_posts
    }

    /// How many inputs there are.
    pub fn n_inputs(&self) -> u32 {
        self.inputs.starts.len().saturating_sub(1) as u32
    }

    /// By input: segments to arrive at when it has happened.
    pub fn inputs(&self) -> &Lists {
        &self.inputs
    }

    /// The arguments of all operations as a run finds them.
    pub fn args(&self) -> &[u8] {
        &self.args
    }

    /// Bytes of a run's own arguments.
    pub fn run_args(&self) -> u32 {
        self.run_args
    }

    /// What of a run's arguments goes where.
    pub fn interpolations(&self) -> &[Interpolation] {
        &self.interpolations
    }

    /// One more than the largest function number.
    pub fn functions(&self) -> u32 {
        self.functions
    }
}
