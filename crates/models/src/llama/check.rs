//! What a configuration must satisfy, and what its family does not have.

use phalanx_ir::Activation;

use super::LlamaConfig;
use crate::check::Check;
use crate::{DecoderFamily, ModelError, RoutedExperts};

impl LlamaConfig {
    pub(super) fn check_sizes(&self, batch: usize, time: usize) -> Result<(), ModelError> {
        let check = Check(self.family.name());
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("kv_heads", self.kv_heads)])?;
        check.positive(&[("head_dim", self.head_dim), ("width", self.width), ("hidden", self.hidden)])?;
        check.positive(&[("vocab", self.vocab), ("context", self.context)])?;
        check.positive(&[("batch", batch), ("time", time)])?;
        check.layers(self.layers)?;
        let (rows, width) = ([("batch", batch), ("time", time)], ("width", self.width));
        let queries = ("heads x head_dim", self.heads.saturating_mul(self.head_dim));
        let experts = ("experts", self.experts.map_or(1, |experts| experts.count));
        for widest in [width, queries, ("hidden", self.hidden), ("vocab", self.vocab)] {
            check.bounded(&[rows[0], rows[1], widest])?;
            check.bounded(&[width, widest, ("layers", self.layers)])?;
        }
        check.bounded(&[width, ("hidden", self.hidden), ("layers", self.layers), experts])?;
        check.divides(("kv_heads", self.kv_heads), ("heads", self.heads))?;
        check.even("head_dim", self.head_dim)?;
        check.rate("dropout", self.dropout)?;
        check.above_zero("eps", self.eps)?;
        check.above_zero("rope_base", self.rope_base)?;
        self.check_family()?;
        check.fits(time, self.context)
    }

    /// Caches hold no more tokens than a window shows.
    pub(super) fn check_window(&self, time: usize) -> Result<(), ModelError> {
        let window = self.window.filter(|window| window.from < self.layers && window.size < time);
        match window {
            Some(window) => {
                Err(ModelError::BeyondWindow { model: self.family.name(), time, window: window.size })
            }
            None => Ok(()),
        }
    }

    /// Nothing is set that the family does not have, and what it fixes is as it says.
    fn check_family(&self) -> Result<(), ModelError> {
        let traits = self.family.traits();
        self.check_parts()?;
        for (field, value, fixed) in [
            ("attention_bias", self.attention_bias, traits.attention_bias),
            ("mlp_bias", self.mlp_bias, traits.mlp_bias),
        ] {
            if let Some(fixed) = fixed.filter(|fixed| *fixed != value) {
                return self.wrong(field, value, format!("it is always {fixed} in this family"));
            }
        }
        if !traits.free_heads && self.kv_heads != self.heads {
            let wanted = format!("this family has as many as the {} heads", self.heads);
            return self.wrong("kv_heads", self.kv_heads, wanted);
        }
        if !traits.free_heads && self.heads.checked_mul(self.head_dim) != Some(self.width) {
            let wanted = format!("all {} heads together must have the width {}", self.heads, self.width);
            return self.wrong("head_dim", self.head_dim, wanted);
        }
        if self.family == DecoderFamily::Gemma && self.activation == Activation::GeluErf {
            return self.wrong(
                "activation",
                "gelu",
                "transformers takes it for gelu_pytorch_tanh: use that".into(),
            );
        }
        Ok(())
    }

    /// The parts that only some families have.
    fn check_parts(&self) -> Result<(), ModelError> {
        let traits = self.family.traits();
        let absent = |field, value: Option<String>, has: bool| match value.filter(|_| !has) {
            Some(value) => self.wrong(field, value, "this family has none: leave it out".into()),
            None => Ok(()),
        };
        absent("window", self.window.map(|window| window.to_string()), traits.has_window)?;
        absent("rotary_dim", self.rotary_dim.map(|dim| dim.to_string()), traits.has_partial_rotary)?;
        let scaling = Some(self.rope_scaling).filter(|scaling| !scaling.is_none());
        absent("rope_scaling", scaling.map(|scaling| scaling.to_string()), traits.has_rope_scaling)?;
        absent("experts", self.experts.map(|experts| experts.to_string()), traits.has_experts)?;
        absent("parallel", self.parallel.then(|| "true".into()), traits.has_parallel)?;
        absent("padding", self.padding.map(|token| token.to_string()), traits.has_padding)?;
        let check = Check(self.family.name());
        if let Some(dim) = self.rotary_dim {
            check.positive(&[("rotary_dim", dim)])?;
            check.even("rotary_dim", dim)?;
            if dim > self.head_dim {
                return self.wrong("rotary_dim", dim, format!("use at most `head_dim` {}", self.head_dim));
            }
        }
        if let Some(token) = self.padding.filter(|&token| token >= self.vocab) {
            return self.wrong("padding", token, format!("use a token below `vocab` {}", self.vocab));
        }
        match self.experts {
            Some(experts) if !experts.is_legal() => {
                self.wrong("experts", experts, format!("use {}", RoutedExperts::FORM))
            }
            None if traits.has_experts => {
                self.wrong("experts", "absent", format!("use {}", RoutedExperts::FORM))
            }
            _ => Ok(()),
        }
    }

    fn wrong<T>(&self, field: &'static str, value: impl ToString, wanted: String) -> Result<T, ModelError> {
        Err(ModelError::Family { model: self.family.name(), field, value: value.to_string(), wanted })
    }
}
