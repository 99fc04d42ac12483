//! Llama and the families like it: rotary positions, feed-forward parts with a gate or with experts, grouped keys and
//! values. What a family fixes stands in [`DecoderFamily`]; the blocks are put together here.

use phalanx_ir::{Activation, Init, RopeScaling};
use phalanx_nn::{Dense, EmbeddingTable, Net, Tensor};
use phalanx_ops::{RmsNorm, Rotary};
use serde::{Deserialize, Serialize};

use crate::experts::Routing;
use crate::family::{HeadNorm, NormKind};
use crate::language::{EarlierTokens, LanguageModel, attend, head};
use crate::{DecoderFamily, ModelError, RoutedExperts, SlidingWindow};

mod check;
mod count;

/// The sizes of a Llama language model, or of one of another [`DecoderFamily`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// What names, norms and storage are like.
    #[serde(default, skip_serializing_if = "DecoderFamily::is_llama")]
    pub family: DecoderFamily,
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
    /// Features inside the feed-forward part, or inside each expert.
    pub hidden: usize,
    /// Tokens the model knows.
    pub vocab: usize,
    /// The most tokens it sees at once.
    pub context: usize,
    /// Probability of zeroing an element after the embedding and after each residual branch, in training.
    pub dropout: f32,
    /// The output head is the token embedding.
    pub tied: bool,
    /// Added to mean squares or variances by the norms.
    pub eps: f32,
    /// The base of the rotary frequencies.
    pub rope_base: f32,
    /// What becomes of the rotary frequencies.
    #[serde(default, with = "crate::rope", skip_serializing_if = "RopeScaling::is_none")]
    pub rope_scaling: RopeScaling,
    /// How many features of a head are turned by positions, the first ones; even. All if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_dim: Option<usize>,
    /// The window of attention, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<SlidingWindow>,
    /// Applied to the gate of the feed-forward part, or inside it if it has none.
    #[serde(with = "crate::activation")]
    pub activation: Activation,
    /// The attention projections have biases.
    pub attention_bias: bool,
    /// The feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Both parts of a block read the same stream, and their results are added to it together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    /// Experts in the place of one feed-forward part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<RoutedExperts>,
    /// A token whose embedding gets no gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<usize>,
}

impl LlamaConfig {
    /// Block `layer` of those at `layers`.
    fn block(
        &self,
        layers: &Net,
        (layer, x): (usize, Tensor),
        earlier: &mut Option<EarlierTokens>,
        routings: &mut Vec<Routing>,
    ) -> Tensor {
        let (traits, net) = (self.family.traits(), &layers.at(layer));
        let (attn, mlp) = (net.at(traits.attention), net.at(traits.mlp));
        let (before, after) = match traits.norms_after {
            true => ([None; 2], [Some("post_attention_layernorm"), Some("post_feedforward_layernorm")]),
            false => ([Some("input_layernorm"), Some("post_attention_layernorm")], [None; 2]),
        };
        let branch = self.attention(&attn, (layer, &self.normed(net, before[0], &x)), earlier);
        let branch = attn.at("dropout").dropout(self.dropout, self.normed(net, after[0], &branch));
        if self.parallel {
            let other = self.feed_forward(&mlp, &self.normed(net, before[1], &x), routings);
            let other = mlp.at("dropout").dropout(self.dropout, self.normed(net, after[1], &other));
            return ((other + branch).named(&net.at("branches")) + x).named(net);
        }
        let x = (x + branch).named(&attn.at("residual"));
        let branch = self.feed_forward(&mlp, &self.normed(net, before[1], &x), routings);
        let branch = self.normed(net, after[1], &branch);
        (x + mlp.at("dropout").dropout(self.dropout, branch)).named(net)
    }

    /// `x` normalized by the norm of this name, if there is one.
    fn normed(&self, net: &Net, name: Option<&str>, x: &Tensor) -> Tensor {
        name.map_or_else(|| x.clone(), |name| self.norm(&net.at(name), x))
    }

    fn norm(&self, net: &Net, x: &Tensor) -> Tensor {
        match self.family.traits().norm {
            NormKind::Rms => net.rms_norm_with(x, self.eps),
            NormKind::Layer => net.layer_norm_with(x, self.eps),
            NormKind::RmsPlusOne => {
                let weight = net.param("weight", [x.last()], Init::Zeros);
                let scale = (weight + 1.0).named(&net.at("scale"));
                net.apply(RmsNorm { eps: self.eps }, &[x, &scale])
            }
        }
    }

    fn attention(
        &self,
        net: &Net,
        (layer, x): (usize, &Tensor),
        earlier: &mut Option<EarlierTokens>,
    ) -> Tensor {
        let traits = self.family.traits();
        let [q, k, v, output] = traits.projections;
        let heads = |name: &str, heads: usize, norm: Option<&str>| {
            let flat = net.at(name).linear(x, Dense::new(heads * self.head_dim).bias(self.attention_bias));
            let flat = self.normed(net, norm.filter(|_| traits.head_norm == HeadNorm::AllHeads), &flat);
            let split = flat.split_heads(self.head_dim).named(&net.at(name).at("heads"));
            self.normed(net, norm.filter(|_| traits.head_norm == HeadNorm::EachHead), &split)
        };
        let (query, key) = (heads(q, self.heads, Some("q_norm")), heads(k, self.kv_heads, Some("k_norm")));
        let value = heads(v, self.kv_heads, None);
        let positions = earlier.as_ref().map(|earlier| &earlier.positions);
        let query = self.turned(&net.at("query"), &query, positions);
        let key = self.turned(&net.at("key"), &key, positions);
        let merged = attend(net, [query, key, value], earlier, self.window_of(layer));
        let bias = self.attention_bias && traits.output_bias;
        net.at(output).linear(&merged, Dense::new(self.width).bias(bias))
    }

    /// How many positions before it, and itself, a position of a layer sees; none if it sees all.
    fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|window| layer >= window.from).map(|window| window.size)
    }

    /// Heads turned by their positions, or their first features if not all of them are.
    fn turned(&self, net: &Net, x: &Tensor, positions: Option<&Tensor>) -> Tensor {
        let turn = |net: &Net, x: &Tensor| {
            let operands: Vec<&Tensor> = [x].into_iter().chain(positions).collect();
            net.apply(Rotary { base: self.rope_base, scaling: self.rope_scaling }, &operands)
        };
        match self.rotary_dim.filter(|&dim| dim < self.head_dim) {
            None => turn(net, x),
            Some(dim) => {
                let parts = x.split(3, [dim, self.head_dim - dim]);
                let turned = turn(&net.at("turned"), &parts[0]);
                Tensor::concat([&turned, &parts[1]], 3).named(net)
            }
        }
    }

    fn feed_forward(&self, net: &Net, x: &Tensor, routings: &mut Vec<Routing>) -> Tensor {
        if let Some(experts) = self.experts {
            let expert = |net: &Net| self.gated(net, x, ["w1", "w3", "w2"]);
            return experts.feed_forward(net, x, routings, expert);
        }
        if self.family.traits().gated {
            return self.gated(net, x, ["gate_proj", "up_proj", "down_proj"]);
        }
        let hidden = Dense::new(self.hidden).bias(self.mlp_bias).then(self.activation);
        let hidden = net.at("dense_h_to_4h").linear(x, hidden);
        net.at("dense_4h_to_h").linear(&hidden, Dense::new(self.width).bias(self.mlp_bias))
    }

    fn gated(&self, net: &Net, x: &Tensor, [gate, up, down]: [&str; 3]) -> Tensor {
        let linear = Dense::new(self.hidden).bias(self.mlp_bias);
        let gate = net.at(gate).linear(x, linear.then(self.activation));
        let up = net.at(up).linear(x, linear);
        let gated = (gate * up).named(&net.at("gated"));
        net.at(down).linear(&gated, Dense::new(self.width).bias(self.mlp_bias))
    }

    /// The table of embeddings, the stream behind the last block, and how experts were chosen on the way.
    fn blocks(
        &self,
        net: &Net,
        tokens: &Tensor,
        earlier: &mut Option<EarlierTokens>,
    ) -> (EmbeddingTable, Tensor, Vec<Routing>) {
        let traits = self.family.traits();
        let net = net.at(traits.root).init(Init::Normal(0.02));
        let table = net.at(traits.embedding).embedding(self.vocab, self.width).padding(self.padding);
        let mut x = table.rows(tokens);
        if traits.scaled_embedding {
            x = (x * (self.width as f32).sqrt()).named(&net.at(traits.embedding).at("scaled"));
        }
        if traits.drops_embedding {
            x = net.at("dropout").dropout(self.dropout, x);
        }
        let mut routings = Vec::new();
        for layer in 0..self.layers {
            x = self.block(&net.at("layers"), (layer, x), earlier, &mut routings);
        }
        (table, x, routings)
    }

    /// The logits of a stream.
    fn output(&self, net: &Net, table: &EmbeddingTable, x: &Tensor) -> Tensor {
        let traits = self.family.traits();
        let x = self.norm(&net.at(traits.root).at(traits.last_norm), x);
        head(net, &x, table, self.tied)
    }
}

impl LanguageModel for LlamaConfig {
    fn name(&self) -> &'static str {
        self.family.name()
    }

    fn check(&self, batch: usize, time: usize) -> Result<(), ModelError> {
        self.check_sizes(batch, time)
    }

    fn check_cache(&self, capacity: usize) -> Result<(), ModelError> {
        self.check_sizes(1, capacity)?;
        self.check_window(capacity)
    }

    fn logits(&self, net: &Net, tokens: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor {
        let (table, x, _) = self.blocks(net, tokens, earlier);
        self.output(net, &table, &x)
    }

    fn hidden(
        &self,
        net: &Net,
        tokens: &Tensor,
        earlier: &mut Option<EarlierTokens>,
    ) -> (EmbeddingTable, Tensor) {
        let (table, x, _) = self.blocks(net, tokens, earlier);
        (table, x)
    }

    fn loss(&self, net: &Net, tokens: &Tensor, targets: &Tensor) -> Tensor {
        let (table, x, routings) = self.blocks(net, tokens, &mut None);
        let loss = self.output(net, &table, &x).cross_entropy(targets);
        let balance =
            self.experts.and_then(|experts| experts.balance_loss(&net.at("loss.balance"), &routings));
        match balance {
            Some(balance) => (loss.named(&net.at("loss.tokens")) + balance).named(&net.at("loss")),
            None => loss,
        }
    }
}
