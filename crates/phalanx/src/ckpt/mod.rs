//! Checkpoints: the whole state of a run after a step, in a directory of its own.
//!
//! ```text
//! DIR/step-00000020/manifest.json          what the run was, every tensor and where its parts are, checksums
//!                   rank-0000.safetensors  the parts that rank 0 has written, `tensor@origin` each
//! DIR/latest                               the name of the newest one, and the checksum of its manifest
//! ```
//!
//! A directory with a final name is committed: it was whole when it got the name ([`Writer`]). What is in it depends on
//! neither plan nor number of ranks: any run of the same model, on any devices, takes up from it with the same bits
//! ([`Checkpoint::restore`]). When checkpoints are taken, and by whom, is decided elsewhere (`train/checkpoints.rs`).

mod differences;
mod exchange;
mod faulty;
mod gather;
mod manifest;
mod read;
mod snapshot;
mod storage;
mod write;

pub use differences::{Difference, first_difference};
pub use exchange::{config_of, export, import};
pub use faulty::{Fault, FaultKind, Faulty};
pub use gather::distribute;
pub use manifest::{
    EvalLosses, FORMAT, FileEntry, Manifest, ManifestError, Part, RunState, TensorEntry, TensorKind,
};
pub use read::{Checkpoint, Checkpoints, CkptError};
pub use snapshot::{Snapshot, tensors};
pub use storage::{Disk, Storage};
pub use write::{SaveError, Writer, write};

/// The file that describes a checkpoint.
const MANIFEST: &str = "manifest.json";

/// The file that names the newest checkpoint, for people and scripts.
const LATEST: &str = "latest";

/// The name of the checkpoint after `step` steps.
pub fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step whose checkpoint has this name.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
