//! The model that a configuration describes.

use super::{ConfigError, TrainConfig};
use crate::models::ModelConfig;

/// Most hidden layers of an mlp: as many as other models may have.
const MAX_MLP_LAYERS: usize = 16384;

impl TrainConfig {
    /// The model for a vocabulary.
    pub fn build_model(&self, vocab: usize) -> Result<ModelConfig, ConfigError> {
        self.validate()?;
        let mut model = ModelConfig::preset(&self.model, &self.size)?.with_vocab(vocab);
        match &mut model {
            ModelConfig::Gpt2(model) => {
                if let Some(kv_heads) = self.kv_heads {
                    return self.field(
                        "kv_heads",
                        &kv_heads,
                        "only llama has them: leave it out or use model llama",
                    );
                }
                set(&mut model.layers, self.layers);
                set(&mut model.heads, self.heads);
                if let Some(width) = self.width {
                    (model.width, model.hidden) = (width, width.saturating_mul(4));
                }
                model.dropout = self.dropout;
            }
            ModelConfig::Llama(model) => {
                let grouped = model.heads / model.kv_heads.max(1);
                set(&mut model.layers, self.layers);
                set(&mut model.heads, self.heads);
                model.kv_heads = self.kv_heads.unwrap_or_else(|| (model.heads / grouped).max(1));
                if let Some(width) = self.width {
                    (model.hidden, model.width) = (model.hidden.saturating_mul(width) / model.width, width);
                }
                model.head_dim = model.width / model.heads.max(1);
                model.dropout = self.dropout;
            }
            ModelConfig::Mlp(model) => {
                self.check_mlp()?;
                let width = self.width.or(model.hidden.first().copied()).unwrap_or(model.inputs);
                model.hidden = vec![width; self.layers.unwrap_or(model.hidden.len())];
            }
        }
        Ok(match self.context {
            Some(context) => model.with_context(context),
            None => model,
        })
    }

    /// What only a model of text has is not set.
    fn check_mlp(&self) -> Result<(), ConfigError> {
        let set = [("heads", self.heads), ("kv_heads", self.kv_heads), ("context", self.context)];
        for (name, value) in set {
            if let Some(value) = value {
                return self.field(name, &value, "an mlp has none: leave it out or use gpt2 or llama");
            }
        }
        if let Some(layers) = self.layers.filter(|&layers| layers > MAX_MLP_LAYERS) {
            return self.field("layers", &layers, "use at most 16384");
        }
        if self.dropout > 0.0 {
            return self.field(
                "dropout",
                &self.dropout,
                "an mlp has none: leave it out or use gpt2 or llama",
            );
        }
        Ok(())
    }

    /// The model of text for a vocabulary.
    pub fn language_model(&self, vocab: usize) -> Result<ModelConfig, ConfigError> {
        let model = self.build_model(vocab)?;
        match model.vocab() {
            Some(_) => Ok(model),
            None => self.field(
                "model",
                &self.model,
                "it reads no text: use gpt2 or llama (train an mlp with the library)",
            ),
        }
    }

    /// The sequence length for a model.
    pub fn context_of(&self, model: &ModelConfig) -> usize {
        self.context.or(model.context()).unwrap_or(1)
    }
}

fn set(size: &mut usize, given: Option<usize>) {
    if let Some(given) = given {
        *size = given;
    }
}
