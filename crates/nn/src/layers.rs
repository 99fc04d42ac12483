//! Layers with parameters. Their names are those of PyTorch: `weight` and `bias` at the place of the layer.

use phalanx_ir::{Activation, Init};
use phalanx_ops::{Dropout, Embedding, LayerNorm, Linear, RmsNorm, Split};

use crate::{Net, Tensor};

/// A linear layer: its features, and what is not as usual. A number stands for the features alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Features of the result.
    pub features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Applied to the result.
    pub activation: Activation,
    /// Whether the weight is stored `[in, out]`, as GPT-2 has it, instead of `[out, in]`.
    pub transposed: bool,
}

impl Dense {
    /// With a bias and no activation, the weight stored `[out, in]`.
    pub fn new(features: usize) -> Self {
        Dense { features, bias: true, activation: Activation::None, transposed: false }
    }

    /// Whether there is a bias.
    #[must_use]
    pub fn bias(self, bias: bool) -> Self {
        Dense { bias, ..self }
    }

    /// With an activation.
    #[must_use]
    pub fn then(self, activation: Activation) -> Self {
        Dense { activation, ..self }
    }

    /// With the weight stored `[in, out]`.
    #[must_use]
    pub fn transposed(self) -> Self {
        Dense { transposed: true, ..self }
    }
}

impl From<usize> for Dense {
    fn from(features: usize) -> Self {
        Dense::new(features)
    }
}

/// Layers with parameters.
impl Net {
    /// x · weightᵀ + bias over the innermost dimension. Both start uniform within 1/√inputs, as in PyTorch.
    #[track_caller]
    pub fn linear(&self, x: &Tensor, layer: impl Into<Dense>) -> Tensor {
        let Dense { features, bias, activation, transposed } = layer.into();
        let inputs = x.last();
        let usual = Init::Uniform(1.0 / (inputs as f32).sqrt());
        let shape = if transposed { [inputs, features] } else { [features, inputs] };
        let weight = self.param("weight", shape, self.weight_init(usual));
        let bias = match bias {
            true => Some(self.param("bias", [features], self.bias_init(usual))),
            false => None,
        };
        let operands: Vec<&Tensor> = [x, &weight].into_iter().chain(&bias).collect();
        self.apply(Linear { transposed, activation }, &operands)
    }

    /// Normalizes the innermost dimension to mean 0 and variance 1, with scale and shift; `eps` is 1e-5.
    #[track_caller]
    pub fn layer_norm(&self, x: &Tensor) -> Tensor {
        self.layer_norm_with(x, 1e-5)
    }

    /// The same with another `eps`, which is added to variances.
    #[track_caller]
    pub fn layer_norm_with(&self, x: &Tensor, eps: f32) -> Tensor {
        let width = [x.last()];
        let (scale, shift) =
            (self.param("weight", width, Init::Ones), self.param("bias", width, Init::Zeros));
        self.apply(LayerNorm { axes: 1, eps }, &[x, &scale, &shift])
    }

    /// Normalizes the innermost dimension to mean square 1, with scale; `eps` is 1e-5.
    #[track_caller]
    pub fn rms_norm(&self, x: &Tensor) -> Tensor {
        self.rms_norm_with(x, 1e-5)
    }

    /// The same with another `eps`, which is added to mean squares.
    #[track_caller]
    pub fn rms_norm_with(&self, x: &Tensor, eps: f32) -> Tensor {
        let scale = self.param("weight", [x.last()], Init::Ones);
        self.apply(RmsNorm { eps }, &[x, &scale])
    }

    /// Zeroes elements with probability `rate` in training and divides the others by 1 - `rate`; else x itself. The mask
    /// depends on the name of the place, the seed and the step.
    #[track_caller]
    pub fn dropout(&self, rate: f32, x: impl Into<Tensor>) -> Tensor {
        let x = x.into();
        if rate == 0.0 || !self.training() {
            return x;
        }
        self.apply(Dropout { rate }, &[&x])
    }

    /// A table of `entries` rows of `width` numbers, which start normal with deviation 1, as in PyTorch.
    #[track_caller]
    pub fn embedding(&self, entries: usize, width: usize) -> EmbeddingTable {
        let weight = self.param("weight", [entries, width], self.weight_init(Init::Normal(1.0)));
        EmbeddingTable { net: self.clone(), weight, padding: None }
    }
}

impl From<&Tensor> for Tensor {
    fn from(tensor: &Tensor) -> Self {
        tensor.clone()
    }
}

/// A trained table whose rows stand for ids; also the weight of an output head that is tied to it.
#[derive(Clone)]
pub struct EmbeddingTable {
    net: Net,
    weight: Tensor,
    padding: Option<i64>,
}

impl EmbeddingTable {
    /// The table, `[entries, width]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The same table, whose row for an id gets no gradient where it is looked up, and is left out of bags.
    #[must_use]
    pub fn padding(self, id: Option<usize>) -> Self {
        EmbeddingTable { padding: id.map(|id| id as i64), ..self }
    }

    /// The same table; what is looked up in it is called by another place.
    #[must_use]
    pub fn at(&self, place: &Net) -> Self {
        EmbeddingTable { net: place.clone(), ..self.clone() }
    }

    /// The rows of ids: `[..]` gives `[.., width]`.
    #[track_caller]
    pub fn rows(&self, ids: &Tensor) -> Tensor {
        self.net.apply(Embedding { bag: false, padding: self.padding }, &[ids, &self.weight])
    }

    /// The sums of the rows of the innermost ids: `[.., bag]` gives `[.., width]`.
    #[track_caller]
    pub fn bags(&self, ids: &Tensor) -> Tensor {
        self.net.apply(Embedding { bag: true, padding: self.padding }, &[ids, &self.weight])
    }

    /// The first rows, such as those of the positions of a text.
    #[track_caller]
    pub fn first(&self, count: usize) -> Tensor {
        let entries = self.weight.dims()[0];
        if self.weight.id.is_none() || count == entries {
            return self.weight.clone();
        }
        if count == 0 || count > entries {
            return self.weight.wrong(format!(
                "{count} rows of a table of {entries}: use 1 to {entries}, or a larger table"
            ));
        }
        let cut = Split { axis: 0, sizes: vec![count, entries - count], blocks: 1 };
        self.net.apply_many(cut, &[&self.weight], 2).swap_remove(0)
    }

    /// A logit for each entry: x · tableᵀ.
    #[track_caller]
    pub fn logits(&self, x: &Tensor) -> Tensor {
        let head = Linear { transposed: false, activation: Activation::None };
        self.net.at("logits").apply(head, &[x, &self.weight])
    }
}
