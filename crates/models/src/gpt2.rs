//! GPT-2: learned positions, layer norms before each part, linear weights stored `[in, out]`.
//!
//! Query, key and value have parameters of their own, `attn.q`, `attn.k` and `attn.v`, so that a plan can give heads
//! to different devices; files of transformers hold the three side by side as `attn.c_attn`.

use phalanx_ir::{Activation, Init};
use phalanx_nn::{Dense, EmbeddingTable, Net, Tensor};
use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::check::Check;
use crate::language::{EarlierTokens, LanguageModel, attend, head};

/// The sizes of a GPT-2 language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpt2Config {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they divide `width`.
    pub heads: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features inside the feed-forward part, usually 4 · `width`.
    pub hidden: usize,
    /// Tokens the model knows.
    pub vocab: usize,
    /// The most tokens it sees at once: rows of the position table.
    pub context: usize,
    /// Probability of zeroing an element after the embedding and after each residual branch, in training.
    pub dropout: f32,
    /// The output head is the token embedding.
    pub tied: bool,
    /// Added to variances by layer norms.
    pub eps: f32,
    /// Applied inside the feed-forward part.
    #[serde(with = "crate::activation")]
    pub activation: Activation,
}

impl Gpt2Config {
    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let [layers, width, hidden] = [self.layers, self.width, self.hidden].map(|size| size as u64);
        let [vocab, context] = [self.vocab, self.context].map(|size| size as u64);
        let attention = 4 * (width + 1) * width;
        let feed_forward = (width + 1) * hidden + (hidden + 1) * width;
        let tables = (vocab * if self.tied { 1 } else { 2 } + context) * width;
        layers * (attention + feed_forward + 4 * width) + 2 * width + tables
    }

    fn block(&self, net: &Net, x: Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let attn = net.at("attn");
        let branch = self.attention(&attn, &net.at("ln_1").layer_norm_with(&x, self.eps), earlier);
        let branch = attn.at("resid_dropout").dropout(self.dropout, branch);
        let x = (x + branch).named(&attn.at("residual"));
        let branch = self.feed_forward(&net.at("mlp"), &net.at("ln_2").layer_norm_with(&x, self.eps));
        (x + net.at("mlp.dropout").dropout(self.dropout, branch)).named(net)
    }

    fn attention(&self, net: &Net, x: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let dim = self.width / self.heads;
        let heads = [("q", "query"), ("k", "key"), ("v", "value")].map(|(linear, heads)| {
            self.linear(&net.at(linear), x, self.width).split_heads(dim).named(&net.at(heads))
        });
        self.residual_linear(&net.at("c_proj"), &attend(net, heads, earlier, None))
    }

    fn feed_forward(&self, net: &Net, x: &Tensor) -> Tensor {
        let hidden = Dense::new(self.hidden).transposed().then(self.activation);
        let hidden = net.at("c_fc").init(Init::Normal(0.02)).linear(x, hidden);
        self.residual_linear(&net.at("c_proj"), &hidden)
    }

    fn linear(&self, net: &Net, x: &Tensor, features: usize) -> Tensor {
        net.init(Init::Normal(0.02)).linear(x, Dense::new(features).transposed())
    }

    /// A projection into the residual stream starts smaller, so that the stream's variance does not grow with depth.
    fn residual_linear(&self, net: &Net, x: &Tensor) -> Tensor {
        let init = Init::Normal(0.02 / (2.0 * self.layers as f32).sqrt());
        net.init(init).linear(x, Dense::new(self.width).transposed())
    }

    /// The first `time` rows of the position table, or those of the positions that are given.
    fn positions(&self, net: &Net, time: usize, earlier: &Option<EarlierTokens>) -> Tensor {
        let table = net.at("wpe").init(Init::Normal(0.02)).embedding(self.context, self.width);
        match earlier {
            Some(earlier) => table.rows(&earlier.positions),
            None => table.first(time),
        }
    }
}

impl LanguageModel for Gpt2Config {
    fn name(&self) -> &'static str {
        "gpt2"
    }

    fn check(&self, batch: usize, time: usize) -> Result<(), ModelError> {
        let check = Check("gpt2");
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("width", self.width)])?;
        check.positive(&[("hidden", self.hidden), ("vocab", self.vocab), ("context", self.context)])?;
        check.positive(&[("batch", batch), ("time", time)])?;
        check.layers(self.layers)?;
        let (rows, width) = ([("batch", batch), ("time", time)], ("width", self.width));
        for widest in [width, ("hidden", self.hidden), ("vocab", self.vocab), ("context", self.context)] {
            check.bounded(&[rows[0], rows[1], widest])?;
            check.bounded(&[width, widest, ("layers", self.layers)])?;
        }
        check.divides(("heads", self.heads), ("width", self.width))?;
        check.rate("dropout", self.dropout)?;
        check.above_zero("eps", self.eps)?;
        check.fits(time, self.context)
    }

    fn logits(&self, net: &Net, tokens: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let (table, x) = self.hidden(net, tokens, earlier);
        let x = net.at("transformer.ln_f").layer_norm_with(&x, self.eps);
        head(net, &x, &table, self.tied)
    }

    fn hidden(
        &self,
        net: &Net,
        tokens: &Tensor,
        earlier: &mut Option<EarlierTokens>,
    ) -> (EmbeddingTable, Tensor) {
        let net = net.at("transformer");
        let table = net.at("wte").init(Init::Normal(0.02)).embedding(self.vocab, self.width);
        let embedded = table.rows(tokens);
        let positions = self.positions(&net, tokens.last(), earlier);
        let x = (embedded + positions).named(&net.at("embedding"));
        let mut x = net.at("drop").dropout(self.dropout, x);
        for layer in 0..self.layers {
            x = self.block(&net.at("h").at(layer), x, earlier);
        }
        (table, x)
    }
}
