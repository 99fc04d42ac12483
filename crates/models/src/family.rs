//! The families of decoders that [`crate::LlamaConfig`] describes, and what each of them fixes.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A family of decoders with rotary positions; its name is the `model_type` of transformers.
///
/// A family decides about names, norms and what cannot be configured; everything else is in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecoderFamily {
    /// Llama, without anything of the others.
    #[default]
    Llama,
    /// Attention may have a sliding window.
    Mistral,
    /// Queries, keys and values have biases; some layers may have a sliding window.
    Qwen2,
    /// Every head of queries and keys is normalized.
    Qwen3,
    /// Files hold queries, keys and values as one tensor, gates and what they gate as another.
    Phi3,
    /// Norms stand after the parts of a block; queries and keys are normalized over all heads.
    Olmo2,
    /// Norms multiply by 1 + weight, embeddings by the square root of the width.
    Gemma,
    /// Layer norms, biases, a feed-forward part without gate, both parts of a block beside each other.
    GptNeox,
    /// The feed-forward part of a token is a weighted sum of a few experts'.
    Mixtral,
}

/// What norms do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// Root mean square, times weight.
    Rms,
    /// Root mean square, times 1 + weight.
    RmsPlusOne,
    /// Mean and variance, times weight, plus bias.
    Layer,
}

/// What is normalized of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorm {
    /// Nothing.
    Absent,
    /// Every head by itself.
    EachHead,
    /// All heads together.
    AllHeads,
}

/// What a family fixes.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// The `model_type` of transformers.
    pub(crate) name: &'static str,
    /// Where blocks, embedding and last norm are.
    pub(crate) root: &'static str,
    pub(crate) embedding: &'static str,
    pub(crate) last_norm: &'static str,
    pub(crate) attention: &'static str,
    /// The projections of queries, keys and values, and that of the result.
    pub(crate) projections: [&'static str; 4],
    pub(crate) mlp: &'static str,
    pub(crate) norm: NormKind,
    /// Norms stand after the parts of a block, not before them.
    pub(crate) norms_after: bool,
    pub(crate) head_norm: HeadNorm,
    /// Embeddings are multiplied by the square root of the width.
    pub(crate) scaled_embedding: bool,
    /// Dropout acts on embeddings, too.
    pub(crate) drops_embedding: bool,
    /// Whether there are biases, where the family decides.
    pub(crate) attention_bias: Option<bool>,
    pub(crate) mlp_bias: Option<bool>,
    /// The projection of the result has a bias if the others have one.
    pub(crate) output_bias: bool,
    /// The feed-forward part has a gate.
    pub(crate) gated: bool,
    /// Keys and values may have fewer heads than queries, and heads any size.
    pub(crate) free_heads: bool,
    pub(crate) has_window: bool,
    pub(crate) has_partial_rotary: bool,
    pub(crate) has_rope_scaling: bool,
    pub(crate) has_experts: bool,
    pub(crate) has_parallel: bool,
    /// The embedding may have a padding token, whose row gets no gradient.
    pub(crate) has_padding: bool,
}

const LLAMA: Traits = Traits {
    name: "llama",
    root: "model",
    embedding: "embed_tokens",
    last_norm: "norm",
    attention: "self_attn",
    projections: ["q_proj", "k_proj", "v_proj", "o_proj"],
    mlp: "mlp",
    norm: NormKind::Rms,
    norms_after: false,
    head_norm: HeadNorm::Absent,
    scaled_embedding: false,
    drops_embedding: true,
    attention_bias: None,
    mlp_bias: None,
    output_bias: true,
    gated: true,
    free_heads: true,
    has_window: false,
    has_partial_rotary: false,
    has_rope_scaling: true,
    has_experts: false,
    has_parallel: false,
    has_padding: true,
};

/// As Llama without biases in the feed-forward part.
const OTHER: Traits = Traits { mlp_bias: Some(false), ..LLAMA };

impl DecoderFamily {
    /// All families.
    pub const ALL: [DecoderFamily; 9] = [
        DecoderFamily::Llama,
        DecoderFamily::Mistral,
        DecoderFamily::Qwen2,
        DecoderFamily::Qwen3,
        DecoderFamily::Phi3,
        DecoderFamily::Olmo2,
        DecoderFamily::Gemma,
        DecoderFamily::GptNeox,
        DecoderFamily::Mixtral,
    ];

    /// The family's name, which is the `model_type` of transformers.
    pub fn name(self) -> &'static str {
        self.traits().name
    }

    /// Whether it is Llama itself.
    pub fn is_llama(&self) -> bool {
        *self == DecoderFamily::Llama
    }

    /// Whether positions may turn a part of a head only.
    pub fn turns_partly(self) -> bool {
        self.traits().has_partial_rotary
    }

    pub(crate) fn traits(self) -> Traits {
        let plain = Traits { attention_bias: Some(false), ..OTHER };
        match self {
            DecoderFamily::Llama => LLAMA,
            DecoderFamily::Mistral => Traits { name: "mistral", has_window: true, ..plain },
            DecoderFamily::Qwen2 => Traits {
                name: "qwen2",
                attention_bias: Some(true),
                output_bias: false,
                has_window: true,
                ..OTHER
            },
            DecoderFamily::Qwen3 => {
                Traits { name: "qwen3", head_norm: HeadNorm::EachHead, has_window: true, ..OTHER }
            }
            DecoderFamily::Phi3 => Traits {
                name: "phi3",
                drops_embedding: false,
                has_window: true,
                has_partial_rotary: true,
                has_rope_scaling: false,
                ..plain
            },
            DecoderFamily::Olmo2 => {
                Traits { name: "olmo2", norms_after: true, head_norm: HeadNorm::AllHeads, ..OTHER }
            }
            DecoderFamily::Gemma => {
                Traits { name: "gemma", norm: NormKind::RmsPlusOne, scaled_embedding: true, ..OTHER }
            }
            DecoderFamily::GptNeox => GPT_NEOX,
            DecoderFamily::Mixtral => Traits {
                name: "mixtral",
                mlp: "block_sparse_moe",
                has_window: true,
                has_experts: true,
                ..plain
            },
        }
    }
}

const GPT_NEOX: Traits = Traits {
    name: "gpt_neox",
    root: "gpt_neox",
    embedding: "embed_in",
    last_norm: "final_layer_norm",
    attention: "attention",
    projections: ["q", "k", "v", "dense"],
    norm: NormKind::Layer,
    mlp_bias: Some(true),
    gated: false,
    free_heads: false,
    has_partial_rotary: true,
    has_parallel: true,
    has_padding: false,
    ..LLAMA
};

impl FromStr for DecoderFamily {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        DecoderFamily::ALL.into_iter().find(|family| family.name() == name).ok_or(())
    }
}
