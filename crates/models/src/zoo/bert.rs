//! BERT, trained to fill in masked tokens. Parameter names are those of transformers' `BertForMaskedLM`.

use phalanx_nn::{Init, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::{SampleData, Samples, ZooConfig, encoder_attention};
use crate::ModelError;
use crate::check::Check;

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

impl BertConfig {
    fn block(&self, net: &Net, x: &Tensor) -> Tensor {
        let attention = net.at("attention");
        let h = attention
            .at("output.dense")
            .linear(&encoder_attention(&attention.at("self"), x, self.heads), self.width);
        let h = attention.at("output.dropout").dropout(self.dropout, h);
        let x = attention.at("output.LayerNorm").layer_norm_with(&(x + h), 1e-12);
        let h = net.at("intermediate.dense").linear(&x, self.hidden).gelu();
        let h = net.at("output.dropout").dropout(self.dropout, net.at("output.dense").linear(&h, self.width));
        net.at("output.LayerNorm").layer_norm_with(&(x + h), 1e-12)
    }
}

impl ZooConfig for BertConfig {
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
        let check = Check("bert");
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("width", self.width)])?;
        check.positive(&[("hidden", self.hidden), ("context", self.context)])?;
        check.layers(self.layers)?;
        check.bounded(&[("width", self.width), ("vocab", self.vocab), ("layers", self.layers)])?;
        check.bounded(&[("width", self.width), ("hidden", self.hidden), ("layers", self.layers)])?;
        check.bounded(&[("context", self.context), ("vocab", self.vocab)])?;
        check.at_least(("vocab", self.vocab), 3)?;
        check.divides(("heads", self.heads), ("width", self.width))?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.02));
        let (tokens, targets) = (net.tokens("tokens", self.context), net.tokens("targets", self.context));
        let (bert, cls) = (net.at("bert"), net.at("cls.predictions"));
        let embeddings = bert.at("embeddings");
        let words = embeddings.at("word_embeddings").embedding(self.vocab, self.width);
        let places = embeddings.at("position_embeddings").embedding(self.context, self.width);
        let kinds = embeddings.at("token_type_embeddings").embedding(2, self.width);
        let x = words.rows(&tokens) + places.first(self.context) + kinds.first(1);
        let x = embeddings.at("LayerNorm").layer_norm_with(&x, 1e-12);
        let mut x = embeddings.at("dropout").dropout(self.dropout, x);
        for layer in 0..self.layers {
            x = self.block(&bert.at("encoder.layer").at(layer), &x);
        }
        let x = cls.at("transform.dense").linear(&x, self.width).gelu();
        let x = cls.at("transform.LayerNorm").layer_norm_with(&x, 1e-12);
        let logits = words.logits(&x) + cls.param("bias", [self.vocab], Init::Zeros);
        logits.cross_entropy(&targets)
    }

    /// Each text alternates between two tokens that belong together; every fifth token or so is masked and asked for.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..samples.batch {
            let pair = samples.below((self.vocab - 1) / 2);
            for at in 0..self.context {
                let token = (2 * pair + at % 2) as i64;
                let masked = samples.below(5) == 0;
                tokens.push(if masked { self.vocab as i64 - 1 } else { token });
                targets.push(if masked { token } else { crate::IGNORE_LABEL });
            }
        }
        vec![("tokens".into(), SampleData::I64(tokens)), ("targets".into(), SampleData::I64(targets))]
    }
}
