//! Sizes by name. From `small` on the language models have the sizes of published checkpoints.

use phalanx_ir::{Activation, RopeScaling};

use crate::zoo::ZOO;
use crate::{DecoderFamily, Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig, RoutedExperts};

/// The families a preset can be of.
pub const FAMILIES: [&str; 11] =
    ["gpt2", "llama", "mlp", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gemma", "gpt_neox", "mixtral"];

/// The sizes a family can have, smallest first; some have only the first ones.
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
    /// The family has no model of this size.
    #[error("model `{family}` has no size `{size}`; use one of {}", known.join(", "))]
    FamilySize { family: &'static str, size: String, known: &'static [&'static str] },
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
            name => match name.parse() {
                Ok(family) => decoder(family, rung).map(ModelConfig::Llama),
                Err(()) => Err(PresetError::Family { family: family.to_string() }),
            },
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
        family: DecoderFamily::Llama,
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
        rotary_dim: None,
        window: None,
        activation: Activation::Silu,
        attention_bias: false,
        mlp_bias: false,
        parallel: false,
        experts: None,
        padding: None,
    }
}

/// Blocks, heads and heads of keys and values, features of a head, width, hidden features, context, tokens, tied head.
type Published = (usize, [usize; 3], usize, usize, usize, usize, bool);

/// `nano` and `tiny` are those of Llama with what the family has; the others are published.
fn decoder(family: DecoderFamily, rung: usize) -> Result<LlamaConfig, PresetError> {
    let config = of_family(family, llama(rung.min(1)));
    let published: &[Published] = match family {
        DecoderFamily::Llama => return Ok(llama(rung)),
        // 7B v0.3 and Nemo 12B.
        DecoderFamily::Mistral => &[
            (32, [32, 8, 128], 4096, 14336, 32768, 32768, false),
            (40, [32, 8, 128], 5120, 14336, 131_072, 131_072, false),
        ],
        // 0.5B, 1.5B, 7B and 72B.
        DecoderFamily::Qwen2 => &[
            (24, [14, 2, 64], 896, 4864, 32768, 151_936, true),
            (28, [12, 2, 128], 1536, 8960, 32768, 151_936, true),
            (28, [28, 4, 128], 3584, 18944, 32768, 152_064, false),
            (80, [64, 8, 128], 8192, 29568, 32768, 152_064, false),
        ],
        // 0.6B, 1.7B, 4B and 8B.
        DecoderFamily::Qwen3 => &[
            (28, [16, 8, 128], 1024, 3072, 40960, 151_936, true),
            (28, [16, 8, 128], 2048, 6144, 40960, 151_936, true),
            (36, [32, 8, 128], 2560, 9728, 40960, 151_936, true),
            (36, [32, 8, 128], 4096, 12288, 40960, 151_936, false),
        ],
        // Mini and medium.
        DecoderFamily::Phi3 => &[
            (32, [32, 32, 96], 3072, 8192, 4096, 32064, false),
            (40, [40, 10, 128], 5120, 17920, 4096, 32064, false),
        ],
        // 1B, 7B, 13B and 32B.
        DecoderFamily::Olmo2 => &[
            (16, [16, 16, 128], 2048, 8192, 4096, 100_352, false),
            (32, [32, 32, 128], 4096, 11008, 4096, 100_352, false),
            (40, [40, 40, 128], 5120, 13824, 4096, 100_352, false),
            (64, [40, 8, 128], 5120, 27648, 4096, 100_352, false),
        ],
        // 2B and 7B.
        DecoderFamily::Gemma => &[
            (18, [8, 1, 256], 2048, 16384, 8192, 256_000, true),
            (28, [16, 16, 256], 3072, 24576, 8192, 256_000, true),
        ],
        // Pythia 160M, 410M, 1.4B and 6.9B.
        DecoderFamily::GptNeox => &[
            (12, [12, 12, 64], 768, 3072, 2048, 50304, false),
            (24, [16, 16, 64], 1024, 4096, 2048, 50304, false),
            (24, [16, 16, 128], 2048, 8192, 2048, 50304, false),
            (32, [32, 32, 128], 4096, 16384, 2048, 50432, false),
        ],
        // 8x7B and 8x22B.
        DecoderFamily::Mixtral => &[
            (32, [32, 8, 128], 4096, 14336, 32768, 32000, false),
            (56, [48, 8, 128], 6144, 16384, 65536, 32768, false),
        ],
    };
    let Some(sizes) = rung.checked_sub(2) else { return Ok(config) };
    let Some(&(layers, [heads, kv_heads, head_dim], width, hidden, context, vocab, tied)) =
        published.get(sizes)
    else {
        let (size, known) = (SIZES[rung].to_string(), &SIZES[..2 + published.len()]);
        return Err(PresetError::FamilySize { family: family.name(), size, known });
    };
    let sized =
        LlamaConfig { layers, heads, kv_heads, head_dim, width, hidden, context, vocab, tied, ..config };
    Ok(LlamaConfig {
        rope_base: published_base(family),
        rotary_dim: sized.rotary_dim.map(|_| head_dim / 4),
        experts: sized.experts.map(|_| RoutedExperts { count: 8, per_token: 2, balance: 0.0 }),
        ..sized
    })
}

/// The base of the rotary frequencies of published models.
fn published_base(family: DecoderFamily) -> f32 {
    match family {
        DecoderFamily::Mistral | DecoderFamily::Qwen2 | DecoderFamily::Qwen3 | DecoderFamily::Mixtral => 1e6,
        DecoderFamily::Olmo2 => 5e5,
        _ => 1e4,
    }
}

/// A small Llama with what another family has.
fn of_family(family: DecoderFamily, config: LlamaConfig) -> LlamaConfig {
    let config = LlamaConfig { family, ..config };
    let (heads, width, head_dim) = (config.heads, config.width, config.head_dim);
    match family {
        DecoderFamily::Qwen2 => LlamaConfig { attention_bias: true, eps: 1e-6, ..config },
        DecoderFamily::Qwen3 => LlamaConfig { eps: 1e-6, ..config },
        DecoderFamily::Olmo2 => LlamaConfig { eps: 1e-6, ..config },
        DecoderFamily::Gemma => {
            LlamaConfig { kv_heads: 1, eps: 1e-6, activation: Activation::GeluTanh, ..config }
        }
        DecoderFamily::GptNeox => LlamaConfig {
            kv_heads: heads,
            hidden: 4 * width,
            tied: false,
            rotary_dim: Some(head_dim / 4),
            activation: Activation::GeluErf,
            attention_bias: true,
            mlp_bias: true,
            parallel: true,
            ..config
        },
        DecoderFamily::Mixtral => {
            let experts = Some(RoutedExperts { count: 4, per_token: 2, balance: 0.0 });
            LlamaConfig { hidden: width, experts, ..config }
        }
        _ => config,
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
