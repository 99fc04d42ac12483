//! What can go wrong with a training beside its steps.

use std::io;
use std::path::PathBuf;

use crate::hf::Mismatch;

/// Why a model of one's own is not trained as it should be.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum TrainingError {
    /// Files have no description of a model of one's own.
    #[error(
        "`{name}` is a model of your own, which no config.json describes: write its weights with `export`"
    )]
    NotDescribed { name: String },
    /// Flags are wrong.
    #[error("{problem}")]
    Flags { problem: String },
    /// A name that is fed is no input.
    #[error("the model has no input `{name}`; {inputs}")]
    NoInput { name: String, inputs: String },
    /// A name that is read is no output.
    #[error("the model has no output `{name}`; {outputs}")]
    NoOutput { name: String, outputs: String },
    /// A model of graphs has no evaluation.
    #[error("the model `{name}` has a graph for training only: give it one for evaluation, too")]
    NoEvaluation { name: String },
    /// No input says how many samples a step has.
    #[error("no input of the model `{model}` has a dimension, so nothing says how many samples a step has")]
    NoBatch { model: String },
    /// A model of graphs has another batch than is wanted.
    #[error(
        "the batch of the graphs is {found}, not {wanted}: leave `batch` out, or make graphs for {wanted}"
    )]
    OtherBatch { found: usize, wanted: usize },
    /// A weight that is set is none of the model's.
    #[error("the model has no parameter or state `{name}`; {near}")]
    NoWeight { name: String, near: String },
    /// There was nothing to evaluate.
    #[error("an evaluation needs at least one batch, and there was none")]
    NoBatches,
    /// The training and the evaluation of a model have other parameters.
    #[error(
        "parameter `{name}` is {training} in training but {evaluation} in evaluation: make the same parameters whatever \
         `net.training()` says"
    )]
    OtherParameter { name: String, training: String, evaluation: String },
    /// Weights are not those of the model.
    #[error(
        "the weights in {} do not fit the model: {mismatch}; `load_matching` takes those that fit", path.display()
    )]
    Weights { path: PathBuf, mismatch: Box<Mismatch> },
    /// Nothing of a file fits the model.
    #[error("none of the {found} weights in {} fits the model: check their names and shapes", path.display())]
    NothingFits { path: PathBuf, found: usize },
    /// A file cannot be written.
    #[error("cannot write {}: {problem}", path.display())]
    Write { path: PathBuf, problem: String },
    /// A log is there already.
    #[error("{} is the log of another run: choose another --log-dir, or replace it with --overwrite", path.display())]
    OtherLog { path: PathBuf },
}

impl TrainingError {
    /// The error of a file that the system does not write.
    pub(super) fn write(path: impl Into<PathBuf>, error: &io::Error) -> TrainingError {
        TrainingError::Write { path: path.into(), problem: error.to_string() }
    }
}
