//! Attention of a sequence to itself.

use phalanx_ir::RopeScaling;
use phalanx_ops::{Attention, Rotary};

use crate::{Dense, Net, Tensor};

/// Self-attention: its heads, and what is not as usual. A number stands for the heads alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; they divide `heads`.
    pub kv_heads: usize,
    /// Features of a head; those of the input divided by `heads` if absent.
    pub head_dim: Option<usize>,
    /// Whether a position sees no later one.
    pub causal: bool,
    /// The base of rotary positions, if there are any.
    pub rotary: Option<f32>,
    /// What becomes of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether the four projections have biases.
    pub bias: bool,
}

impl SelfAttention {
    /// Causal, as many heads of keys and values as of queries, no rotary positions, with biases.
    pub fn new(heads: usize) -> Self {
        SelfAttention {
            heads,
            kv_heads: heads,
            head_dim: None,
            causal: true,
            rotary: None,
            rope_scaling: RopeScaling::None,
            bias: true,
        }
    }

    /// Every position sees every other one.
    #[must_use]
    pub fn bidirectional(self) -> Self {
        SelfAttention { causal: false, ..self }
    }

    /// Fewer heads of keys and values.
    #[must_use]
    pub fn kv_heads(self, kv_heads: usize) -> Self {
        SelfAttention { kv_heads, ..self }
    }

    /// Rotary positions with this base, such as 10000.
    #[must_use]
    pub fn rotary(self, base: f32) -> Self {
        SelfAttention { rotary: Some(base), ..self }
    }

    /// Whether the four projections have biases.
    #[must_use]
    pub fn bias(self, bias: bool) -> Self {
        SelfAttention { bias, ..self }
    }
}

impl From<usize> for SelfAttention {
    fn from(heads: usize) -> Self {
        SelfAttention::new(heads)
    }
}

impl Net {
    /// Attention of `[batch, time, width]` to itself, with the projections `q`, `k`, `v` and `proj`.
    #[track_caller]
    pub fn attention(&self, x: &Tensor, layer: impl Into<SelfAttention>) -> Tensor {
        let layer = layer.into();
        let (width, heads) = (x.last(), layer.heads);
        let dim = match layer.head_dim {
            Some(dim) => dim,
            None if x.id.is_some() && (heads == 0 || !width.is_multiple_of(heads)) => {
                return x.wrong(format!(
                    "attention at `{}`: {heads} heads do not divide the width {width}: choose a divisor, or set head_dim",
                    self.path()
                ));
            }
            None => width / heads.max(1),
        };
        let (bias, kv) = (layer.bias, layer.kv_heads * dim);
        let q = self.at("q").linear(x, Dense::new(heads * dim).bias(bias)).split_heads(dim);
        let k = self.at("k").linear(x, Dense::new(kv).bias(bias)).split_heads(dim);
        let v = self.at("v").linear(x, Dense::new(kv).bias(bias)).split_heads(dim);
        let (q, k) = (self.at("query").turned(q, &layer), self.at("key").turned(k, &layer));
        let scale = 1.0 / (dim as f32).sqrt();
        let attended = self.at("heads").apply(Attention::new(layer.causal, scale), &[&q, &k, &v]);
        let merged = attended.merge_heads().named(&self.at("merged"));
        self.at("proj").linear(&merged, Dense::new(width).bias(bias))
    }

    /// `x` turned by its positions, if the layer does that.
    #[track_caller]
    fn turned(&self, x: Tensor, layer: &SelfAttention) -> Tensor {
        match layer.rotary {
            Some(base) => self.apply(Rotary { base, scaling: layer.rope_scaling }, &[&x]),
            None => x,
        }
    }
}

/// Heads.
impl Tensor {
    /// `[.., heads · dim]` as `[.., heads, dim]`.
    #[track_caller]
    pub fn split_heads(&self, dim: usize) -> Tensor {
        let mut dims = self.dims();
        let width = dims.pop().unwrap_or(1);
        dims.extend([width / dim.max(1), dim]);
        if self.id.is_none() { self.clone() } else { self.reshape(dims) }
    }

    /// `[.., heads, dim]` as `[.., heads · dim]`.
    #[track_caller]
    pub fn merge_heads(&self) -> Tensor {
        let mut dims = self.dims();
        let (dim, heads) = (dims.pop().unwrap_or(1), dims.pop().unwrap_or(1));
        dims.push(heads * dim);
        if self.id.is_none() { self.clone() } else { self.reshape(dims) }
    }
}
