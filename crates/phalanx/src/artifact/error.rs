//! Why an artifact is refused.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::pipeline::CompileError;
use crate::seal::{JsonError, SealError};

use super::manifest::FORMAT;

/// Why an artifact cannot be loaded, written or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ArtifactError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The directory cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Something else is where it should go.
    #[error("{} is there already: choose another directory with --out, or remove it", path.display())]
    Present { path: PathBuf },
    /// What is wrong with the artifact in a directory.
    #[error("{}: {source}", path.display())]
    In { path: PathBuf, source: Box<ArtifactError> },
    /// The manifest is not as it was written.
    #[error("manifest.json: {0}")]
    Seal(#[from] SealError),
    /// The manifest is not JSON of this form.
    #[error("manifest.json: {0}")]
    Json(#[from] JsonError),
    /// Another version of the format.
    #[error(
        "it is in format {found}, and this build reads format {FORMAT}: compile it again with this build, or run it with \
         phalanx {phalanx}, which wrote it"
    )]
    Format { found: u64, phalanx: String },
    /// Another version of Phalanx, whose kernels may mean something else.
    #[error(
        "phalanx {found} compiled it, and this is phalanx {own}: compile it again with this build, or run it with {found}"
    )]
    Version { found: String, own: &'static str },
    /// A file is missing.
    #[error("{name} is missing: copy the whole directory")]
    Missing { name: String },
    /// A file that is none of an artifact's.
    #[error("manifest.json lists `{name}`, which is no file of an artifact; there are {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    /// A file has other bytes.
    #[error("{name} has {found}, the manifest says {wanted}: it is damaged or was edited; copy it anew")]
    Bytes { name: String, found: String, wanted: String },
    /// A file is not of its form.
    #[error("{name}: {problem}")]
    Text { name: String, problem: String },
    /// A field disagrees with the files, or with what this build makes of them.
    #[error("`{field}` is {found}, but it must be {wanted}")]
    Field { field: String, found: String, wanted: String },
    /// This build lacks a kernel.
    #[error(
        "{step}.program needs the kernel `{kernel}`, which this build of phalanx {own} does not have: run it with the build \
         that compiled it, or add the kernel before"
    )]
    Kernel { step: String, kernel: String, own: &'static str },
    /// A kernel would be launched in another way.
    #[error(
        "{step}.program runs {operation} on {found}, but the kernel of this build wants {wanted} on {cores} cores: compile \
         it again with this build"
    )]
    Launch { step: String, operation: String, found: String, wanted: String, cores: usize },
    /// It holds a step and no run.
    #[error("it holds a compiled step, but no run to train: make one with `phalanx compile`")]
    NoRun,
    /// A step is missing.
    #[error("it has no step `{step}`, only {}: compile it again", found.join(", "))]
    NoStep { step: &'static str, found: Vec<String> },
    /// The job has other ranks.
    #[error(
        "it is compiled for {found} rank{}, and this job has {ranks}: start at most {found}, or compile it with --ranks {ranks}",
        if *found == 1 { "" } else { "s" }
    )]
    Ranks { found: u32, ranks: u32 },
    /// Ranks were asked for that have no device.
    #[error("--ranks is {ranks}, but the plan has {devices} devices: give from 1 to {devices}")]
    NoDevices { ranks: u32, devices: usize },
    /// What a run cannot change about an artifact.
    #[error("`{option}` is {found} in the artifact, and {wanted} was asked for: compile it again with that")]
    Compiled { option: &'static str, found: String, wanted: String },
    /// A model that cannot be compiled for later.
    #[error("`model` is {model}: `phalanx compile` takes models of text, such as gpt2 and llama")]
    Model { model: String },
    /// The model does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

impl ArtifactError {
    pub(super) fn text(name: &str, problem: &impl Display) -> ArtifactError {
        ArtifactError::Text { name: name.into(), problem: problem.to_string() }
    }
}
