//! Sizes by name. From `small` on the language models have the sizes of published checkpoints.

use phalanx_ir::{Activation, RopeScaling};

use crate::zoo::ZOO;
use crate::{Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};

/// The families a preset can be of.
pub const FAMILIES: [&str; 3] = ["gpt2", "llama", "mlp"];

/// The sizes every family has, smallest first.
pub const SIZES: [&str; 6] = ["nano", "tiny", "small", "medium", "large", "xl"];

/// Why there is no such preset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum PresetError {
    /// No family has this name.
    #[error("model `{family}` is unknown; use one of {}", names().join(", "))]
    Family { family: String },
    /// No size has this name.
    #[error("size `{size}` is unknown; use one of {}", SIZES.join(", "))]
    Size { size: String },
}

/// The names of all families and models of the zoo.
fn names() -> Vec<&'static str> {
    FAMILIES.into_iter().chain(ZOO.iter().map(|entry| entry.name)).collect()
}

impl ModelConfig {
    /// The model of a family and size: `gpt2 small` is the published GPT-2 with 124 million parameters.
    pub fn preset(family: &str, size: &str) -> Result<ModelConfig, PresetError> {
        let Some(rung) = SIZES.iter().position(|&known| known == size) else {
            return Err(PresetError::Size { size: size.to_string() });
        };
        match family {
            "gpt2" => Ok(ModelConfig::Gpt2(gpt2(rung))),
            "llama" => Ok(ModelConfig::Llama(llama(rung))),
            "mlp" => Ok(ModelConfig::Mlp(mlp(rung))),
            _ => Err(PresetError::Family { family: family.to_string() }),
        }
    }
}

/// `nano` and `tiny` are for byte tokens; the others are GPT-2, GPT-2 medium, large and XL.
fn gpt2(rung: usize) -> Gpt2Config {
    let (layers, heads, width, context, vocab) = [
        (4, 4, 128, 128, 256),
        (6, 6, 384, 256, 256),
        (12, 12, 768, 1024, 50257),
        (24, 16, 1024, 1024, 50257),
        (36, 20, 1280, 1024, 50257),
        (48, 25, 1600, 1024, 50257),
    ][rung];
    Gpt2Config {
        layers,
        heads,
        width,
        hidden: 4 * width,
        vocab,
        context,
        dropout: 0.0,
        tied: true,
        eps: 1e-5,
        activation: Activation::GeluTanh,
    }
}

/// `nano` and `tiny` are for byte tokens; the others are SmolLM 135M and 360M, TinyLlama 1.1B and Llama 2 7B.
fn llama(rung: usize) -> LlamaConfig {
    let (layers, [heads, kv_heads], width, hidden, context, vocab) = [
        (4, [4, 2], 128, 352, 128, 256),
        (6, [6, 2], 384, 1024, 256, 256),
        (30, [9, 3], 576, 1536, 2048, 49152),
        (32, [15, 5], 960, 2560, 2048, 49152),
        (22, [32, 4], 2048, 5632, 2048, 32000),
        (32, [32, 32], 4096, 11008, 4096, 32000),
    ][rung];
    LlamaConfig {
        dropout: 0.0,
        layers,
        heads,
        kv_heads,
        head_dim: width / heads,
        width,
        hidden,
        vocab,
        context,
        tied: rung < 4,
        eps: 1e-5,
        rope_base: 10_000.0,
        rope_scaling: RopeScaling::None,
        activation: Activation::Silu,
        attention_bias: false,
        mlp_bias: false,
    }
}

/// Classifiers of 28 x 28 images into ten classes, ever deeper and wider.
fn mlp(rung: usize) -> MlpConfig {
    let (depth, width) = [(1, 128), (2, 256), (3, 1024), (4, 2048), (4, 4096), (6, 8192)][rung];
    MlpConfig {
        inputs: 784,
        hidden: vec![width; depth],
        outputs: 10,
        activation: Activation::Relu,
        loss: MlpLoss::CrossEntropy,
    }
}
