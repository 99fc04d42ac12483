//! Model directories of Hugging Face transformers: `config.json` and `model.safetensors`.
//!
//! [`read_config`] and [`read_weights`] take what transformers saved, [`write_model`] writes what it loads. Weights
//! keep their names and layouts on the way, but for tensors that are several parameters, such as GPT-2's `c_attn`, which
//! [`Stored`] cuts apart.

mod adapter;
mod config;
mod decoder;
mod dtype;
mod keys;
mod mismatch;
mod rope;
mod stored;
mod weights;
mod write;

pub use adapter::{merge_adapters, write_adapters};
pub use config::{ConfigError, activation, activation_name, activations, end_tokens, read_config};
pub use dtype::SaveDtype;
pub use mismatch::Mismatch;
pub use stored::{Stored, graph_tensors, tensors};
pub use weights::{WeightsError, read_weights, stored_tensors};
pub use write::{SaveOptions, WriteError, copy_file, probe_directory, replace_directory, write_model};

#[cfg(test)]
mod tests;
