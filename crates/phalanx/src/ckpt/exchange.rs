//! Weights between checkpoints and Hugging Face directories.
//!
//! Only weights and sizes of the model go across: a directory has no optimizer state, so that of an imported checkpoint
//! is zero, as before the first step.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Checkpoint, Checkpoints, CkptError, Disk, MANIFEST, RunState, TensorKind, Writer, write};
use crate::models::{ModelConfig, SIZES};
use crate::train::{TrainConfig, differences, json};
use crate::{Error, Trainer, hf};

/// Why a Hugging Face directory becomes no checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportError {
    /// It cannot be read, compiled or written.
    #[error(transparent)]
    Failed(#[from] Error),
    /// A run could not be configured to have this model.
    #[error(
        "{}: `{what}` is {found}, but `train` would build {wanted}, whatever its flags: such a model cannot be trained",
        path.display()
    )]
    Model { path: PathBuf, what: String, found: String, wanted: String },
}

/// Writes the weights of a checkpoint whose files are whole as a Hugging Face directory; the configuration of its run.
pub fn export(checkpoint: &Checkpoint, dir: &Path) -> Result<TrainConfig, Error> {
    checkpoint.verify()?;
    let run = &checkpoint.manifest().run;
    let wrong = |error: serde_json::Error| CkptError::Manifest {
        path: checkpoint.path().join(MANIFEST),
        source: Box::new(error.into()),
    };
    let model: ModelConfig = serde_json::from_value(run.model.clone()).map_err(wrong)?;
    let config: TrainConfig = serde_json::from_value(run.config.clone()).map_err(wrong)?;
    let params = checkpoint.manifest().tensors.iter().filter(|tensor| tensor.kind == TensorKind::Param);
    let weight = |name: &String| {
        let bytes = checkpoint.tensor(name)?;
        let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Ok((name.clone(), values))
    };
    let weights = params.map(|tensor| weight(&tensor.name)).collect::<Result<_, CkptError>>()?;
    hf::write_model(dir, &model, &weights)?;
    Ok(config)
}

/// Writes the checkpoint of a run that begins with the weights of a Hugging Face directory, below `checkpoints`. The
/// model's sizes come from the directory, everything else from `config`; the configuration that resumes the run.
pub fn import(dir: &Path, checkpoints: &Path, config: TrainConfig) -> Result<TrainConfig, ImportError> {
    let model = hf::read_config(dir).map_err(Error::from)?.with_dropout(config.dropout);
    let config = TrainConfig { checkpoint: Some(checkpoints.into()), ..sized(dir, &model, config)? };
    begin(dir, checkpoints, &model, &config)?;
    Ok(config)
}

/// The configuration with the sizes of `model`: those that have a field, and the preset that has the others.
fn sized(dir: &Path, model: &ModelConfig, config: TrainConfig) -> Result<TrainConfig, ImportError> {
    let (layers, heads, kv_heads, width) = match model {
        ModelConfig::Gpt2(model) => (model.layers, model.heads, None, model.width),
        ModelConfig::Llama(model) => (model.layers, model.heads, Some(model.kv_heads), model.width),
        ModelConfig::Mlp(_) => return Ok(config),
    };
    let mut config = TrainConfig {
        model: model.family().into(),
        layers: Some(layers),
        heads: Some(heads),
        kv_heads,
        width: Some(width),
        context: model.context(),
        ..config
    };
    let mut problem = None;
    for size in iter::once(config.size.clone()).chain(SIZES.map(String::from)) {
        config.size = size;
        let built = config.build_model(model.vocab().unwrap_or_default()).map_err(Error::from)?;
        match differences("model", &json(model)?, &json(&built)?).into_iter().next() {
            None => return Ok(config),
            Some(difference) => problem = problem.or(Some(difference)),
        }
    }
    let (what, found, wanted) = problem.unwrap_or_default();
    Err(ImportError::Model { path: dir.into(), what, found, wanted })
}

/// Commits the state before the first step.
fn begin(dir: &Path, checkpoints: &Path, model: &ModelConfig, config: &TrainConfig) -> Result<(), Error> {
    if let Some(&step) = Checkpoints::open(checkpoints).list()?.last() {
        return Err(CkptError::Present { dir: checkpoints.into(), step }.into());
    }
    let weights = hf::read_weights(dir, &hf::tensors(model)?)?;
    let graph = model.training_graph(config.batch, config.context_of(model))?;
    let settings = config.settings(&graph)?;
    let mut trainer = Trainer::with_settings(&graph, &settings)?;
    for (name, values) in &weights {
        trainer.session_mut().feed(name, values)?;
    }
    let run = RunState::before_first_step(config, model, &settings, trainer.session())?;
    let writer = Writer::new(Arc::new(Disk), checkpoints, config.keep);
    writer.prepare().map_err(|error| CkptError::Directory(Box::new(error)))?;
    write(&writer, trainer.session_mut(), run)
}
