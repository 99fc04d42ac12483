//! What encoders of text share: the blocks of BERT, the head that fills in masked tokens, and texts to learn from.

use phalanx_nn::{EmbeddingTable, Init, Net, Tensor};
use phalanx_ops::Attention;

use super::{SampleData, Samples};
use crate::ModelError;
use crate::check::Check;

/// The sizes of an encoder.
pub(super) struct Encoder {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub hidden: usize,
    pub dropout: f32,
    pub eps: f32,
}

impl Encoder {
    pub fn check(&self, name: &'static str, vocab: usize, context: usize) -> Result<(), ModelError> {
        let check = Check(name);
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("width", self.width)])?;
        check.positive(&[("hidden", self.hidden), ("context", context)])?;
        check.layers(self.layers)?;
        check.bounded(&[("width", self.width), ("vocab", vocab), ("layers", self.layers)])?;
        check.bounded(&[("width", self.width), ("hidden", self.hidden), ("layers", self.layers)])?;
        check.bounded(&[("context", context), ("vocab", vocab)])?;
        check.at_least(("vocab", vocab), 3)?;
        check.divides(("heads", self.heads), ("width", self.width))?;
        check.rate("dropout", self.dropout)
    }

    /// The residual stream behind the embeddings.
    pub fn embedded(&self, embeddings: &Net, x: &Tensor) -> Tensor {
        let x = embeddings.at("LayerNorm").layer_norm_with(x, self.eps);
        embeddings.at("dropout").dropout(self.dropout, x)
    }

    /// All blocks of the model at `net`.
    pub fn blocks(&self, net: &Net, x: &Tensor) -> Tensor {
        (0..self.layers).fold(x.clone(), |x, layer| self.block(&net.at("encoder.layer").at(layer), &x))
    }

    fn block(&self, net: &Net, x: &Tensor) -> Tensor {
        let attention = net.at("attention");
        let heads = encoder_attention(&attention.at("self"), x, self.heads);
        let h = attention.at("output.dense").linear(&heads, self.width);
        let h = attention.at("output.dropout").dropout(self.dropout, h);
        let x = attention.at("output.LayerNorm").layer_norm_with(&(x + h), self.eps);
        let h = net.at("intermediate.dense").linear(&x, self.hidden).gelu();
        let h = net.at("output.dropout").dropout(self.dropout, net.at("output.dense").linear(&h, self.width));
        net.at("output.LayerNorm").layer_norm_with(&(x + h), self.eps)
    }

    /// A logit for each word at each place, by the words' own table: a linear layer, a norm, and where the bias is.
    pub fn fill_in(&self, [dense, norm, bias]: [Net; 3], words: &EmbeddingTable, x: &Tensor) -> Tensor {
        let x = norm.layer_norm_with(&dense.linear(x, self.width).gelu(), self.eps);
        words.logits(&x) + bias.param("bias", [words.weight().dims()[0]], Init::Zeros)
    }
}

/// Attention of every position to every other one, with the projections of transformers' encoders; without the output's.
pub(super) fn encoder_attention(net: &Net, x: &Tensor, heads: usize) -> Tensor {
    let (width, dim) = (x.last(), x.last() / heads);
    let [q, k, v] = ["query", "key", "value"].map(|name| net.at(name).linear(x, width).split_heads(dim));
    let attention = Attention::new(false, 1.0 / (dim as f32).sqrt());
    net.at("heads").apply(attention, &[&q, &k, &v]).merge_heads()
}

/// Texts that alternate between two tokens that belong together; every fifth token or so is masked and asked for. The mask
/// is the last token, and the first `reserved` are not used.
pub(super) fn masked_pairs(
    samples: &mut Samples,
    context: usize,
    vocab: usize,
    reserved: usize,
) -> Vec<(String, SampleData)> {
    let (mut tokens, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..samples.batch {
        let pair = samples.below((vocab - 1 - reserved) / 2);
        for at in 0..context {
            let token = (reserved + 2 * pair + at % 2) as i64;
            let masked = samples.below(5) == 0;
            tokens.push(if masked { vocab as i64 - 1 } else { token });
            targets.push(if masked { token } else { crate::IGNORE_LABEL });
        }
    }
    vec![("tokens".into(), SampleData::I64(tokens)), ("targets".into(), SampleData::I64(targets))]
}
