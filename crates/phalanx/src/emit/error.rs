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
    /// A movement lacks something: a bug.
    #[error("layer `{layer}`: what is moved does not cover {buffer}")]
    Uncovered {
        /// The layer.
        layer: String,
        /// The buffer to be written.
        buffer: String,
    },
    /// A dropout mask cannot be found for a tile.
    #[error(
        "layer `{layer}`: the tile {tile} cuts the blocks of the batch, or more than 4 dimensions; cut fewer \
         dimensions or use fewer microbatches"
    )]
    Dropout {
        /// The layer.
        layer: String,
        /// The tile's type.
        tile: String,
    },
    /// A task of the open set has no kernel, or not one that takes it.
    #[error("layer `{layer}`: kernel `{kernel}` cannot be called: {reason}")]
    Call {
        /// The layer.
        layer: String,
        /// The kernel.
        kernel: &'static str,
        /// Why not.
        reason: String,
    },
    /// A task has more or fewer buffers than its operator names: a bug.
    #[error("layer `{layer}`: `{operator}` {does} {}, but its task has {found} buffers", list(expected))]
    Operands {
        /// The layer.
        layer: String,
        /// The operator.
        operator: &'static str,
        /// `reads` or `writes`.
        does: &'static str,
        /// The operator's names.
        expected: Box<[&'static str]>,
        /// How many buffers there are.
        found: usize,
    },
    /// What a task has is not, name for name, what its kernel takes: a bug.
    #[error(
        "layer `{layer}`: kernel `{kernel}` {does} {}, but the task has {}: {mismatch}",
        list(expected),
        list(found)
    )]
    Binding {
        /// The layer.
        layer: String,
        /// The kernel.
        kernel: &'static str,
        /// `reads` or `writes`.
        does: &'static str,
        /// What is wrong.
        mismatch: Mismatch,
        /// The names of the kernel's slots.
        expected: Box<[&'static str]>,
        /// The kernel's names of the task's operands.
        found: Box<[&'static str]>,
    },
    /// A kernel cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program breaks a rule: a bug.
    #[error("{}", crate::pipeline::first(.0))]
    Unsound(Vec<ProgramError>),
}

/// Why names and slots do not go together one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A name stands on one side more than once.
    #[error("`{0}` is there twice")]
    Twice(&'static str),
    /// The task has what the kernel does not take.
    #[error("the kernel has no `{0}`")]
    Unknown(&'static str),
    /// The kernel takes what the task does not have.
    #[error("the task has no `{0}`")]
    Missing(&'static str),
}

/// Names for people.
fn list(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        names => format!("`{}`", names.join("`, `")),
    }
}
