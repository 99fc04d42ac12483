//! The one error type at the library's surface.

use phalanx_import::ImportError;
use phalanx_ir::graph::BuildError;
use phalanx_net::NetError;
use phalanx_nn::NnError;
use phalanx_runtime::{Fault, PortError};

use crate::artifact::ArtifactError;
use crate::bounds::BoundsError;
use crate::ckpt::{CkptError, SaveError};
use crate::data::DataError;
use crate::hf;
use crate::memory::size;
use crate::models::ModelError;
use crate::nn::TrainingError;
use crate::pipeline::CompileError;
use crate::train::{ConfigError, Origin};

/// Anything that can go wrong between a model and its trained weights.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// A layer does not fit its operands.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A model's configuration is impossible.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A function does not build a model.
    #[error(transparent)]
    Nn(#[from] NnError),
    /// A model written as a function is not trained as it should be.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// A graph file cannot be taken.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A model does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A tensor is unknown or has another size.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A model was read from its text alone.
    #[error(
        "table `{table}`, {ty}, has no elements: the text of the model has only their hash {hash}; give the bytes of that \
         hash to the graph (`Graph::provide_table`)"
    )]
    MissingTable { table: String, ty: String, hash: String },
    /// An operation failed while a step ran.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// A fed index is out of range.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// Training data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A Hugging Face configuration cannot be used.
    #[error(transparent)]
    HfConfig(#[from] hf::ConfigError),
    /// Hugging Face weights cannot be read.
    #[error(transparent)]
    HfWeights(#[from] hf::WeightsError),
    /// A Hugging Face directory cannot be written.
    #[error(transparent)]
    HfWrite(#[from] hf::WriteError),
    /// A training configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no plan for the model.
    #[error(transparent)]
    Plan(#[from] crate::choice::ChoiceError),
    /// Times of kernels cannot be read, kept or taken.
    #[error(transparent)]
    Costs(#[from] crate::costs::CostTableError),
    /// An artifact cannot be loaded, written or run.
    #[error(transparent)]
    Artifact(Box<ArtifactError>),
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Ckpt(Box<CkptError>),
    /// A checkpoint cannot be written.
    #[error("the checkpoint cannot be written: {0}")]
    Save(#[from] SaveError),
    /// Ranks cannot work together.
    #[error(transparent)]
    Job(#[from] crate::job::JobError),
    /// A job has one execution mode only.
    #[error("{ranks} ranks replay their parts: leave out --immediate and --stepped")]
    ExecutionMode { ranks: u32 },
    /// No text can be written.
    #[error(transparent)]
    Generate(#[from] crate::generate::GenerateError),
    /// A step does not fit this machine.
    #[error(
        "a step needs {} of memory but {} are free; use a smaller model, batch or context, or cut the batch into more parts",
        size(*need), size(*have)
    )]
    Memory { need: u64, have: u64 },
    /// A trainer was asked for with another goal.
    #[error("a trainer needs the goal Train(optimizer), not {goal}; use a Session for other goals")]
    NotTraining { goal: String },
    /// A step has an input without values.
    #[error("input `{input}`, {ty}, has never been fed: give it to the first step")]
    NotFed { input: String, ty: String },
    /// There is no step left.
    #[error("all {steps} steps are done; ask for more with --steps")]
    NoStep { steps: u64 },
    /// The loss is no longer a number.
    #[error(
        "the loss is {loss} at step {step}: the run has diverged, and {}; lower the learning rate or clip gradients, or see \
         with --debug nan where it begins",
        last_good(*step)
    )]
    Diverged { loss: f32, step: u64 },
    /// The same, or worse to come, and where it begins is known.
    #[error("step {step}, with a loss of {loss}, is not finite: {origin}; {}", last_good(*step))]
    NotFinite {
        loss: f32,
        step: u64,
        /// The first number that is not finite.
        origin: Box<Origin>,
    },
    /// Evaluating does not fit beside a step.
    #[error(
        "dev{device} needs {} to evaluate beside the {} of a step, but it may have {}: raise --memory or leave out \
         --eval-every",
        size(*need), size(*step), size(*budget)
    )]
    EvaluationMemory {
        device: u32,
        need: u64,
        /// Bytes of its arena for a step.
        step: u64,
        budget: u64,
    },
}

/// Which step was the last one before `step`.
fn last_good(step: u64) -> String {
    match step {
        0 | 1 => "no step before it was good".into(),
        _ => format!("step {} was the last good one", step - 1),
    }
}

impl From<ArtifactError> for Error {
    fn from(error: ArtifactError) -> Self {
        Error::Artifact(Box::new(error))
    }
}

impl From<CkptError> for Error {
    fn from(error: CkptError) -> Self {
        Error::Ckpt(Box::new(error))
    }
}

impl From<NetError> for Error {
    fn from(error: NetError) -> Self {
        Error::Job(error.into())
    }
}
