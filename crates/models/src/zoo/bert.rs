//! BERT, trained to fill in masked tokens. Parameter names are those of transformers' `BertForMaskedLM`.

use phalanx_nn::{Init, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::encoder::{Encoder, masked_pairs};
use super::{SampleData, Samples, TransformersForm, ZooConfig};
use crate::ModelError;

/// The sizes of a BERT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertConfig {
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
    /// Tokens in a sequence: rows of the position table.
    pub context: usize,
    /// Probability of zeroing an element, in training.
    pub dropout: f32,
}

/// The token of the padding.
const PADDING: usize = 0;

impl BertConfig {
    fn encoder(&self) -> Encoder {
        let BertConfig { layers, heads, width, hidden, dropout, .. } = *self;
        Encoder { layers, heads, width, hidden, dropout, eps: 1e-12 }
    }
}

impl ZooConfig for BertConfig {
    const TRANSFORMERS: Option<TransformersForm> = Some(TransformersForm {
        model_type: "bert",
        architecture: "BertForMaskedLM",
        usual: "medium",
        labels: None,
        sizes: &[
            ("layers", "num_hidden_layers", 0),
            ("heads", "num_attention_heads", 0),
            ("width", "hidden_size", 0),
            ("hidden", "intermediate_size", 0),
            ("vocab", "vocab_size", 0),
            ("context", "max_position_embeddings", 0),
        ],
        fixed: &[
            ("hidden_act", "\"gelu\""),
            ("layer_norm_eps", "1e-12"),
            ("type_vocab_size", "2"),
            ("pad_token_id", "0"),
            ("tie_word_embeddings", "true"),
        ],
    });

    fn preset(size: &str) -> Option<Self> {
        let (layers, heads, width, vocab, context) = match size {
            "nano" => (2, 4, 64, 33, 16),
            "small" => (4, 8, 512, 30_522, 128),
            "medium" => (12, 12, 768, 30_522, 512),
            "large" => (24, 16, 1024, 30_522, 512),
            _ => return None,
        };
        Some(BertConfig { layers, heads, width, hidden: 4 * width, vocab, context, dropout: 0.0 })
    }

    fn check(&self) -> Result<(), ModelError> {
        self.encoder().check("bert", self.vocab, self.context)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.02));
        let (tokens, targets) = (net.tokens("tokens", self.context), net.tokens("targets", self.context));
        let (bert, cls, encoder) = (net.at("bert"), net.at("cls.predictions"), self.encoder());
        let embeddings = bert.at("embeddings");
        let words = embeddings.at("word_embeddings").embedding(self.vocab, self.width);
        let words = words.padding(Some(PADDING));
        let places = embeddings.at("position_embeddings").embedding(self.context, self.width);
        let kinds = embeddings.at("token_type_embeddings").embedding(2, self.width);
        let x = words.rows(&tokens) + places.first(self.context) + kinds.first(1);
        let x = encoder.blocks(&bert, &encoder.embedded(&embeddings, &x));
        let head = [cls.at("transform.dense"), cls.at("transform.LayerNorm"), cls];
        encoder.fill_in(head, &words, &x).cross_entropy(&targets)
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        masked_pairs(samples, self.context, self.vocab, PADDING + 1)
    }
}
