//! Language models: the four graphs of one, from what it makes of tokens.

use phalanx_ir::graph::Graph;
use phalanx_ir::{Activation, Init, Shape};
use phalanx_nn::{EmbeddingTable, I64, Net, Tensor, build_evaluation, build_training};
use phalanx_ops::{Attention, CachedAttention, Linear};

use crate::{CachedGraph, ModelError};

/// A model that predicts the next token of a text.
pub trait LanguageModel {
    /// The name of its graphs.
    fn name(&self) -> &'static str;

    /// Checks that the sizes give a graph for `batch` texts of `time` tokens.
    fn check(&self, batch: usize, time: usize) -> Result<(), ModelError>;

    /// Checks that texts of `capacity` tokens can be generated one token after the other.
    fn check_cache(&self, capacity: usize) -> Result<(), ModelError> {
        self.check(1, capacity)
    }

    /// A logit for each token that may come next, `[batch, time, vocab]`.
    fn logits(&self, net: &Net, tokens: &Tensor, earlier: &mut Option<EarlierTokens>) -> Tensor;

    /// The table of token embeddings, and the residual stream behind the last block.
    fn hidden(
        &self,
        net: &Net,
        tokens: &Tensor,
        earlier: &mut Option<EarlierTokens>,
    ) -> (EmbeddingTable, Tensor);

    /// What is minimized: a scalar called `loss`.
    fn loss(&self, net: &Net, tokens: &Tensor, targets: &Tensor) -> Tensor {
        self.logits(net, tokens, &mut None).cross_entropy(targets)
    }

    /// The step to train; see [`crate::ModelConfig::training_graph`].
    fn training_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        let model = |net: &Net| {
            let (tokens, targets) = (net.tokens("tokens", time), net.tokens("targets", time));
            self.loss(net, &tokens, &targets)
        };
        Ok(build_training(self.name(), batch, model)?.graph)
    }

    /// The model alone; see [`crate::ModelConfig::logits_graph`].
    fn logits_graph(&self, batch: usize, time: usize) -> Result<Graph, ModelError> {
        self.check(batch, time)?;
        let model = |net: &Net| self.logits(net, &net.tokens("tokens", time), &mut None);
        Ok(build_evaluation(self.name(), batch, model)?.graph)
    }

    /// One more token; see [`crate::ModelConfig::decode_graph`].
    fn decode_graph(&self, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check_cache(capacity)?;
        cached_graph(self.name(), [1, capacity], |net, tokens, earlier| {
            Some(self.logits(net, tokens, earlier))
        })
    }

    /// More tokens; see [`crate::ModelConfig::prefill_graph`].
    fn prefill_graph(&self, time: usize, capacity: usize) -> Result<CachedGraph, ModelError> {
        self.check(1, time)?;
        self.check_cache(capacity)?;
        cached_graph(self.name(), [time, capacity], |net, tokens, earlier| {
            self.hidden(net, tokens, earlier);
            None
        })
    }
}

/// Tokens whose keys and values were computed in earlier passes.
pub struct EarlierTokens {
    /// The positions of the tokens of this pass, as an input.
    pub(crate) positions: Tensor,
    /// How many tokens are earlier, as an input.
    past: Tensor,
    /// Rows of a cache.
    capacity: usize,
    /// What this pass computes for which cache.
    rows: Vec<(Tensor, String)>,
}

impl EarlierTokens {
    /// The cache `name` of an attention layer for rows such as these.
    fn cache(&mut self, net: &Net, name: &str, rows: &Tensor) -> Tensor {
        let shape = Shape::new(rows.dims()).with(1, self.capacity);
        self.rows.push((rows.clone(), net.at(name).path().to_string()));
        net.param(name, shape, Init::Zeros)
    }
}

/// Adds causal attention and joins its heads again. A position sees the last `window` ones, if there is a window, which
/// caches never exceed.
pub(crate) fn attend(
    net: &Net,
    [query, key, value]: [Tensor; 3],
    earlier: &mut Option<EarlierTokens>,
    window: Option<usize>,
) -> Tensor {
    let scale = 1.0 / (query.last() as f32).sqrt();
    let heads = match earlier {
        None => {
            // A window that hides nothing is left out: plain attention is faster.
            let window = window.filter(|&window| window < key.dims()[1]).unwrap_or(0);
            let attention = Attention { window, ..Attention::new(true, scale) };
            net.at("heads").apply(attention, &[&query, &key, &value])
        }
        Some(earlier) => {
            let keys = earlier.cache(net, "past_keys", &key);
            let values = earlier.cache(net, "past_values", &value);
            let operands = [&query, &key, &value, &keys, &values, &earlier.past];
            net.at("heads").apply(CachedAttention { scale }, &operands)
        }
    };
    heads.merge_heads().named(&net.at("merged"))
}

/// Adds the output head, called `logits`: tied to the embedding table, or with a `lm_head.weight` of its own.
pub(crate) fn head(net: &Net, x: &Tensor, table: &EmbeddingTable, tied: bool) -> Tensor {
    let weight = match tied {
        true => table.weight().clone(),
        false => net.at("lm_head").param("weight", table.weight().dims(), Init::Normal(0.02)),
    };
    let linear = Linear { transposed: false, activation: Activation::None };
    net.at("logits").apply(linear, &[x, &weight])
}

/// A language model as a graph that goes on from cached keys and values; it returns what `layers` returns, if anything,
/// and the keys and values of its own tokens.
fn cached_graph(
    name: &str,
    [time, capacity]: [usize; 2],
    layers: impl FnOnce(&Net, &Tensor, &mut Option<EarlierTokens>) -> Option<Tensor>,
) -> Result<CachedGraph, ModelError> {
    let mut names = Vec::new();
    let model = |net: &Net| -> Vec<Tensor> {
        let (tokens, positions) = (net.tokens("tokens", time), net.tokens("positions", time));
        let past = net.input("past", I64, [1]);
        let mut earlier = Some(EarlierTokens { positions, past, capacity, rows: Vec::new() });
        let result = layers(net, &tokens, &mut earlier);
        let (rows, caches): (Vec<Tensor>, Vec<String>) =
            earlier.map(|earlier| earlier.rows).unwrap_or_default().into_iter().unzip();
        names = caches;
        result.into_iter().chain(rows).collect()
    };
    let graph = build_evaluation(name, 1, model)?.graph;
    let first = graph.outputs().len() - names.len();
    let rows = graph.outputs()[first..].iter().map(|&rows| graph.values()[rows].name.clone());
    Ok(CachedGraph { caches: rows.zip(names).collect(), graph })
}
