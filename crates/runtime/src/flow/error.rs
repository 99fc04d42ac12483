//! What can be wrong with a flow.

use super::{InputId, Mode, OpId, Patch};

/// Why a flow is refused. Operations are printed with number and name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Edges that lead back to where they start.
    #[error(
        "operations wait for each other in a circle: {}; remove one of these edges or make it a carried one",
        ops.join(" -> ")
    )]
    Cycle {
        /// The operations along the circle; the last is the first.
        ops: Vec<String>,
    },
    /// An operation that is not there.
    #[error("{what}: flow `{flow}` has {count} operations and no {op}; use ids that its own builder gave")]
    UnknownOp {
        /// The operation that names it.
        what: String,
        /// The operation.
        op: OpId,
        /// The flow.
        flow: String,
        /// How many operations the flow had at that point.
        count: usize,
    },
    /// An input that is not there.
    #[error("{what}: flow `{flow}` has {count} inputs and no {input}; use ids that its own builder gave")]
    UnknownInput {
        /// The operation that names it.
        what: String,
        /// The input.
        input: InputId,
        /// The flow.
        flow: String,
        /// How many inputs the flow had at that point.
        count: usize,
    },
    /// A processor that is not there.
    #[error(
        "{op} is on processor {processor}, but flow `{flow}` has {processors}, counted from 0; \
         place it on one of them or start the flow with more"
    )]
    Processor {
        /// The operation.
        op: String,
        /// Where it is.
        processor: u32,
        /// The flow.
        flow: String,
        /// How many processors the flow is for.
        processors: u32,
    },
    /// A remote operation that has a processor.
    #[error(
        "{op} is Remote and on processor {processor}, where no thread waits for it; add it with `remote`"
    )]
    Remote {
        /// The operation.
        op: String,
        /// Where it is.
        processor: u32,
    },
    /// An interpolation reads bytes that the run's arguments do not have.
    #[error(
        "interpolation into {op} reads bytes {first}..{end} of the run's arguments, which have {have}; \
         shift it or declare more with `run_args`"
    )]
    RunArgs {
        /// The operation.
        op: String,
        /// The first byte read.
        first: u64,
        /// The byte after the last one read.
        end: u64,
        /// How many bytes the run's arguments have.
        have: u32,
    },
    /// An interpolation writes bytes that the operation's arguments do not have.
    #[error(
        "interpolation into {op} writes bytes {first}..{end} of its arguments, which have {have}; \
         shift it or give the operation longer arguments"
    )]
    OpArgs {
        /// The operation.
        op: String,
        /// The first byte written.
        first: u64,
        /// The byte after the last one written.
        end: u64,
        /// How many bytes the operation's arguments have.
        have: u32,
    },
    /// An interpolation adds something that is not one number.
    #[error("interpolation into {op} does {patch:?} with {bytes} bytes; name exactly the 8 of one number")]
    PatchSize {
        /// The operation.
        op: String,
        /// What it does.
        patch: Patch,
        /// With how many bytes.
        bytes: u64,
    },
    /// A carried edge where runs do not overlap.
    #[error(
        "carried edge {from} -> {to} in a flow of mode {mode:?}; only Pipelined ones have them: set the mode or drop it"
    )]
    Carried {
        /// Its start.
        from: String,
        /// Its end.
        to: String,
        /// The flow's mode.
        mode: Mode,
    },
    /// A pipelined flow that could never start a run.
    #[error("flow `{flow}` is Pipelined with depth 0 and could never run; give it a depth of at least 1")]
    Depth {
        /// The flow.
        flow: String,
    },
    /// A post that nothing is part of.
    #[error("{post} has 0 operations and nothing would trigger it; name at least 1")]
    EmptyPost {
        /// The post.
        post: String,
    },
    /// More things of a kind than can be numbered.
    #[error("flow `{flow}` has {found} {what}, at most {limit} can be numbered; split it into several flows")]
    TooMany {
        /// The flow.
        flow: String,
        /// Which kind.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
}
