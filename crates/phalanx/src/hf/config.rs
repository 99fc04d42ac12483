//! `config.json` to and from [`ModelConfig`].
//!
//! Absent keys mean what they mean to transformers. A value that would change the model's function and cannot be built
//! is an error. Dropout inside attention (`attn_pdrop`, `attention_dropout`) is a training setting which is not
//! taken over: Phalanx drops after the embedding and the residual branches only.

use std::io;
use std::path::{Path, PathBuf};

use phalanx_ir::Activation;
use phalanx_models::zoo::{FormProblem, TransformersForm, ZOO, ZooChoice, ZooEntry};
use phalanx_models::{DecoderFamily, Gpt2Config, ModelConfig};
use serde_json::{Map, Value, json};

use super::decoder;
use super::keys::Keys;
use crate::files;

/// Why a configuration cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; give a directory saved by transformers", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is not JSON.
    #[error("{} is not JSON: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// The file is JSON but not an object.
    #[error("{} holds no JSON object; it should be a transformers config", path.display())]
    NotAnObject { path: PathBuf },
    /// A size is absent.
    #[error("{}: `{key}` is missing; add it", path.display())]
    Missing { path: PathBuf, key: &'static str },
    /// A value has the wrong type.
    #[error("{}: `{key}` is {value}; it must be {wanted}", path.display())]
    Type { path: PathBuf, key: &'static str, value: String, wanted: &'static str },
    /// A value asks for something that cannot be built.
    #[error("{}: `{key}` is {value}; supported: {supported}", path.display())]
    Unsupported { path: PathBuf, key: &'static str, value: String, supported: String },
}

/// Activations by the names of transformers; the first name of each is the one written.
const ACTIVATIONS: [(&str, Activation); 10] = [
    ("linear", Activation::None),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
];

/// Reads `config.json` of a model directory.
pub fn read_config(dir: &Path) -> Result<ModelConfig, ConfigError> {
    let path = dir.join("config.json");
    let map = read_object(&path)?;
    let keys = Keys { path: &path, map: &map };
    if map.contains_key(ZOO_MODEL) {
        return zoo(&keys).map(ModelConfig::Zoo);
    }
    let model_type = keys.text_or("model_type", "")?;
    if let Some((entry, form)) = described().find(|(_, form)| form.model_type == model_type) {
        return described_zoo(&keys, entry, form).map(ModelConfig::Zoo);
    }
    match model_type {
        "gpt2" => gpt2(&keys).map(ModelConfig::Gpt2),
        "" => Err(ConfigError::Missing { path: path.clone(), key: "model_type" }),
        name => match name.parse() {
            Ok(family) => decoder::read(&keys, family).map(ModelConfig::Llama),
            Err(()) => {
                let known: Vec<String> = families().iter().map(|known| format!("\"{known}\"")).collect();
                Err(keys.unsupported("model_type", &name.into(), known.join(", ")))
            }
        },
    }
}

/// The families that transformers and Phalanx have.
pub(super) fn families() -> Vec<&'static str> {
    let zoo = described().map(|(_, form)| form.model_type);
    ["gpt2"].into_iter().chain(DecoderFamily::ALL.map(DecoderFamily::name)).chain(zoo).collect()
}

/// The key that names a model of the zoo which transformers does not know, and that of its sizes.
const ZOO_MODEL: &str = "phalanx_model";
const ZOO_SIZES: &str = "sizes";

/// The models of the zoo that transformers describes.
fn described() -> impl Iterator<Item = (&'static ZooEntry, &'static TransformersForm)> {
    ZOO.iter().filter_map(|entry| Some((entry, entry.transformers.as_ref()?)))
}

/// A model of the zoo as transformers describes it.
fn described_zoo(
    keys: &Keys<'_>,
    entry: &ZooEntry,
    form: &TransformersForm,
) -> Result<ZooChoice, ConfigError> {
    let usual = entry.preset(form.usual).map(|model| model.sizes()).unwrap_or_default();
    let sizes = form.read(keys.map, usual).map_err(|FormProblem { key, supported }| {
        keys.unsupported(key, keys.get(key).unwrap_or(&Value::Null), supported)
    })?;
    choice(keys, entry, sizes, "model_type")
}

/// A model of the zoo as Phalanx wrote it.
fn zoo(keys: &Keys<'_>) -> Result<ZooChoice, ConfigError> {
    let name = keys.text_or(ZOO_MODEL, "")?;
    let Some(entry) = ZooEntry::find(name) else {
        let known: Vec<&str> = ZOO.iter().map(|entry| entry.name).collect();
        return Err(keys.unsupported(ZOO_MODEL, &name.into(), known.join(", ")));
    };
    choice(keys, entry, keys.get(ZOO_SIZES).cloned().unwrap_or_default(), ZOO_SIZES)
}

fn choice(
    keys: &Keys<'_>,
    entry: &ZooEntry,
    sizes: Value,
    key: &'static str,
) -> Result<ZooChoice, ConfigError> {
    match entry.read(sizes.clone()) {
        Ok(model) => Ok(ZooChoice::new(entry, &*model)),
        Err(error) => Err(keys.unsupported(key, &sizes, format!("sizes of {}: {error}", entry.name))),
    }
}

fn zoo_json(choice: &ZooChoice) -> Value {
    let form = ZooEntry::find(choice.name()).and_then(|entry| entry.transformers.as_ref());
    match form {
        Some(form) => form.write(choice.sizes()),
        None => json!({ ZOO_MODEL: choice.name(), ZOO_SIZES: choice.sizes() }),
    }
}

/// The tokens that end a text: those of `generation_config.json`, or of `config.json` if it has none.
pub fn end_tokens(dir: &Path) -> Result<Vec<i64>, ConfigError> {
    for name in ["generation_config.json", "config.json"] {
        let path = dir.join(name);
        if !path.is_file() {
            continue;
        }
        let map = read_object(&path)?;
        let keys = Keys { path: &path, map: &map };
        let tokens = keys.tokens("eos_token_id")?;
        if !tokens.is_empty() {
            return Ok(tokens);
        }
    }
    Ok(Vec::new())
}

fn read_object(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = files::read(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ConfigError::NotAnObject { path: path.into() }),
        Err(source) => Err(ConfigError::Json { path: path.into(), source }),
    }
}

/// The `config.json` that makes transformers build this model; none for families it does not know.
pub(super) fn to_json(model: &ModelConfig) -> Option<Value> {
    match model {
        ModelConfig::Gpt2(config) => Some(gpt2_json(config)),
        ModelConfig::Llama(config) => Some(decoder::to_json(config)),
        ModelConfig::Mlp(_) => None,
        ModelConfig::Zoo(choice) => Some(zoo_json(choice)),
    }
}

/// What `json` says, and of everything else what the directory `like` says. Special tokens and rates of dropout which
/// Phalanx does not know stay those of the directory.
pub(super) fn merged(like: &Path, json: Value) -> Result<Value, ConfigError> {
    const KEPT: [&str; 6] = [
        "bos_token_id",
        "eos_token_id",
        "attn_pdrop",
        "attention_dropout",
        "initializer_range",
        "architectures",
    ];
    let mut map = read_object(&like.join("config.json"))?;
    let Value::Object(own) = json else { return Ok(Value::Object(map)) };
    for (key, value) in own {
        if !(KEPT.contains(&key.as_str()) && map.contains_key(&key)) {
            map.insert(key, value);
        }
    }
    // The name of `dtype` before transformers 5.
    if map.contains_key("torch_dtype") {
        let dtype = map.get("dtype").cloned().unwrap_or_default();
        map.insert("torch_dtype".into(), dtype);
    }
    Ok(Value::Object(map))
}

fn gpt2(keys: &Keys<'_>) -> Result<Gpt2Config, ConfigError> {
    keys.only("scale_attn_weights", json!(true))?;
    keys.only("scale_attn_by_inverse_layer_idx", json!(false))?;
    keys.only("add_cross_attention", json!(false))?;
    let dropout = keys.number_or("resid_pdrop", 0.1)?;
    let embedding = keys.number_or("embd_pdrop", 0.1)?;
    if embedding != dropout {
        let supported = format!("the same rate as `resid_pdrop` {dropout}");
        return Err(keys.unsupported("embd_pdrop", &json!(embedding), supported));
    }
    let width = keys.size("n_embd")?;
    Ok(Gpt2Config {
        layers: keys.size("n_layer")?,
        heads: keys.size("n_head")?,
        width,
        hidden: keys.size_or("n_inner", width.saturating_mul(4))?,
        vocab: keys.size("vocab_size")?,
        context: keys.size("n_positions")?,
        dropout,
        tied: keys.flag_or("tie_word_embeddings", true)?,
        eps: keys.number_or("layer_norm_epsilon", 1e-5)?,
        activation: activation_of(keys, "activation_function", "gelu_new")?,
    })
}

/// The activation that transformers calls by this name.
pub fn activation(name: &str) -> Option<Activation> {
    ACTIVATIONS.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
}

/// All names of activations.
pub fn activations() -> Vec<&'static str> {
    ACTIVATIONS.iter().map(|(name, _)| *name).collect()
}

/// The name that transformers has for an activation.
pub fn activation_name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(_, known)| *known == activation).map_or("linear", |(name, _)| name)
}

pub(super) fn activation_of(
    keys: &Keys<'_>,
    key: &'static str,
    default: &str,
) -> Result<Activation, ConfigError> {
    let name = keys.text_or(key, "")?;
    let name = if name.is_empty() { default } else { name };
    activation(name).ok_or_else(|| {
        let known: Vec<String> = activations().iter().map(|known| format!("\"{known}\"")).collect();
        keys.unsupported(key, &name.into(), known.join(", "))
    })
}

/// The decimal number a person would write for `value`: 1e-5, not the nearest double of its 32 bits.
pub(super) fn decimal(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn gpt2_json(config: &Gpt2Config) -> Value {
    let end = (config.vocab == 50257).then_some(50256);
    json!({
        "activation_function": activation_name(config.activation),
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bos_token_id": end,
        "dtype": "float32",
        "embd_pdrop": decimal(config.dropout),
        "eos_token_id": end,
        "initializer_range": 0.02,
        "layer_norm_epsilon": decimal(config.eps),
        "model_type": "gpt2",
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.hidden,
        "n_layer": config.layers,
        "n_positions": config.context,
        "resid_pdrop": decimal(config.dropout),
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab,
    })
}
