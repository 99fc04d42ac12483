//! What a checkpoint says about itself: `manifest.json`.
//!
//! Its second line is a checksum of all other bytes, so that a change of any of them is noticed. A manifest that has been
//! read keeps the rules of `manifest/check.rs`, so that no reader that follows it reads outside a file or allocates more than
//! the files hold. The files themselves are checked elsewhere.

mod check;

pub use check::ManifestError;

use phalanx_ir::{DType, MAX_RANK};
use phalanx_program::{Port, PortKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::DataIdentity;
use crate::models::ModelConfig;
use crate::pipeline::Settings;
use crate::seal::{self, SealError};
use crate::train::{TrainConfig, json};
use crate::{Error, LearningRate, Session};

/// The version of the format that is written.
pub const FORMAT: u32 = 2;

/// The version before it, which had no checksum of the manifest; it is still read.
const UNSEALED: u32 = 1;

/// A checkpoint's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// The run, after its last step.
    pub run: RunState,
    /// All tensors, weights first, in the order of the program.
    pub tensors: Vec<TensorEntry>,
    /// The files that hold them.
    pub files: Vec<FileEntry>,
}

/// Everything besides tensors that the next step depends on, and how the run came here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Steps done. The order of data and dropout are functions of seed and step, so it is their cursor, too.
    pub step: u64,
    /// Tokens seen so far.
    pub tokens: u64,
    /// The loss of the last step.
    pub loss: f32,
    /// The losses on held-back data, if there were evaluations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<EvalLosses>,
    /// What the run is trained on, if that is in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataIdentity>,
    /// Seed of initialization, data order and dropout.
    pub seed: u64,
    /// How the learning rate goes.
    pub learning_rate: LearningRate,
    /// The model's configuration.
    pub model: Value,
    /// The configuration of the run.
    pub config: Value,
    /// The plan, as text.
    pub plan: String,
    /// Fingerprint of the program, in hexadecimal.
    pub program: String,
}

/// What is known of the losses on held-back data after an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalLosses {
    /// The step after which the last evaluation was.
    pub step: u64,
    /// Its loss.
    pub loss: f32,
    /// The step after which the loss was lowest; the first one of several.
    pub best_step: u64,
    /// The lowest loss.
    pub best: f32,
    /// Evaluations after that one.
    pub since_best: u64,
}

impl EvalLosses {
    /// Between how many tokens, all alike, the last evaluation found the model undecided: e to the power of its loss.
    pub fn perplexity(&self) -> f64 {
        f64::from(self.loss).exp()
    }
}

impl RunState {
    /// The loss on held-back data with the weights of this step, if they were evaluated.
    pub fn eval_loss(&self) -> Option<f32> {
        self.evaluations.filter(|last| last.step == self.step).map(|last| last.loss)
    }

    /// The state of a run that has not done a step.
    pub fn before_first_step(
        config: &TrainConfig,
        model: &ModelConfig,
        settings: &Settings,
        session: &Session,
    ) -> Result<RunState, Error> {
        Ok(RunState {
            step: 0,
            tokens: 0,
            loss: 0.0,
            evaluations: None,
            data: None,
            seed: config.seed,
            learning_rate: config.learning_rate(),
            model: json(model)?,
            config: json(config)?,
            plan: settings.plan.to_text(),
            program: format!("{:032x}", session.program().hash()),
        })
    }
}

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A weight.
    Param,
    /// State of the optimizer.
    State,
}

/// A whole tensor and where its parts are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: TensorKind,
    /// Element type, as the compiler spells it.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// Rectangles that cover it.
    pub parts: Vec<Part>,
}

/// A rectangle of a tensor in a file, where it is called [`TensorEntry::key`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Position in [`Manifest::files`].
    pub file: usize,
    /// The coordinates of its first element.
    pub origin: Vec<usize>,
    /// Its extents.
    pub shape: Vec<usize>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The 128-bit XXH3 of all its bytes, in hexadecimal.
    pub xxh3: String,
}

impl Manifest {
    /// Reads the text of a manifest.
    pub fn parse(text: &[u8]) -> Result<Manifest, ManifestError> {
        /// The part that every version has.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let is_sealed = seal::check(text)?;
        let Version { format } = seal::read(text)?;
        match format {
            FORMAT if !is_sealed => return Err(SealError::Missing.into()),
            FORMAT | UNSEALED => {}
            found => return Err(ManifestError::Format { found }),
        }
        let manifest: Manifest = seal::read(text)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The text of the manifest, which [`Manifest::parse`] reads back.
    pub fn to_text(&self) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        Ok(seal::sealed(&serde_json::to_string_pretty(self)?).into_bytes())
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

impl TensorEntry {
    /// The tensor of a port, without parts; none if it is neither weight nor state.
    pub(super) fn of_port(port: &Port) -> Option<TensorEntry> {
        let kind = match port.kind {
            PortKind::Param => TensorKind::Param,
            PortKind::State => TensorKind::State,
            PortKind::Input | PortKind::Table | PortKind::Output => return None,
        };
        let (dtype, shape) = (port.ty.dtype.to_string(), port.ty.shape.dims().to_vec());
        Some(TensorEntry { name: port.name.clone(), kind, dtype, shape, parts: Vec::new() })
    }

    /// What the part at `origin` is called in its file.
    pub fn key(&self, origin: &[usize]) -> String {
        let origin: Vec<String> = origin.iter().map(usize::to_string).collect();
        format!("{}@{}", self.name, origin.join(","))
    }

    /// Kind, element type and extents, for people.
    pub fn describe(&self) -> String {
        let kind = match self.kind {
            TensorKind::Param => "param",
            TensorKind::State => "state",
        };
        format!("{kind} {}{:?}", self.dtype, self.shape)
    }

    /// Bytes of an element and of all of them, if there can be such a tensor.
    fn sizes(&self) -> Option<(usize, usize)> {
        let element = self.dtype.parse::<DType>().ok()?.bytes();
        let elements = self.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent))?;
        let known = self.shape.len() <= MAX_RANK;
        Some((element, elements.checked_mul(element).filter(|&bytes| known && bytes <= isize::MAX as usize)?))
    }

    /// Bytes of an element of a tensor that was checked.
    pub(super) fn element(&self) -> usize {
        self.sizes().map_or(0, |(element, _)| element)
    }

    /// All bytes of a tensor that was checked.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().map_or(0, |(_, bytes)| bytes)
    }
}

impl Part {
    /// Origin and extents of what the part has in common with a rectangle of the same rank.
    pub(super) fn common(&self, origin: &[usize], extents: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
        let both = (0..self.origin.len()).map(|dim| {
            let start = self.origin[dim].max(origin[dim]);
            let end = (self.origin[dim] + self.shape[dim]).min(origin[dim] + extents[dim]);
            (start < end).then(|| (start, end - start))
        });
        both.collect::<Option<Vec<_>>>().map(|dims| dims.into_iter().unzip())
    }
}
