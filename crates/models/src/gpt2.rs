//! GPT-2: learned positions, layer norms before each part, linear weights stored `[in, out]`.
//!
//! Query, key and value have parameters of their own, `attn.q`, `attn.k` and `attn.v`, so that a plan can give heads
//! to different devices; files of transformers hold the three side by side as `attn.c_attn`.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, Init, Op};
use phalanx_ops::{Embedding, Split};
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::layers::{self, Linear, Pass};
use crate::{CachedGraph, ModelError};

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
    /// The step to train; see [`crate::ModelConfig::training_graph`].
    pub fn training_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        layers::training_graph("gpt2", [batch, time], |model, tokens| {
            self.logits(model, tokens, &mut Pass { dropout: self.dropout, ..Pass::default() })
        })
    }

    /// The model alone; see [`crate::ModelConfig::logits_graph`].
    pub fn logits_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        layers::logits_graph("gpt2", [batch, time], |model, tokens| {
            self.logits(model, tokens, &mut Pass::default())
        })
    }

    /// One more token; see [`crate::ModelConfig::decode_graph`].
    pub fn decode_graph(&self, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check(1, capacity)?;
        layers::cached_graph("gpt2", [1, capacity], |model, tokens, pass| {
            self.logits(model, tokens, pass).map(Some)
        })
    }

    /// More tokens; see [`crate::ModelConfig::prefill_graph`].
    pub fn prefill_graph(&self, time: usize, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check(1, time)?;
        self.check(1, capacity)?;
        layers::cached_graph("gpt2", [time, capacity], |model, tokens, pass| {
            self.hidden(model, tokens, pass).map(|_| None)
        })
    }

    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let [layers, width, hidden] = [self.layers, self.width, self.hidden].map(|size| size as u64);
        let [vocab, context] = [self.vocab, self.context].map(|size| size as u64);
        let attention = 4 * (width + 1) * width;
        let feed_forward = (width + 1) * hidden + (hidden + 1) * width;
        let tables = (vocab * if self.tied { 1 } else { 2 } + context) * width;
        layers * (attention + feed_forward + 4 * width) + 2 * width + tables
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

    fn logits(&self, model: &mut Builder, tokens: ValueId, pass: &mut Pass) -> Result<ValueId, BuildError> {
        let (table, x) = self.hidden(model, tokens, pass)?;
        let x = layers::layer_norm(model, "transformer.ln_f", x, self.eps)?;
        layers::head(model, x, table, self.tied)
    }

    /// The table of token embeddings, and the residual stream behind the last block.
    fn hidden(
        &self,
        model: &mut Builder,
        tokens: ValueId,
        pass: &mut Pass,
    ) -> Result<(ValueId, ValueId), BuildError> {
        let (table, embedded) =
            layers::embed_tokens(model, "transformer.wte", tokens, [self.vocab, self.width])?;
        let time = model.shape(tokens).last();
        let positions = self.positions(model, time, pass)?;
        let x = layers::add(model, "transformer.embedding", embedded, positions)?;
        let mut x = layers::dropout(model, "transformer.drop", x, pass.dropout)?;
        for layer in 0..self.layers {
            x = self.block(model, &format!("transformer.h.{layer}"), x, pass)?;
        }
        Ok((table, x))
    }

    /// The first `time` rows of the position table, or those of the positions that are given.
    fn positions(&self, model: &mut Builder, time: usize, pass: &Pass) -> Result<ValueId, BuildError> {
        let shape = [self.context, self.width];
        let table = model.param("transformer.wpe.weight", shape, Init::Normal(0.02))?;
        if let Some(earlier) = &pass.earlier {
            let rows = Op::from(Embedding { bag: false, padding: None });
            return model.add_one("transformer.wpe", rows, &[earlier.positions, table]);
        }
        if time == self.context {
            return Ok(table);
        }
        let cut = Op::from(Split { axis: 0, sizes: vec![time, self.context - time], blocks: 1 });
        model.add_one("transformer.wpe", cut, &[table])
    }

    fn block(
        &self,
        model: &mut Builder,
        name: &str,
        x: ValueId,
        pass: &mut Pass,
    ) -> Result<ValueId, BuildError> {
        let dropout = pass.dropout;
        let normed = layers::layer_norm(model, &format!("{name}.ln_1"), x, self.eps)?;
        let branch = self.attention(model, &format!("{name}.attn"), normed, pass)?;
        let branch = layers::dropout(model, &format!("{name}.attn.resid_dropout"), branch, dropout)?;
        let x = layers::add(model, &format!("{name}.attn.residual"), x, branch)?;
        let normed = layers::layer_norm(model, &format!("{name}.ln_2"), x, self.eps)?;
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
        let query = self.heads_of(model, [name, "q", "query"], x)?;
        let key = self.heads_of(model, [name, "k", "key"], x)?;
        let value = self.heads_of(model, [name, "v", "value"], x)?;
        let merged = layers::attend(model, name, [query, key, value], pass)?;
        self.residual_linear().add(model, &format!("{name}.c_proj"), merged)
    }

    /// The projection `name.linear` of `x`, cut into heads called `name.heads`.
    fn heads_of(
        &self,
        model: &mut Builder,
        [name, linear, heads]: [&str; 3],
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let flat = self.linear(self.width).add(model, &format!("{name}.{linear}"), x)?;
        layers::split_heads(model, &format!("{name}.{heads}"), flat, self.width / self.heads)
    }

    fn feed_forward(&self, model: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let hidden = self.linear(self.hidden).then(self.activation).add(model, &format!("{name}.c_fc"), x)?;
        self.residual_linear().add(model, &format!("{name}.c_proj"), hidden)
    }

    fn linear(&self, outputs: usize) -> Linear {
        let init = Init::Normal(0.02);
        Linear { outputs, transposed: true, init, bias: Some(Init::Zeros), activation: Activation::None }
    }

    /// A projection into the residual stream starts smaller, so that the stream's variance does not grow with depth.
    fn residual_linear(&self) -> Linear {
        Linear { init: Init::Normal(0.02 / (2.0 * self.layers as f32).sqrt()), ..self.linear(self.width) }
    }
}
