//! A few optimizer steps from given weights on a given batch, for comparison with another framework.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use phalanx_mapping::Mapping;
use safetensors::tensor::View;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::hf::Stored;
use crate::job::Job;
use crate::pipeline::Settings;
use crate::train::TrainConfig;
use crate::{Decays, Error, Feed, Goal, Optimizer, Trainer, UpdateRule, hf};

/// What to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// A Hugging Face directory with the weights to start from.
    pub hf: PathBuf,
    /// A safetensors file with `tokens` and `targets`, i64 `[batch, time]`.
    pub batch: PathBuf,
    /// How many steps.
    pub steps: u64,
    /// The constant learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay of every parameter.
    pub weight_decay: f32,
    /// Where the steps run: plan, devices, cores, leaves, microbatches.
    pub config: TrainConfig,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The loss before each step.
    pub losses: Vec<f32>,
    /// Tensors to write: `loss`, `grad.<name>` of the first step, `weight.<name>` after the last. Names and shapes are
    /// those of the model directory.
    pub tensors: Vec<(String, Tensor)>,
    /// Fingerprint of the weights after the last step.
    pub weights_hash: u128,
}

/// A tensor of 32-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f32>,
}

/// Why a batch cannot be read or a result not written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not a safetensors file.
    #[error("{} is not a safetensors file: {source}; save `tokens` and `targets` as one", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SafeTensorError,
    },
    /// The result cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: SafeTensorError,
    },
    /// A tensor is missing or has another type.
    #[error("{}: `{name}` {found}; i64 [batch, time] is needed, the same for tokens and targets", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: &'static str,
        /// What is there.
        found: String,
    },
}

/// Runs the steps, alone or as a rank of a job. Dropout is off.
pub fn run(request: &Request, job: Option<&Job>) -> Result<Outcome, Error> {
    let model = hf::read_config(&request.hf)?.with_dropout(0.0);
    let stored = hf::tensors(&model)?;
    let weights = hf::read_weights(&request.hf, &stored)?;
    let batch = read_batch(&request.batch)?;
    let graph = model.training_graph(batch.rows, batch.time)?;
    let Request { beta1, beta2, eps, .. } = *request;
    let optimizer = Optimizer {
        rule: UpdateRule::Adam { beta1, beta2, eps, decoupled: true },
        decay: request.weight_decay,
        decays: Decays::All,
        clip: None,
        keep_gradients: true,
    };
    let (config, goal) = (&request.config, Goal::Train(optimizer));
    let mut trainer = match job {
        None => Trainer::with_settings(&graph, &Settings { goal, ..config.settings(&graph)? })?,
        Some(job) => {
            let (settings, _) = job.settings(config, &graph, &mut |_, _, _| ())?;
            job.trainer(&graph, &Settings { goal, ..settings })?.0
        }
    };
    for (name, values) in &weights {
        trainer.session_mut().feed(name, values)?;
    }
    let feeds = [("tokens", Feed::I64(&batch.tokens)), ("targets", Feed::I64(&batch.targets))];
    let mut losses = Vec::new();
    let mut tensors = Vec::new();
    for step in 0..request.steps {
        losses.push(trainer.step(&feeds, request.lr)?.loss);
        if step == 0 {
            tensors = collect(&trainer, &stored, "grad", |name| format!("{name}.grad"))?;
        }
    }
    tensors.extend(collect(&trainer, &stored, "weight", str::to_string)?);
    tensors.push(("loss".to_string(), Tensor { shape: vec![losses.len()], data: losses.clone() }));
    let weights_hash = trainer.session().weights_hash()?;
    Ok(Outcome { losses, tensors, weights_hash })
}

/// One tensor for each stored one, its parts read from the ports that `port` names.
fn collect(
    trainer: &Trainer,
    stored: &[Stored],
    prefix: &str,
    port: impl Fn(&str) -> String,
) -> Result<Vec<(String, Tensor)>, Error> {
    let session = trainer.session();
    let join = |stored: &Stored| {
        let parts = stored.parts().iter().map(|(name, _)| session.read(&port(name)));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let data = stored.join(&parts.iter().map(|part| &**part).collect::<Vec<_>>()).into_owned();
        let shape = stored.shape().dims().to_vec();
        Ok((format!("{prefix}.{}", stored.name()), Tensor { shape, data }))
    };
    stored.iter().map(join).collect()
}

/// Sequences of tokens, each with the tokens that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// How many sequences.
    pub rows: usize,
    /// Tokens in a sequence.
    pub time: usize,
    /// Tokens of all sequences, one after the other.
    pub tokens: Vec<i64>,
    /// For each token the one to predict.
    pub targets: Vec<i64>,
}

/// Reads `tokens` and `targets` of a safetensors file.
pub fn read_batch(path: &Path) -> Result<Batch, FileError> {
    let bytes = Mapping::open(path).map_err(|source| FileError::Read { path: path.into(), source })?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|source| FileError::Format { path: path.into(), source })?;
    let (shape, tokens) = integers(&file, path, "tokens")?;
    let (other, targets) = integers(&file, path, "targets")?;
    match *shape {
        [rows, time] if shape == other => Ok(Batch { rows, time, tokens, targets }),
        _ => Err(FileError::Tensor {
            path: path.into(),
            name: "targets",
            found: format!("is {other:?}, tokens {shape:?}"),
        }),
    }
}

fn integers(
    file: &SafeTensors<'_>,
    path: &Path,
    name: &'static str,
) -> Result<(Vec<usize>, Vec<i64>), FileError> {
    let wrong = |found: String| FileError::Tensor { path: path.into(), name, found };
    let tensor = file.tensor(name).map_err(|_| wrong("is missing".into()))?;
    if tensor.dtype() != Dtype::I64 {
        return Err(wrong(format!("is {:?} {:?}", tensor.dtype(), tensor.shape())));
    }
    let (chunks, _) = tensor.data().as_chunks();
    Ok((tensor.shape().to_vec(), chunks.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()))
}

/// Writes tensors as a safetensors file.
pub fn write(path: &Path, tensors: Vec<(String, Tensor)>) -> Result<(), FileError> {
    safetensors::serialize_to_file(tensors, None, path)
        .map_err(|source| FileError::Write { path: path.into(), source })
}

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(&self.data))
    }
    fn data_len(&self) -> usize {
        size_of_val(self.data.as_slice())
    }
}
