//! A few optimizer steps from given weights on a given batch, for comparison with another framework.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use phalanx::hf::Stored;
use phalanx::ir::Op;
use phalanx::ir::graph::Graph;
use phalanx::job::Job;
use phalanx::train::TrainConfig;
use phalanx::{Decays, Error, Feed, Goal, Optimizer, PortKind, Trainer, UpdateRule, hf};
use safetensors::tensor::View;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// What to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// A Hugging Face directory with the weights to start from.
    pub hf: PathBuf,
    /// A safetensors file with `tokens` and `targets`, i64 `[batch, time]`.
    pub batch: PathBuf,
    /// How many steps and where they run. The model, dropout, clipping and the schedule of the learning rate play no part.
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

/// Why steps cannot be compared.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ParityError {
    /// The system refuses.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// Not a safetensors file.
    #[error("{} is not a safetensors file: {source}; save `tokens` and `targets` as one", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    /// The result cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: SafeTensorError },
    /// A tensor is missing or has another type.
    #[error("{}: `{name}` {found}; i64 [batch, time] is needed, the same for tokens and targets", path.display())]
    Tensor { path: PathBuf, name: &'static str, found: String },
    /// The model cannot be read, compiled or run.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Runs the steps, alone or as a rank of a job. Dropout is off.
pub fn run(request: &Request, job: Option<&Job>) -> Result<Outcome, ParityError> {
    let batch = read_batch(&request.batch)?;
    Ok(train(request, &batch, job)?)
}

fn train(request: &Request, batch: &Batch, job: Option<&Job>) -> Result<Outcome, Error> {
    let model = hf::read_config(&request.hf)?.with_dropout(0.0);
    let stored = hf::tensors(&model)?;
    let weights = hf::read_weights(&request.hf, &stored)?;
    let config = &request.config;
    let graph = config.adapted(model.training_graph(batch.rows, batch.time)?)?;
    let TrainConfig { beta1, beta2, eps, steps, lr, .. } = *config;
    let rule = UpdateRule::Adam { beta1, beta2, eps, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(config.weight_decay).decays(Decays::All);
    let optimizer = optimizer.keep_gradients(true).frozen(config.frozen());
    let goal = Goal::Train(optimizer);
    let mut trainer = match job {
        None => Trainer::with_settings(&graph, &config.settings(&graph)?.goal(goal))?,
        Some(job) => {
            let (settings, _) = config.settings_in_job(job, &graph, &mut |_, _, _| ())?;
            job.trainer(&graph, &settings.goal(goal), &config.program_cache())?.0
        }
    };
    for (name, values) in &weights {
        trainer.session_mut().feed(name, values)?;
    }
    let stored = with_adapters(stored, &graph);
    let feeds = [("tokens", Feed::I64(&batch.tokens)), ("targets", Feed::I64(&batch.targets))];
    let (mut losses, mut tensors) = (Vec::new(), Vec::new());
    for step in 0..steps {
        losses.push(trainer.step(&feeds, lr)?.loss);
        if step == 0 {
            tensors = collect(&trainer, &stored, "grad", |name| format!("{name}.grad"))?;
        }
    }
    tensors.extend(collect(&trainer, &stored, "weight", str::to_string)?);
    tensors.push(("loss".to_string(), Tensor { shape: vec![losses.len()], data: losses.clone() }));
    let weights_hash = trainer.session().weights_hash()?;
    Ok(Outcome { losses, tensors, weights_hash })
}

/// All parameters of a graph: `stored` are those of the model, the others adapters.
fn with_adapters(mut stored: Vec<Stored>, graph: &Graph) -> Vec<Stored> {
    let known: BTreeSet<String> =
        stored.iter().flat_map(Stored::parts).map(|(name, _)| name.clone()).collect();
    for param in graph.leaves(|op| matches!(op, Op::Param(_))) {
        let name = &graph.values()[param].name;
        if !known.contains(name) {
            stored.push(Stored::whole(name.clone(), graph.ty(param).shape.clone()));
        }
    }
    stored
}

/// One tensor for each stored one, its parts read from the ports that `port` names. Parts without a port, gradients of
/// what is frozen, are left out, and the others of their tensor stand alone.
fn collect(
    trainer: &Trainer,
    stored: &[Stored],
    prefix: &str,
    port: impl Fn(&str) -> String,
) -> Result<Vec<(String, Tensor)>, Error> {
    let session = trainer.session();
    let ports: BTreeSet<&str> =
        [PortKind::Param, PortKind::Output].into_iter().flat_map(|kind| session.names(kind)).collect();
    let has_port = |name: &str| ports.contains(port(name).as_str());
    let there = |stored: &Stored| {
        let parts = stored.parts().iter().filter(|(name, _)| has_port(name));
        match parts.clone().count() == stored.parts().len() {
            true => vec![stored.clone()],
            false => parts.map(|(name, shape)| Stored::whole(name.clone(), shape.clone())).collect(),
        }
    };
    let join = |stored: &Stored| {
        let parts = stored.parts().iter().map(|(name, _)| session.read(&port(name)));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let data = stored.join(&parts.iter().map(|part| &**part).collect::<Vec<_>>()).into_owned();
        let shape = stored.shape().dims().to_vec();
        Ok((format!("{prefix}.{}", stored.name()), Tensor { shape, data }))
    };
    stored.iter().flat_map(there).map(|stored| join(&stored)).collect()
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
pub fn read_batch(path: &Path) -> Result<Batch, ParityError> {
    let bytes = std::fs::read(path).map_err(|source| ParityError::Read { path: path.into(), source })?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|source| ParityError::Format { path: path.into(), source })?;
    let (shape, tokens) = integers(&file, path, "tokens")?;
    let (other, targets) = integers(&file, path, "targets")?;
    match *shape {
        [rows, time] if shape == other => Ok(Batch { rows, time, tokens, targets }),
        _ => Err(ParityError::Tensor {
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
) -> Result<(Vec<usize>, Vec<i64>), ParityError> {
    let wrong = |found: String| ParityError::Tensor { path: path.into(), name, found };
    let tensor = file.tensor(name).map_err(|_| wrong("is missing".into()))?;
    if tensor.dtype() != Dtype::I64 {
        return Err(wrong(format!("is {:?} {:?}", tensor.dtype(), tensor.shape())));
    }
    let (chunks, _) = tensor.data().as_chunks();
    Ok((tensor.shape().to_vec(), chunks.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()))
}

/// Writes tensors as a safetensors file.
pub fn write(path: &Path, tensors: Vec<(String, Tensor)>) -> Result<(), ParityError> {
    safetensors::serialize_to_file(tensors, None, path)
        .map_err(|source| ParityError::Write { path: path.into(), source })
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
