//! The model zoo: configurations that build [`Graph`]s for training and for inference.
//!
//! Parameter names and layouts are exactly those of Hugging Face transformers, so weights move in and out by name.
//! A tied output head is the embedding parameter used a second time, not a copy. Nothing here reads files or knows
//! about devices.
//!
//! ```
//! use phalanx_models::ModelConfig;
//! let model = ModelConfig::preset("gpt2", "nano")?;
//! let graph = model.training_graph(8, 64)?;
//! assert_eq!(graph.ty(graph.outputs()[0]).to_string(), "f32[]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod activation;
mod check;
mod experts;
mod family;
mod gpt2;
mod language;
mod llama;
mod lora;
mod mlp;
mod presets;
mod rope;
mod window;
pub mod zoo;

pub use check::ModelError;
pub use experts::RoutedExperts;
pub use family::DecoderFamily;
pub use gpt2::Gpt2Config;
pub use language::{EarlierTokens, LanguageModel};
pub use llama::LlamaConfig;
pub use lora::{AdaptedModule, Lora};
pub use mlp::{MlpConfig, MlpLoss};
pub use presets::{FAMILIES, PresetError, SIZES};
pub use window::SlidingWindow;

use phalanx_ir::graph::Graph;
use serde::{Deserialize, Serialize};
use zoo::ZooChoice;

/// The label that leaves a position out of the loss.
pub const IGNORE_LABEL: i64 = -100;

/// A pass over a few tokens of one text that goes on from the keys and values of earlier ones.
///
/// Inputs are `tokens` and `positions` (i64 `[1, time]`) and `past` (i64 `[1]`): how many tokens are earlier. Caches are
/// parameters, so that they stay in memory between runs. A run only reads them: its new rows are outputs, which are put
/// into the caches behind the earlier ones before the next run.
#[derive(Debug)]
pub struct CachedGraph {
    /// The graph.
    pub graph: Graph,
    /// Each output with new rows, `[1, time, heads, dim]`, and the cache that they belong to, `[1, capacity, heads, dim]`.
    pub caches: Vec<(String, String)>,
}

/// A model of the zoo with all its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum ModelConfig {
    /// A GPT-2 language model.
    Gpt2(Gpt2Config),
    /// A Llama language model, or one of the families that are described like it.
    Llama(LlamaConfig),
    /// A stack of linear layers.
    Mlp(MlpConfig),
    /// A model that brings its own data.
    Zoo(ZooChoice),
}

impl ModelConfig {
    /// The step to train: inputs `tokens` and `targets` (i64 `[batch, time]`), output the scalar `loss`.
    ///
    /// An MLP has inputs `x` and `y` instead and no time; see [`MlpConfig`]. A model of the zoo has inputs of its own.
    pub fn training_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        match self {
            ModelConfig::Gpt2(config) => config.training_graph(batch, time),
            ModelConfig::Llama(config) => config.training_graph(batch, time),
            ModelConfig::Mlp(config) => config.training_graph(batch),
            ModelConfig::Zoo(choice) => choice.training_graph(batch),
        }
    }

    /// The model alone, without dropout: input `tokens`, output `logits` `[batch, time, vocab]`.
    ///
    /// An MLP has input `x` instead, and `logits` is `[batch, outputs]`. A model of the zoo gives its loss.
    pub fn logits_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        match self {
            ModelConfig::Gpt2(config) => config.logits_graph(batch, time),
            ModelConfig::Llama(config) => config.logits_graph(batch, time),
            ModelConfig::Mlp(config) => config.logits_graph(batch),
            ModelConfig::Zoo(choice) => choice.evaluation_graph(batch),
        }
    }

    /// One more token after others whose keys and values are cached in `capacity` rows: output `logits` `[1, 1, vocab]`.
    /// None for an MLP.
    pub fn decode_graph(&self, capacity: usize) -> Result<Option<CachedGraph>, ModelError> {
        Ok(match self {
            ModelConfig::Gpt2(config) => Some(config.decode_graph(capacity)?),
            ModelConfig::Llama(config) => Some(config.decode_graph(capacity)?),
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => None,
        })
    }

    /// `time` more tokens, whose keys and values alone are computed. None for an MLP.
    pub fn prefill_graph(&self, time: usize, capacity: usize) -> Result<Option<CachedGraph>, ModelError> {
        Ok(match self {
            ModelConfig::Gpt2(config) => Some(config.prefill_graph(time, capacity)?),
            ModelConfig::Llama(config) => Some(config.prefill_graph(time, capacity)?),
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => None,
        })
    }

    /// The same model with another dropout; an MLP has none, and a model of the zoo keeps its own.
    pub fn with_dropout(mut self, rate: f32) -> Self {
        match &mut self {
            ModelConfig::Gpt2(config) => config.dropout = rate,
            ModelConfig::Llama(config) => config.dropout = rate,
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
        }
        self
    }

    /// The probability of dropping an element in training; 0 for an MLP.
    pub fn dropout(&self) -> f32 {
        match self {
            ModelConfig::Gpt2(config) => config.dropout,
            ModelConfig::Llama(config) => config.dropout,
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => 0.0,
        }
    }

    /// How many numbers are trained; a tied head is counted once.
    pub fn parameters(&self) -> u64 {
        match self {
            ModelConfig::Gpt2(config) => config.parameters(),
            ModelConfig::Llama(config) => config.parameters(),
            ModelConfig::Mlp(config) => config.parameters(),
            ModelConfig::Zoo(choice) => choice.parameters(),
        }
    }

    /// The family's name, as [`ModelConfig::preset`] takes it.
    pub fn family(&self) -> &'static str {
        match self {
            ModelConfig::Gpt2(_) => "gpt2",
            ModelConfig::Llama(config) => config.family.name(),
            ModelConfig::Mlp(_) => "mlp",
            ModelConfig::Zoo(choice) => choice.name(),
        }
    }

    /// The number of tokens a language model knows; none for an MLP.
    pub fn vocab(&self) -> Option<usize> {
        match self {
            ModelConfig::Gpt2(config) => Some(config.vocab),
            ModelConfig::Llama(config) => Some(config.vocab),
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => None,
        }
    }

    /// The most tokens a language model sees at once; none for an MLP.
    pub fn context(&self) -> Option<usize> {
        match self {
            ModelConfig::Gpt2(config) => Some(config.context),
            ModelConfig::Llama(config) => Some(config.context),
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => None,
        }
    }

    /// The same model for `vocab` tokens; an MLP is left as it is.
    pub fn with_vocab(mut self, vocab: usize) -> Self {
        match &mut self {
            ModelConfig::Gpt2(config) => config.vocab = vocab,
            ModelConfig::Llama(config) => config.vocab = vocab,
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
        }
        self
    }

    /// The same model seeing at most `context` tokens; an MLP is left as it is.
    pub fn with_context(mut self, context: usize) -> Self {
        match &mut self {
            ModelConfig::Gpt2(config) => config.context = context,
            ModelConfig::Llama(config) => config.context = context,
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
        }
        self
    }
}

#[cfg(test)]
mod tests;
