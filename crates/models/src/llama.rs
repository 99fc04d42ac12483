//! Llama: rotary positions, root-mean-square norms, gated feed-forward parts, grouped keys and values.

use phalanx_ir::{Activation, Init, RopeScaling};
use phalanx_nn::{Dense, EmbeddingTable, Net, Tensor};
use phalanx_ops::Rotary;
use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::check::Check;
use crate::language::{EarlierTokens, LanguageModel, attend, head};

/// The sizes of a Llama language model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; they divide `heads`.
    pub kv_heads: usize,
    /// Features of one head; even. Usually `width / heads`.
    pub head_dim: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features inside the feed-forward part.
    pub hidden: usize,
    /// Tokens the model knows.
    pub vocab: usize,
    /// The most tokens it sees at once.
    pub context: usize,
    /// Probability of zeroing an element after the embedding and after each residual branch, in training.
    pub dropout: f32,
    /// The output head is the token embedding.
    pub tied: bool,
    /// Added to mean squares by the norms.
    pub eps: f32,
    /// The base of the rotary frequencies.
    pub rope_base: f32,
    /// What becomes of the rotary frequencies.
    #[serde(default, with = "crate::rope", skip_serializing_if = "RopeScaling::is_none")]
    pub rope_scaling: RopeScaling,
    /// Applied to the gate of the feed-forward part.
    #[serde(with = "crate::activation")]
    pub activation: Activation,
    /// The four attention projections have biases.
    pub attention_bias: bool,
    /// The three feed-forward projections have biases.
    pub mlp_bias: bool,
}

impl LlamaConfig {
    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let [layers, width, hidden] = [self.layers, self.width, self.hidden].map(|size| size as u64);
        let query = (self.heads * self.head_dim) as u64;
        let key = (self.kv_heads * self.head_dim) as u64;
        let [attention_bias, mlp_bias] = [self.attention_bias, self.mlp_bias].map(u64::from);
        let attention = 2 * width * (query + key) + attention_bias * (query + 2 * key + width);
        let feed_forward = 3 * width * hidden + mlp_bias * (2 * hidden + width);
        let tables = self.vocab as u64 * width * if self.tied { 1 } else { 2 };
        layers * (attention + feed_forward + 2 * width) + width + tables
    }

    fn block(&self, net: &Net, x: Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let attn = net.at("self_attn");
        let normed = net.at("input_layernorm").rms_norm_with(&x, self.eps);
        let branch = self.attention(&attn, &normed, earlier);
        let branch = attn.at("dropout").dropout(self.dropout, branch);
        let x = (x + branch).named(&attn.at("residual"));
        let normed = net.at("post_attention_layernorm").rms_norm_with(&x, self.eps);
        let branch = self.feed_forward(&net.at("mlp"), &normed);
        (x + net.at("mlp.dropout").dropout(self.dropout, branch)).named(net)
    }

    fn attention(&self, net: &Net, x: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let heads = |name: &str, heads: usize| {
            let flat = net.at(name).linear(x, Dense::new(heads * self.head_dim).bias(self.attention_bias));
            flat.split_heads(self.head_dim).named(&net.at(name).at("heads"))
        };
        let (query, key) = (heads("q_proj", self.heads), heads("k_proj", self.kv_heads));
        let value = heads("v_proj", self.kv_heads);
        let positions = earlier.as_ref().map(|earlier| &earlier.positions);
        let turned = |name: &str, x: &Tensor| {
            let operands: Vec<&Tensor> = [x].into_iter().chain(positions).collect();
            net.at(name).apply(Rotary { base: self.rope_base, scaling: self.rope_scaling }, &operands)
        };
        let (query, key) = (turned("query", &query), turned("key", &key));
        let merged = attend(net, [query, key, value], earlier);
        net.at("o_proj").linear(&merged, Dense::new(self.width).bias(self.attention_bias))
    }

    fn feed_forward(&self, net: &Net, x: &Tensor) -> Tensor {
        let linear = Dense::new(self.hidden).bias(self.mlp_bias);
        let gate = net.at("gate_proj").linear(x, linear.then(self.activation));
        let up = net.at("up_proj").linear(x, linear);
        let gated = (gate * up).named(&net.at("gated"));
        net.at("down_proj").linear(&gated, Dense::new(self.width).bias(self.mlp_bias))
    }
}

impl LanguageModel for LlamaConfig {
    const NAME: &'static str = "llama";

    fn check(&self, batch: usize, time: usize) -> Result<(), ModelError> {
        let check = Check("llama");
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("kv_heads", self.kv_heads)])?;
        check.positive(&[("head_dim", self.head_dim), ("width", self.width), ("hidden", self.hidden)])?;
        check.positive(&[("vocab", self.vocab), ("context", self.context)])?;
        check.positive(&[("batch", batch), ("time", time)])?;
        check.layers(self.layers)?;
        let (rows, width) = ([("batch", batch), ("time", time)], ("width", self.width));
        let queries = ("heads x head_dim", self.heads.saturating_mul(self.head_dim));
        for widest in [width, queries, ("hidden", self.hidden), ("vocab", self.vocab)] {
            check.bounded(&[rows[0], rows[1], widest])?;
            check.bounded(&[width, widest, ("layers", self.layers)])?;
        }
        check.divides(("kv_heads", self.kv_heads), ("heads", self.heads))?;
        check.even("head_dim", self.head_dim)?;
        check.rate("dropout", self.dropout)?;
        check.above_zero("eps", self.eps)?;
        check.above_zero("rope_base", self.rope_base)?;
        check.fits(time, self.context)
    }

    fn logits(&self, net: &Net, tokens: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let (table, x) = self.hidden(net, tokens, earlier);
        head(net, &net.at("model.norm").rms_norm_with(&x, self.eps), &table, self.tied)
    }

    fn hidden(
        &self,
        net: &Net,
        tokens: &Tensor,
        earlier: &mut Option<EarlierTokens>,
    ) -> (EmbeddingTable, Tensor) {
        let net = net.at("model").init(Init::Normal(0.02));
        let table = net.at("embed_tokens").embedding(self.vocab, self.width);
        let mut x = net.at("dropout").dropout(self.dropout, table.rows(tokens));
        for layer in 0..self.layers {
            x = self.block(&net.at("layers").at(layer), x, earlier);
        }
        (table, x)
    }
}
