//! How many numbers are trained.

use super::LlamaConfig;
use crate::family::{HeadNorm, NormKind};

impl LlamaConfig {
    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let traits = self.family.traits();
        let width = self.width as u64;
        // A layer norm has a shift beside its scale.
        let norm = if traits.norm == NormKind::Layer { 2 * width } else { width };
        let tables = self.vocab as u64 * width * if self.tied { 1 } else { 2 };
        let block = self.attention_parameters() + self.feed_forward_parameters() + 2 * norm;
        self.layers as u64 * block + norm + tables
    }

    fn attention_parameters(&self) -> u64 {
        let traits = self.family.traits();
        let [width, dim] = [self.width, self.head_dim].map(|size| size as u64);
        let [query, key] = [self.heads, self.kv_heads].map(|heads| heads as u64 * dim);
        let output_bias = u64::from(traits.output_bias) * width;
        let norms = match traits.head_norm {
            HeadNorm::Absent => 0,
            HeadNorm::EachHead => 2 * dim,
            HeadNorm::AllHeads => query + key,
        };
        2 * width * (query + key) + u64::from(self.attention_bias) * (query + 2 * key + output_bias) + norms
    }

    fn feed_forward_parameters(&self) -> u64 {
        let [width, hidden] = [self.width, self.hidden].map(|size| size as u64);
        let wide = if self.family.traits().gated { 2 } else { 1 };
        let one = (wide + 1) * width * hidden + u64::from(self.mlp_bias) * (wide * hidden + width);
        self.experts.map_or(one, |experts| experts.count as u64 * (one + width))
    }
}
