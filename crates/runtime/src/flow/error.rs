//! What can be wrong with a flow.

use super::{InputId, Mode, OpId, Patch};

/// Why a flow is refused. Operations are printed with number and name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum FlowError {
    /// Edges that lead back to where they start.
    #[error(
        "operations wait for each other in a circle: {}; remove one of these edges or make it a carried one",
        ops.join(" -> ")
    )]
    Cycle { ops: Vec<String> },
    /// An operation that is not there.
    #[error("{what}: flow `{flow}` has {count} operations and no {op}; use ids that its own builder gave")]
    UnknownOp { what: String, op: OpId, flow: String, count: usize },
    /// An input that is not there.
    #[error("{what}: flow `{flow}` has {count} inputs and no {input}; use ids that its own builder gave")]
    UnknownInput { what: String, input: InputId, flow: String, count: usize },
    /// A processor that is not there.
    #[error(
        "{op} is on processor {processor}, but flow `{flow}` has {processors}, counted from 0; \
         place it on one of them or start the flow with more"
    )]
    Processor { op: String, processor: u32, flow: String, processors: u32 },
    /// A remote operation that has a processor.
    #[error(
        "{op} is Remote and on processor {processor}, where no thread waits for it; add it with `remote`"
    )]
    Remote { op: String, processor: u32 },
    /// An interpolation reads bytes that the run's arguments do not have.
    #[error(
        "interpolation into {op} reads bytes {first}..{end} of the run's arguments, which have {have}; \
         shift it or declare more with `run_args`"
    )]
    RunArgs { op: String, first: u64, end: u64, have: u32 },
    /// An interpolation writes bytes that the operation's arguments do not have.
    #[error(
        "interpolation into {op} writes bytes {first}..{end} of its arguments, which have {have}; \
         shift it or give the operation longer arguments"
    )]
    OpArgs { op: String, first: u64, end: u64, have: u32 },
    /// An interpolation adds something that is not one number.
    #[error("interpolation into {op} does {patch:?} with {bytes} bytes; name exactly the 8 of one number")]
    PatchSize { op: String, patch: Patch, bytes: u64 },
    /// A carried edge where runs do not overlap.
    #[error(
        "carried edge {from} -> {to} in a flow of mode {mode:?}; only Pipelined ones have them: set the mode or drop it"
    )]
    Carried { from: String, to: String, mode: Mode },
    /// A pipelined flow that could never start a run.
    #[error("flow `{flow}` is Pipelined with depth 0 and could never run; give it a depth of at least 1")]
    Depth { flow: String },
    /// A post that nothing is part of.
    #[error("{post} has 0 operations and nothing would trigger it; name at least 1")]
    EmptyPost { post: String },
    /// More things of a kind than can be numbered.
    #[error("flow `{flow}` has {found} {what}, at most {limit} can be numbered; split it into several flows")]
    TooMany { flow: String, what: &'static str, found: u64, limit: u64 },
}
