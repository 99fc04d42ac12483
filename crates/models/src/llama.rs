//! Llama: rotary positions, root-mean-square norms, gated feed-forward parts, grouped keys and values.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, Binary, Init, Op, RopeScaling};
use phalanx_ops::{Layers, Rotary};
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::layers::{self, Linear, Pass};
use crate::{CachedGraph, ModelError};

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
    /// The step to train; see [`crate::ModelConfig::training_graph`].
    pub fn training_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        layers::training_graph("llama", [batch, time], |model, tokens| {
            self.logits(model, tokens, &mut Pass { dropout: self.dropout, ..Pass::default() })
        })
    }

    /// The model alone; see [`crate::ModelConfig::logits_graph`].
    pub fn logits_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        layers::logits_graph("llama", [batch, time], |model, tokens| {
            self.logits(model, tokens, &mut Pass::default())
        })
    }

    /// One more token; see [`crate::ModelConfig::decode_graph`].
    pub fn decode_graph(&self, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check(1, capacity)?;
        layers::cached_graph("llama", [1, capacity], |model, tokens, pass| {
            self.logits(model, tokens, pass).map(Some)
        })
    }

    /// More tokens; see [`crate::ModelConfig::prefill_graph`].
    pub fn prefill_graph(&self, time: usize, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check(1, time)?;
        self.check(1, capacity)?;
        layers::cached_graph("llama", [time, capacity], |model, tokens, pass| {
            self.hidden(model, tokens, pass).map(|_| None)
        })
    }

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

    fn logits(&self, model: &mut Builder, tokens: ValueId, pass: &mut Pass) -> Result<ValueId, BuildError> {
        let (table, x) = self.hidden(model, tokens, pass)?;
        let x = layers::rms_norm(model, "model.norm", x, self.eps)?;
        layers::head(model, x, table, self.tied)
    }

    /// The table of token embeddings, and the residual stream behind the last block.
    fn hidden(
        &self,
        model: &mut Builder,
        tokens: ValueId,
        pass: &mut Pass,
    ) -> Result<(ValueId, ValueId), BuildError> {
        let (table, x) = layers::embed_tokens(model, "model.embed_tokens", tokens, [self.vocab, self.width])?;
        let mut x = layers::dropout(model, "model.dropout", x, pass.dropout)?;
        for layer in 0..self.layers {
            x = self.block(model, &format!("model.layers.{layer}"), x, pass)?;
        }
        Ok((table, x))
    }

    fn block(
        &self,
        model: &mut Builder,
        name: &str,
        x: ValueId,
        pass: &mut Pass,
    ) -> Result<ValueId, BuildError> {
        let dropout = pass.dropout;
        let normed = layers::rms_norm(model, &format!("{name}.input_layernorm"), x, self.eps)?;
        let branch = self.attention(model, &format!("{name}.self_attn"), normed, pass)?;
        let branch = layers::dropout(model, &format!("{name}.self_attn.dropout"), branch, dropout)?;
        let x = layers::add(model, &format!("{name}.self_attn.residual"), x, branch)?;
        let normed = layers::rms_norm(model, &format!("{name}.post_attention_layernorm"), x, self.eps)?;
        let branch = self.feed_forward(model, &format!("{name}.mlp"), normed)?;
        let branch = layers::dropout(model, &format!("{name}.mlp.dropout"), branch, dropout)?;
        layers::add(model, name, x, branch)
    }

    fn attention(
        &self,
        model: &mut Builder,
        name: &str,
        x: ValueId,
        pass: &mut Pass,
    ) -> Result<ValueId, BuildError> {
        let linear = self.linear(self.attention_bias);
        let query =
            self.heads_of(model, &format!("{name}.q_proj"), x, linear.to(self.heads * self.head_dim))?;
        let key =
            self.heads_of(model, &format!("{name}.k_proj"), x, linear.to(self.kv_heads * self.head_dim))?;
        let value =
            self.heads_of(model, &format!("{name}.v_proj"), x, linear.to(self.kv_heads * self.head_dim))?;
        let rotary = Op::from(Rotary { base: self.rope_base, scaling: self.rope_scaling });
        let positions = pass.earlier.as_ref().map(|earlier| earlier.positions);
        let turned = |x: ValueId| [x].into_iter().chain(positions).collect::<Vec<_>>();
        let query = model.add_one(&format!("{name}.query"), rotary.clone(), &turned(query))?;
        let key = model.add_one(&format!("{name}.key"), rotary, &turned(key))?;
        let merged = layers::attend(model, name, [query, key, value], pass)?;
        linear.to(self.width).add(model, &format!("{name}.o_proj"), merged)
    }

    fn heads_of(
        &self,
        model: &mut Builder,
        name: &str,
        x: ValueId,
        linear: Linear,
    ) -> Result<ValueId, BuildError> {
        let flat = linear.add(model, name, x)?;
        layers::split_heads(model, &format!("{name}.heads"), flat, self.head_dim)
    }

    fn feed_forward(&self, model: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let linear = self.linear(self.mlp_bias).to(self.hidden);
        let gate = linear.then(self.activation).add(model, &format!("{name}.gate_proj"), x)?;
        let up = linear.add(model, &format!("{name}.up_proj"), x)?;
        let gated = model.binary(&format!("{name}.gated"), Binary::Mul, gate, up)?;
        linear.to(self.width).add(model, &format!("{name}.down_proj"), gated)
    }

    fn linear(&self, bias: bool) -> Linear {
        Linear {
            outputs: self.width,
            transposed: false,
            init: Init::Normal(0.02),
            bias: bias.then_some(Init::Zeros),
            activation: Activation::None,
        }
    }
}
