//! The model that a configuration describes.

use std::str::FromStr;

use phalanx_ir::{Activation, RopeScaling};

use super::{ConfigError, TrainConfig};
use crate::models::{LlamaConfig, ModelConfig, RoutedExperts, SlidingWindow};
use crate::{Error, hf};

/// Sizes of every model.
const SIZES: [&str; 2] = ["layers", "width"];
/// Sizes that only models of text have.
const TEXT_SIZES: [&str; 7] = ["heads", "positions", "vocab", "hidden", "activation", "norm_eps", "tied"];
/// Sizes that only llama and the families like it have.
const LLAMA_SIZES: [&str; 11] = [
    "kv_heads",
    "head_dim",
    "rope_theta",
    "rope_scaling",
    "rotary_dim",
    "window",
    "experts",
    "parallel_residual",
    "padding",
    "attention_bias",
    "mlp_bias",
];

/// Most hidden layers of an mlp: as many as other models may have.
const MAX_MLP_LAYERS: usize = 16384;

impl TrainConfig {
    /// The model for a vocabulary.
    pub fn build_model(&self, vocab: usize) -> Result<ModelConfig, ConfigError> {
        self.validate()?;
        let vocab = match self.vocab {
            Some(known) if known < vocab => {
                let wanted = format!(
                    "the data has {vocab} tokens: use at least as many, or the model's own tokenizer"
                );
                return self.field("vocab", &known, &wanted);
            }
            known => known.unwrap_or(vocab),
        };
        if let Some(choice) = self.zoo_choice()? {
            return Ok(ModelConfig::Zoo(choice));
        }
        self.refuse(&["sizes"], "models of text have a flag for each size: leave it out")?;
        let mut model = ModelConfig::preset(&self.model, &self.size)?.with_vocab(vocab);
        match &mut model {
            ModelConfig::Gpt2(model) => {
                self.check_gpt2()?;
                set(&mut model.layers, self.layers);
                set(&mut model.heads, self.heads);
                if let Some(width) = self.width {
                    (model.width, model.hidden) = (width, width.saturating_mul(4));
                }
                set(&mut model.hidden, self.hidden);
                set(&mut model.eps, self.norm_eps);
                set(&mut model.tied, self.tied);
                set(&mut model.activation, self.parse_activation()?);
                model.dropout = self.dropout;
            }
            ModelConfig::Llama(model) => self.size_llama(model)?,
            ModelConfig::Mlp(model) => {
                self.check_mlp()?;
                let width = self.width.or(model.hidden.first().copied()).unwrap_or(model.inputs);
                model.hidden = vec![width; self.layers.unwrap_or(model.hidden.len())];
            }
            ModelConfig::Zoo(_) => {}
        }
        Ok(match self.positions.or(self.context) {
            Some(positions) => model.with_context(positions),
            None => model,
        })
    }

    fn size_llama(&self, model: &mut LlamaConfig) -> Result<(), ConfigError> {
        let grouped = model.heads / model.kv_heads.max(1);
        set(&mut model.layers, self.layers);
        set(&mut model.heads, self.heads);
        model.kv_heads = self.kv_heads.unwrap_or_else(|| (model.heads / grouped.max(1)).max(1));
        if let Some(width) = self.width {
            (model.hidden, model.width) = (model.hidden.saturating_mul(width) / model.width, width);
        }
        let before = model.head_dim;
        if self.width.or(self.heads).is_some() {
            model.head_dim = model.width / model.heads.max(1);
        }
        set(&mut model.head_dim, self.head_dim);
        // As large a share of a head as before, in pairs.
        let share = |dim: usize| (dim.saturating_mul(model.head_dim) / before / 2 * 2).max(2);
        let turned = self.rotary_dim.or(model.rotary_dim.map(share));
        model.rotary_dim = turned.filter(|&dim| dim != model.head_dim);
        set(&mut model.hidden, self.hidden);
        set(&mut model.eps, self.norm_eps);
        set(&mut model.rope_base, self.rope_theta);
        set(&mut model.rope_scaling, self.parsed("rope_scaling", &self.rope_scaling, RopeScaling::FORMS)?);
        model.window = self.parsed("window", &self.window, SlidingWindow::FORM)?.or(model.window);
        model.experts = self.parsed("experts", &self.experts, RoutedExperts::FORM)?.or(model.experts);
        set(&mut model.parallel, self.parallel_residual);
        model.padding = self.padding.or(model.padding);
        set(&mut model.attention_bias, self.attention_bias);
        set(&mut model.mlp_bias, self.mlp_bias);
        set(&mut model.tied, self.tied);
        set(&mut model.activation, self.parse_activation()?);
        model.dropout = self.dropout;
        Ok(())
    }

    /// The same run with this model: every size of it is set.
    #[must_use]
    pub fn with_model(self, model: &ModelConfig) -> TrainConfig {
        let (positions, vocab) = (model.context(), model.vocab());
        let config = TrainConfig { model: model.family().into(), positions, vocab, ..self };
        match model {
            ModelConfig::Gpt2(model) => TrainConfig {
                layers: Some(model.layers),
                heads: Some(model.heads),
                width: Some(model.width),
                hidden: Some(model.hidden),
                activation: Some(hf::activation_name(model.activation).into()),
                norm_eps: Some(model.eps),
                tied: Some(model.tied),
                dropout: model.dropout,
                ..config
            },
            ModelConfig::Llama(model) => TrainConfig {
                layers: Some(model.layers),
                heads: Some(model.heads),
                kv_heads: Some(model.kv_heads),
                width: Some(model.width),
                hidden: Some(model.hidden),
                head_dim: Some(model.head_dim),
                activation: Some(hf::activation_name(model.activation).into()),
                norm_eps: Some(model.eps),
                rope_theta: Some(model.rope_base),
                rope_scaling: (!model.rope_scaling.is_none()).then(|| model.rope_scaling.to_string()),
                rotary_dim: model.family.turns_partly().then(|| model.rotary_dim.unwrap_or(model.head_dim)),
                window: model.window.map(|window| window.to_string()),
                experts: model.experts.map(|experts| experts.to_string()),
                parallel_residual: Some(model.parallel).filter(|_| !model.family.is_llama()),
                padding: model.padding,
                attention_bias: Some(model.attention_bias),
                mlp_bias: Some(model.mlp_bias),
                tied: Some(model.tied),
                dropout: model.dropout,
                ..config
            },
            ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => config,
        }
    }

    /// Takes sizes and, for data, the tokenizer from the directory `hf`, if it is set. A size that is given must be that of
    /// the directory.
    pub fn with_pretrained(self) -> Result<TrainConfig, Error> {
        let Some(dir) = self.hf.clone() else { return Ok(self) };
        let model = match hf::read_config(&dir)? {
            ModelConfig::Zoo(choice) => return self.with_zoo(&choice, &dir),
            model => model.with_dropout(self.dropout),
        };
        let sized = self.clone().with_model(&model);
        let given = self.clone().spelled()?;
        for name in [&SIZES[..], &TEXT_SIZES, &LLAMA_SIZES].concat() {
            let (given, found) = (given.value(name), sized.value(name));
            if let Some(given) = given.filter(|given| Some(given) != found.as_ref()) {
                let found = found.unwrap_or_else(|| "no such size".into());
                let wanted = format!("the model in {} has {found}: leave it out", dir.display());
                return Ok(self.field(name, &given, &wanted)?);
            }
        }
        let beside = Some(dir.join("tokenizer.json")).filter(|path| self.data.is_some() && path.is_file());
        Ok(TrainConfig { tokenizer: self.tokenizer.or(beside), ..sized })
    }

    /// What has several spellings in the one that [`TrainConfig::with_model`] gives it.
    fn spelled(self) -> Result<TrainConfig, ConfigError> {
        let activation = self.parse_activation()?.map(|activation| hf::activation_name(activation).into());
        let scaling: Option<RopeScaling> =
            self.parsed("rope_scaling", &self.rope_scaling, RopeScaling::FORMS)?;
        let scaling = scaling.filter(|scaling| !scaling.is_none()).map(|scaling| scaling.to_string());
        let window: Option<SlidingWindow> = self.parsed("window", &self.window, SlidingWindow::FORM)?;
        let experts: Option<RoutedExperts> = self.parsed("experts", &self.experts, RoutedExperts::FORM)?;
        let window = window.map(|window| window.to_string());
        let experts = experts.map(|experts| experts.to_string());
        Ok(TrainConfig { activation, rope_scaling: scaling, window, experts, ..self })
    }

    /// What only llama and the families like it have is not set.
    fn check_gpt2(&self) -> Result<(), ConfigError> {
        self.refuse(&LLAMA_SIZES, "gpt2 has none: leave it out or use another model, such as llama")
    }

    /// Refuses options that are set although the model has no use for them.
    fn refuse(&self, names: &[&'static str], why: &str) -> Result<(), ConfigError> {
        let set = names.iter().find_map(|name| Some((*name, self.value(name)?)));
        set.map_or(Ok(()), |(name, value)| self.field(name, &value, why))
    }

    fn parse_activation(&self) -> Result<Option<Activation>, ConfigError> {
        let Some(name) = &self.activation else { return Ok(None) };
        match hf::activation(name) {
            Some(activation) => Ok(Some(activation)),
            None => {
                self.field("activation", name, &format!("it must be one of {}", hf::activations().join(", ")))
            }
        }
    }

    /// The value of an option that is a text.
    fn parsed<T: FromStr>(
        &self,
        name: &'static str,
        text: &Option<String>,
        forms: &str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = text else { return Ok(None) };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => self.field(name, text, &format!("it must be {forms}")),
        }
    }

    /// What only a model of text has is not set.
    fn check_mlp(&self) -> Result<(), ConfigError> {
        let names = [&TEXT_SIZES[..], &LLAMA_SIZES, &["context"]].concat();
        self.refuse(&names, "an mlp has none: leave it out or use a model of text, such as gpt2")?;
        if let Some(layers) = self.layers.filter(|&layers| layers > MAX_MLP_LAYERS) {
            return self.field("layers", &layers, "use at most 16384");
        }
        if self.dropout > 0.0 {
            return self.field(
                "dropout",
                &self.dropout,
                "an mlp has none: leave it out or use a model of text, such as gpt2",
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
                "it reads no text: use gpt2, llama or another model of text (train an mlp with the library)",
            ),
        }
    }

    /// Tokens the model knows if no data says how many there are: bytes, unless `vocab` is set.
    pub fn vocab_without_data(&self) -> usize {
        self.vocab.unwrap_or(256)
    }

    /// The sequence length for a model.
    pub fn context_of(&self, model: &ModelConfig) -> usize {
        self.context.or(model.context()).unwrap_or(1)
    }
}

fn set<T>(field: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *field = given;
    }
}
