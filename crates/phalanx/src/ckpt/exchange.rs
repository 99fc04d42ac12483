//! Weights between checkpoints and Hugging Face directories.
//!
//! Only weights and sizes of the model go across: a directory has no optimizer state, so that of an imported checkpoint
//! is zero, as before the first step.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::{Checkpoint, Checkpoints, CkptError, Disk, MANIFEST, RunState, TensorKind, Writer, write};
use crate::hf::SaveDtype;
use crate::models::ModelConfig;
use crate::train::TrainConfig;
use crate::{Error, Trainer, hf};

/// The configuration of the run that wrote a checkpoint.
pub fn config_of(checkpoint: &Checkpoint) -> Result<TrainConfig, CkptError> {
    parsed(checkpoint, &checkpoint.manifest().run.config)
}

/// Part of a manifest as a value of the library.
fn parsed<T: serde::de::DeserializeOwned>(checkpoint: &Checkpoint, value: &Value) -> Result<T, CkptError> {
    serde_json::from_value(value.clone()).map_err(|error| CkptError::Manifest {
        path: checkpoint.path().join(MANIFEST),
        source: Box::new(error.into()),
    })
}

/// Writes the weights of a checkpoint whose files are whole as a Hugging Face directory, as its run would but for the type
/// of elements.
pub fn export(checkpoint: &Checkpoint, dir: &Path, dtype: SaveDtype) -> Result<(), Error> {
    checkpoint.verify()?;
    let model: ModelConfig = parsed(checkpoint, &checkpoint.manifest().run.model)?;
    let config = config_of(checkpoint)?.save_dtype(dtype);
    let params = checkpoint.manifest().tensors.iter().filter(|tensor| tensor.kind == TensorKind::Param);
    let weight = |name: &String| {
        let bytes = checkpoint.tensor(name)?;
        let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Ok((name.clone(), values))
    };
    let weights = params.map(|tensor| weight(&tensor.name)).collect::<Result<_, CkptError>>()?;
    config.write_weights(dir, &model, weights)
}

/// Writes the checkpoint of a run that begins with the weights of a Hugging Face directory, below `checkpoints`. The
/// model's sizes come from the directory, everything else from `config`; the configuration that resumes the run.
pub fn import(dir: &Path, checkpoints: &Path, config: TrainConfig) -> Result<TrainConfig, Error> {
    let model = hf::read_config(dir)?.with_dropout(config.dropout);
    let config = config.with_model(&model).checkpoint(Some(checkpoints.into()));
    begin(dir, checkpoints, &model, &config)?;
    Ok(config)
}

/// Commits the state before the first step.
fn begin(dir: &Path, checkpoints: &Path, model: &ModelConfig, config: &TrainConfig) -> Result<(), Error> {
    if let Some(&step) = Checkpoints::open(checkpoints).list()?.last() {
        return Err(CkptError::Present { dir: checkpoints.into(), step }.into());
    }
    let weights = hf::read_weights(dir, &hf::tensors(model)?)?;
    let graph = config.training_graph(model)?;
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
