//! Model directories of Hugging Face transformers: `config.json` and `model.safetensors`.
//!
//! [`read_config`] and [`read_weights`] take what transformers saved, [`write_model`] writes what it loads. Weights
//! keep their names and layouts on the way, so there is nothing to convert but the number format.

mod config;
mod keys;
mod mismatch;
mod weights;
mod write;

pub use config::{ConfigError, read_config};
pub use mismatch::Mismatch;
pub use weights::{WeightsError, read_weights};
pub use write::{WriteError, write_model};

use phalanx_ir::{Op, Shape};
use phalanx_models::{ModelConfig, ModelError};

/// Every trained tensor of a model with its shape, in the order of the graph: what to ask [`read_weights`] for.
pub fn parameters(model: &ModelConfig) -> Result<Vec<(String, Shape)>, ModelError> {
    let graph = model.logits_graph(1, 1)?;
    let params = graph.leaves(|op| matches!(op, Op::Param(_)));
    Ok(params.map(|value| (graph.values()[value].name.clone(), graph.ty(value).shape.clone())).collect())
}

#[cfg(test)]
mod tests;
