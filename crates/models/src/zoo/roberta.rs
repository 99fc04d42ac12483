//! RoBERTa, trained to fill in masked tokens. Parameter names are those of transformers' `RobertaForMaskedLM`. Texts have no
//! padding: the position table has two rows more than a text has tokens, as files do, and the first two are not used.

use phalanx_nn::{Init, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::encoder::{Encoder, masked_pairs};
use super::{SampleData, Samples, TransformersForm, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a RoBERTa.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RobertaConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they divide `width`.
    pub heads: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features inside the feed-forward part.
    pub hidden: usize,
    /// Tokens the model knows; the last one is the mask.
    pub vocab: usize,
    /// Tokens in a sequence; the position table has two rows more.
    pub context: usize,
    /// Probability of zeroing an element, in training.
    pub dropout: f32,
}

/// Tokens, and rows of the position table, that stand for no part of a text: the begin and the padding.
const RESERVED: usize = 2;
/// The token of the padding.
const PADDING: usize = 1;

impl RobertaConfig {
    fn encoder(&self) -> Encoder {
        let RobertaConfig { layers, heads, width, hidden, dropout, .. } = *self;
        Encoder { layers, heads, width, hidden, dropout, eps: 1e-5 }
    }
}

impl ZooConfig for RobertaConfig {
    const TRANSFORMERS: Option<TransformersForm> = Some(TransformersForm {
        model_type: "roberta",
        architecture: "RobertaForMaskedLM",
        usual: "medium",
        labels: None,
        sizes: &[
            ("layers", "num_hidden_layers", 0),
            ("heads", "num_attention_heads", 0),
            ("width", "hidden_size", 0),
            ("hidden", "intermediate_size", 0),
            ("vocab", "vocab_size", 0),
            ("context", "max_position_embeddings", 2),
        ],
        fixed: &[
            ("hidden_act", "\"gelu\""),
            ("layer_norm_eps", "1e-5"),
            ("type_vocab_size", "1"),
            ("pad_token_id", "1"),
            ("tie_word_embeddings", "true"),
        ],
    });

    fn preset(size: &str) -> Option<Self> {
        let (layers, heads, width, vocab, context) = match size {
            "nano" => (2, 4, 64, 33, 16),
            "small" => (6, 12, 768, 50_265, 512),
            "medium" => (12, 12, 768, 50_265, 512),
            "large" => (24, 16, 1024, 50_265, 512),
            _ => return None,
        };
        Some(RobertaConfig { layers, heads, width, hidden: 4 * width, vocab, context, dropout: 0.0 })
    }

    fn check(&self) -> Result<(), ModelError> {
        Check("roberta").at_least(("vocab", self.vocab), RESERVED + 3)?;
        self.encoder().check("roberta", self.vocab, self.context)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.02));
        let (tokens, targets) = (net.tokens("tokens", self.context), net.tokens("targets", self.context));
        let (roberta, head, encoder) = (net.at("roberta"), net.at("lm_head"), self.encoder());
        let embeddings = roberta.at("embeddings");
        let words = embeddings.at("word_embeddings").embedding(self.vocab, self.width);
        let words = words.padding(Some(PADDING));
        let places = embeddings.at("position_embeddings").embedding(self.context + RESERVED, self.width);
        let places = places.weight().slice(0, RESERVED..self.context + RESERVED);
        let kinds = embeddings.at("token_type_embeddings").embedding(1, self.width);
        let x = words.rows(&tokens) + places + kinds.first(1);
        let x = encoder.blocks(&roberta, &encoder.embedded(&embeddings, &x));
        let head = [head.at("dense"), head.at("layer_norm"), head];
        encoder.fill_in(head, &words, &x).cross_entropy(&targets)
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        masked_pairs(samples, self.context, self.vocab, RESERVED)
    }
}
