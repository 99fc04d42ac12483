//! Layers that own parameters, shared by the families. Each result is named by its module path.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, Binary, DType, Init, Op, Shape, TensorType};
use phalanx_ops::{Attention, CachedAttention, Dropout, Embedding, LayerNorm, Layers, RmsNorm};

use crate::{CachedGraph, IGNORE_LABEL, ModelError};

/// How a model is passed through.
#[derive(Default)]
pub(crate) struct Pass {
    /// Probability of zeroing an element.
    pub(crate) dropout: f32,
    /// What stands before the tokens, if they do not begin a text.
    pub(crate) earlier: Option<EarlierTokens>,
}

/// Tokens whose keys and values were computed in earlier passes.
pub(crate) struct EarlierTokens {
    /// The positions of the tokens of this pass, as an input.
    pub(crate) positions: ValueId,
    /// How many tokens are earlier, as an input.
    past: ValueId,
    /// Rows of a cache.
    capacity: usize,
    /// What this pass computes for which cache.
    rows: Vec<(ValueId, String)>,
}

impl EarlierTokens {
    /// The caches of an attention layer for rows such as these keys and values.
    fn caches(
        &mut self,
        model: &mut Builder,
        name: &str,
        rows: [ValueId; 2],
    ) -> Result<[ValueId; 2], BuildError> {
        let mut caches = rows;
        for (cache, word) in caches.iter_mut().zip(["keys", "values"]) {
            let (rows, name) = (*cache, format!("{name}.past_{word}"));
            let shape = model.shape(rows).with(1, self.capacity);
            *cache = model.param(&name, shape, Init::Zeros)?;
            self.rows.push((rows, name));
        }
        Ok(caches)
    }
}

/// A linear layer to be added.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    /// Features of the result.
    pub(crate) outputs: usize,
    /// The weight is stored `[in, out]`.
    pub(crate) transposed: bool,
    /// How the weight starts.
    pub(crate) init: Init,
    /// How the bias starts, if there is one.
    pub(crate) bias: Option<Init>,
    /// Applied to the result.
    pub(crate) activation: Activation,
}

impl Linear {
    /// Adds parameters `module.weight` and `module.bias` and the layer `module`.
    pub(crate) fn add(&self, model: &mut Builder, module: &str, x: ValueId) -> Result<ValueId, BuildError> {
        self.add_as(model, module, module, x)
    }

    /// The same with another name for the result.
    pub(crate) fn add_as(
        &self,
        model: &mut Builder,
        module: &str,
        name: &str,
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let inputs = model.shape(x).last();
        let shape = if self.transposed { [inputs, self.outputs] } else { [self.outputs, inputs] };
        let mut operands = vec![x, model.param(&format!("{module}.weight"), shape, self.init)?];
        if let Some(init) = self.bias {
            operands.push(model.param(&format!("{module}.bias"), [self.outputs], init)?);
        }
        let op = Op::from(phalanx_ops::Linear { transposed: self.transposed, activation: self.activation });
        model.add_one(name, op, &operands)
    }

    /// This layer with an activation.
    pub(crate) fn then(self, activation: Activation) -> Self {
        Linear { activation, ..self }
    }

    /// This layer with this many output features.
    pub(crate) fn to(self, outputs: usize) -> Self {
        Linear { outputs, ..self }
    }
}

/// Adds a layer normalization with scale and shift.
pub(crate) fn layer_norm(
    model: &mut Builder,
    name: &str,
    x: ValueId,
    eps: f32,
) -> Result<ValueId, BuildError> {
    let width = model.shape(x).last();
    let gamma = model.param(&format!("{name}.weight"), [width], Init::Ones)?;
    let beta = model.param(&format!("{name}.bias"), [width], Init::Zeros)?;
    model.add_one(name, Op::from(LayerNorm { axes: 1, eps }), &[x, gamma, beta])
}

/// Adds a root-mean-square normalization with scale.
pub(crate) fn rms_norm(model: &mut Builder, name: &str, x: ValueId, eps: f32) -> Result<ValueId, BuildError> {
    let width = model.shape(x).last();
    let gamma = model.param(&format!("{name}.weight"), [width], Init::Ones)?;
    model.add_one(name, Op::from(RmsNorm { eps }), &[x, gamma])
}

/// Adds dropout; a rate of zero adds nothing.
pub(crate) fn dropout(model: &mut Builder, name: &str, x: ValueId, rate: f32) -> Result<ValueId, BuildError> {
    if rate == 0.0 {
        return Ok(x);
    }
    model.add_one(name, Op::from(Dropout { rate }), &[x])
}

/// Adds `a + b`.
pub(crate) fn add(model: &mut Builder, name: &str, a: ValueId, b: ValueId) -> Result<ValueId, BuildError> {
    model.binary(name, Binary::Add, a, b)
}

/// Cuts the innermost dimension of `[batch, time, heads * dim]` into heads.
pub(crate) fn split_heads(
    model: &mut Builder,
    name: &str,
    x: ValueId,
    dim: usize,
) -> Result<ValueId, BuildError> {
    let shape = model.shape(x);
    let (outer, width) = (shape.dims()[..shape.rank() - 1].to_vec(), shape.last());
    let dims = [outer, vec![width / dim, dim]].concat();
    model.reshape(name, x, Shape::new(dims))
}

/// Adds causal attention and joins its heads again.
pub(crate) fn attend(
    model: &mut Builder,
    name: &str,
    [query, key, value]: [ValueId; 3],
    pass: &mut Pass,
) -> Result<ValueId, BuildError> {
    let dims = model.shape(query).dims().to_vec();
    let scale = 1.0 / (model.shape(query).last() as f32).sqrt();
    let (op, operands) = match &mut pass.earlier {
        None => (Op::from(Attention::new(true, scale)), vec![query, key, value]),
        Some(earlier) => {
            let [keys, values] = earlier.caches(model, name, [key, value])?;
            (Op::from(CachedAttention { scale }), vec![query, key, value, keys, values, earlier.past])
        }
    };
    let heads = model.add_one(&format!("{name}.heads"), op, &operands)?;
    model.reshape(&format!("{name}.merged"), heads, [dims[0], dims[1], dims[2] * dims[3]])
}

/// The table of token embeddings, and its rows for the tokens, called `module`.
pub(crate) fn embed_tokens(
    model: &mut Builder,
    module: &str,
    tokens: ValueId,
    table: [usize; 2],
) -> Result<(ValueId, ValueId), BuildError> {
    let weight = model.param(&format!("{module}.weight"), table, Init::Normal(0.02))?;
    let rows = model.add_one(module, Op::from(Embedding { bag: false, padding: None }), &[tokens, weight])?;
    Ok((weight, rows))
}

/// Adds the output head, called `logits`: tied to the embedding table, or with a `lm_head.weight` of its own.
pub(crate) fn head(
    model: &mut Builder,
    x: ValueId,
    table: ValueId,
    tied: bool,
) -> Result<ValueId, BuildError> {
    let weight = match tied {
        true => table,
        false => {
            let shape = model.shape(table).clone();
            model.param("lm_head.weight", shape, Init::Normal(0.02))?
        }
    };
    model.linear("logits", x, weight, None)
}

/// A language model as a graph that returns its mean cross-entropy `loss`.
pub(crate) fn training_graph(
    name: &str,
    [batch, time]: [usize; 2],
    logits: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId, BuildError>,
) -> Result<Graph, ModelError> {
    let mut model = Builder::new(name);
    let tokens = model.input("tokens", TensorType::new(DType::I64, [batch, time]))?;
    let targets = model.input("targets", TensorType::new(DType::I64, [batch, time]))?;
    let logits = logits(&mut model, tokens)?;
    let loss = model.cross_entropy("loss", logits, targets, IGNORE_LABEL)?;
    Ok(model.finish([loss]))
}

/// A language model as a graph that returns its `logits`.
pub(crate) fn logits_graph(
    name: &str,
    [batch, time]: [usize; 2],
    logits: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId, BuildError>,
) -> Result<Graph, ModelError> {
    let mut model = Builder::new(name);
    let tokens = model.input("tokens", TensorType::new(DType::I64, [batch, time]))?;
    let logits = logits(&mut model, tokens)?;
    Ok(model.finish([logits]))
}

/// A language model as a graph that goes on from cached keys and values; it returns what `layers` returns, if anything,
/// and the keys and values of its own tokens.
pub(crate) fn cached_graph(
    name: &str,
    [time, capacity]: [usize; 2],
    layers: impl FnOnce(&mut Builder, ValueId, &mut Pass) -> Result<Option<ValueId>, BuildError>,
) -> Result<CachedGraph, ModelError> {
    let mut model = Builder::new(name);
    let [tokens, positions] =
        ["tokens", "positions"].map(|name| model.input(name, TensorType::new(DType::I64, [1, time])));
    let past = model.input("past", TensorType::new(DType::I64, [1]))?;
    let earlier = EarlierTokens { positions: positions?, past, capacity, rows: Vec::new() };
    let mut pass = Pass { dropout: 0.0, earlier: Some(earlier) };
    let result = layers(&mut model, tokens?, &mut pass)?;
    let rows = pass.earlier.map(|earlier| earlier.rows).unwrap_or_default();
    let outputs: Vec<ValueId> = result.into_iter().chain(rows.iter().map(|(rows, _)| *rows)).collect();
    let graph = model.finish(outputs);
    let caches = rows.into_iter().map(|(rows, cache)| (graph.values()[rows].name.clone(), cache)).collect();
    Ok(CachedGraph { graph, caches })
}
