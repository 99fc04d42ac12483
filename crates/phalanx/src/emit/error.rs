//! Why there is no program of a scheduled task graph.

use phalanx_kernels::spmd::LaunchError;
use phalanx_program::{MAX_SLICES, ProgramError};

/// Why a task has no kernel.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// More operands than an operation can have.
    #[error(
        "layer `{layer}` joins or makes {found} tensors; at most {MAX_SLICES} are possible: do it in steps"
    )]
    TooMany {
        /// The layer.
        layer: String,
        /// How many operands it has.
        found: usize,
    },
    /// Some devices stand for others.
    #[error("some devices of `{name}` stand for others: such a graph can be simulated, not run")]
    Images {
        /// The graph.
        name: String,
    },
    /// A movement lacks something: a bug.
    #[error("layer `{layer}`: what is moved does not cover {buffer}")]
    Uncovered {
        /// The layer.
        layer: String,
        /// The buffer to be written.
        buffer: String,
    },
    /// A task has no kernel, or not one that takes it.
    #[error("layer `{layer}`: no kernel executes `{operator}`: {reason}")]
    Task {
        /// The layer.
        layer: String,
        /// The task's operator.
        operator: &'static str,
        /// Why not.
        reason: String,
    },
    /// A kernel cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program breaks a rule: a bug.
    #[error("{}", crate::pipeline::first(.0))]
    Unsound(Vec<ProgramError>),
}
