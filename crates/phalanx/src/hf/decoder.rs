//! `config.json` of Llama and the families like it, to and from [`LlamaConfig`].

use phalanx_ir::Activation;
use phalanx_models::{DecoderFamily, LlamaConfig, RoutedExperts, SlidingWindow};
use serde_json::{Value, json};

use super::ConfigError;
use super::config::{activation_name, activation_of, decimal};
use super::keys::Keys;
use super::rope;

/// What absent keys mean to transformers.
struct Defaults {
    /// As many as the heads if absent.
    kv_heads: Option<usize>,
    /// The width divided by the heads if absent.
    head_dim: Option<usize>,
    context: usize,
    eps: f32,
    tied: bool,
    activation: &'static str,
    rope_base: f32,
    window: Option<usize>,
    padding: Option<usize>,
}

const LLAMA: Defaults = Defaults {
    kv_heads: None,
    head_dim: None,
    context: 2048,
    eps: 1e-6,
    tied: false,
    activation: "silu",
    rope_base: 10_000.0,
    window: None,
    padding: None,
};

fn defaults(family: DecoderFamily) -> Defaults {
    let qwen = Defaults { kv_heads: Some(32), context: 32768, window: Some(4096), ..LLAMA };
    let mistral = Defaults { kv_heads: Some(8), context: 131_072, window: Some(4096), ..LLAMA };
    match family {
        DecoderFamily::Llama => LLAMA,
        DecoderFamily::Mistral => mistral,
        DecoderFamily::Mixtral => Defaults { eps: 1e-5, rope_base: 1e6, window: None, ..mistral },
        DecoderFamily::Qwen2 => qwen,
        DecoderFamily::Qwen3 => Defaults { head_dim: Some(128), ..qwen },
        DecoderFamily::Phi3 => Defaults { context: 4096, eps: 1e-5, padding: Some(32000), ..LLAMA },
        DecoderFamily::Olmo2 => Defaults { eps: 1e-5, padding: Some(1), ..LLAMA },
        DecoderFamily::Gemma => Defaults {
            kv_heads: Some(16),
            head_dim: Some(256),
            context: 8192,
            tied: true,
            activation: "gelu_pytorch_tanh",
            padding: Some(0),
            ..LLAMA
        },
        DecoderFamily::GptNeox => Defaults { eps: 1e-5, activation: "gelu", ..LLAMA },
    }
}

/// What the keys of a family say.
pub(super) fn read(keys: &Keys<'_>, family: DecoderFamily) -> Result<LlamaConfig, ConfigError> {
    refuse(keys, family)?;
    let is_neox = family == DecoderFamily::GptNeox;
    let defaults = defaults(family);
    let (width, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    let even_share = width.checked_div(heads).unwrap_or(0);
    let (kv_heads, head_dim) = match is_neox {
        true => (heads, even_share),
        false => (
            keys.size_or_null("num_key_value_heads", defaults.kv_heads)?.unwrap_or(heads),
            keys.size_or("head_dim", defaults.head_dim.unwrap_or(even_share))?,
        ),
    };
    let (layers, vocab) = (keys.size("num_hidden_layers")?, keys.size("vocab_size")?);
    let base = if is_neox { "rotary_emb_base" } else { "rope_theta" };
    Ok(LlamaConfig {
        family,
        dropout: dropout(keys, family)?,
        layers,
        heads,
        kv_heads,
        head_dim,
        width,
        hidden: keys.size("intermediate_size")?,
        vocab,
        context: keys.size_or("max_position_embeddings", defaults.context)?,
        tied: keys.flag_or("tie_word_embeddings", defaults.tied)?,
        eps: keys.number_or(if is_neox { "layer_norm_eps" } else { "rms_norm_eps" }, defaults.eps)?,
        rope_base: rope::base(keys, base, defaults.rope_base)?,
        rope_scaling: rope::scaling(keys)?,
        rotary_dim: rotary_dim(keys, family, head_dim)?,
        window: window(keys, family, layers, defaults.window)?,
        activation: activation(keys, family, defaults.activation)?,
        attention_bias: match family {
            DecoderFamily::Qwen2 => true,
            DecoderFamily::Mistral | DecoderFamily::Mixtral | DecoderFamily::Phi3 => false,
            _ => keys.flag_or("attention_bias", is_neox)?,
        },
        mlp_bias: match family {
            DecoderFamily::Llama => keys.flag_or("mlp_bias", false)?,
            _ => is_neox,
        },
        parallel: is_neox && keys.flag_or("use_parallel_residual", true)?,
        experts: experts(keys, family)?,
        padding: if is_neox { None } else { keys.row("pad_token_id", defaults.padding, vocab)? },
    })
}

/// Refuses what would change the model's function and cannot be built.
fn refuse(keys: &Keys<'_>, family: DecoderFamily) -> Result<(), ConfigError> {
    keys.only("quantization_config", Value::Null)?;
    match family {
        DecoderFamily::Gemma => keys.only("use_bidirectional_attention", json!(false)),
        DecoderFamily::Mixtral if keys.number_or("router_jitter_noise", 0.0)? != 0.0 => {
            let value = keys.get("router_jitter_noise").unwrap_or(&Value::Null);
            Err(keys.unsupported("router_jitter_noise", value, "0.0".into()))
        }
        _ => Ok(()),
    }
}

fn dropout(keys: &Keys<'_>, family: DecoderFamily) -> Result<f32, ConfigError> {
    match family {
        DecoderFamily::GptNeox => keys.number_or("hidden_dropout", 0.0),
        // Transformers reads `embd_pdrop` and does nothing with it.
        DecoderFamily::Phi3 => keys.number_or("resid_pdrop", 0.0),
        _ => Ok(0.0),
    }
}

/// How many features of a head are turned, if not all of them are.
fn rotary_dim(keys: &Keys<'_>, family: DecoderFamily, head_dim: usize) -> Result<Option<usize>, ConfigError> {
    let (key, default) = match family {
        DecoderFamily::GptNeox => ("rotary_pct", 0.25),
        _ => ("partial_rotary_factor", 1.0),
    };
    let (holder, key, factor) = rope::partial(keys, key, default)?;
    let refused = |supported: &str| {
        let value = holder.get(key).cloned().unwrap_or_else(|| default.into());
        Err(holder.unsupported(key, &value, supported.into()))
    };
    match family {
        _ if factor == 1.0 => Ok(None),
        _ if family.turns_partly() => {
            // Rounded down, as transformers does.
            let dim = (head_dim as f64 * factor) as usize;
            match factor > 0.0 && factor < 1.0 && dim > 0 && dim.is_multiple_of(2) {
                true => Ok(Some(dim)),
                false => refused(&format!(
                    "a share from 0 to 1 of the {head_dim} features of a head that is an even number of them"
                )),
            }
        }
        _ => refused("1.0"),
    }
}

fn window(
    keys: &Keys<'_>,
    family: DecoderFamily,
    layers: usize,
    default: Option<usize>,
) -> Result<Option<SlidingWindow>, ConfigError> {
    let has_switch = matches!(family, DecoderFamily::Qwen2 | DecoderFamily::Qwen3);
    let has_window =
        has_switch || matches!(family, DecoderFamily::Mistral | DecoderFamily::Mixtral | DecoderFamily::Phi3);
    let is_on = has_window && (!has_switch || keys.flag_or("use_sliding_window", false)?);
    let size = if is_on { keys.size_or_null("sliding_window", default)? } else { None };
    let from = match has_switch {
        true => first_window_layer(keys, layers, size.is_some())?,
        false => 0,
    };
    Ok(size.map(|size| SlidingWindow { size, from }))
}

/// The first layer with a window: as `layer_types` says, or `max_window_layers` if it is absent.
fn first_window_layer(keys: &Keys<'_>, layers: usize, has_size: bool) -> Result<usize, ConfigError> {
    let Some(types) = keys.get("layer_types") else { return keys.size_or("max_window_layers", 28) };
    let list: Vec<&str> = types.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let from = list.iter().take_while(|kind| **kind == "full_attention").count();
    let is_ordered = list[from..].iter().all(|kind| *kind == "sliding_attention");
    if list.len() == layers && is_ordered && (has_size || from == layers) {
        return Ok(from);
    }
    let supported = format!(
        "\"full_attention\" for the first of the {layers} layers and, with `use_sliding_window` and `sliding_window`, \
         \"sliding_attention\" for the others"
    );
    Err(keys.unsupported("layer_types", types, supported))
}

fn activation(keys: &Keys<'_>, family: DecoderFamily, default: &str) -> Result<Activation, ConfigError> {
    let found = activation_of(keys, "hidden_act", default)?;
    // The first releases of Gemma say "gelu" and mean the one with tanh, as transformers knows.
    let is_old = family == DecoderFamily::Gemma && found == Activation::GeluErf;
    Ok(if is_old { Activation::GeluTanh } else { found })
}

fn experts(keys: &Keys<'_>, family: DecoderFamily) -> Result<Option<RoutedExperts>, ConfigError> {
    if family != DecoderFamily::Mixtral {
        return Ok(None);
    }
    let balance = match keys.flag_or("output_router_logits", false)? {
        true => keys.number_or("router_aux_loss_coef", 0.001)?,
        false => 0.0,
    };
    Ok(Some(RoutedExperts {
        count: keys.size_or("num_local_experts", 8)?,
        per_token: keys.size_or("num_experts_per_tok", 2)?,
        balance,
    }))
}

/// The keys that make transformers build this model.
pub(super) fn to_json(config: &LlamaConfig) -> Value {
    let family = config.family;
    let mut json = json!({
        "architectures": [architecture(family)],
        "attention_dropout": 0.0,
        "bos_token_id": (config.vocab == 32000).then_some(1),
        "dtype": "float32",
        "eos_token_id": (config.vocab == 32000).then_some(2),
        "hidden_act": activation_name(config.activation),
        "hidden_size": config.width,
        "initializer_range": 0.02,
        "intermediate_size": config.hidden,
        "max_position_embeddings": config.context,
        "model_type": family.name(),
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "rope_parameters": rope::to_json(config),
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab,
    });
    let more = match family {
        DecoderFamily::GptNeox => neox_json(config),
        _ => grouped_json(config),
    };
    append(&mut json, more);
    append(&mut json, family_json(config));
    // What transformers before version 5 reads.
    if !config.rope_scaling.is_none() {
        json["rope_scaling"] = rope::to_json(config);
    }
    json
}

fn append(json: &mut Value, more: Value) {
    if let (Value::Object(json), Value::Object(mut more)) = (json, more) {
        json.append(&mut more);
    }
}

fn architecture(family: DecoderFamily) -> &'static str {
    match family {
        DecoderFamily::Llama => "LlamaForCausalLM",
        DecoderFamily::Mistral => "MistralForCausalLM",
        DecoderFamily::Qwen2 => "Qwen2ForCausalLM",
        DecoderFamily::Qwen3 => "Qwen3ForCausalLM",
        DecoderFamily::Phi3 => "Phi3ForCausalLM",
        DecoderFamily::Olmo2 => "Olmo2ForCausalLM",
        DecoderFamily::Gemma => "GemmaForCausalLM",
        DecoderFamily::GptNeox => "GPTNeoXForCausalLM",
        DecoderFamily::Mixtral => "MixtralForCausalLM",
    }
}

/// What all families but GPT-NeoX have.
fn grouped_json(config: &LlamaConfig) -> Value {
    let mut json = json!({
        "head_dim": config.head_dim,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": decimal(config.eps),
        "rope_theta": decimal(config.rope_base),
    });
    if config.padding.is_some() || !config.family.is_llama() {
        json["pad_token_id"] = json!(config.padding);
    }
    json
}

fn neox_json(config: &LlamaConfig) -> Value {
    json!({
        "attention_bias": config.attention_bias,
        "hidden_dropout": decimal(config.dropout),
        "layer_norm_eps": decimal(config.eps),
        "rotary_emb_base": decimal(config.rope_base),
        "rotary_pct": rope::share(config),
        "use_parallel_residual": config.parallel,
    })
}

/// What only some families have.
fn family_json(config: &LlamaConfig) -> Value {
    let window = config.window.map(|window| window.size);
    match config.family {
        DecoderFamily::Llama => {
            json!({ "attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias })
        }
        DecoderFamily::Mistral => json!({ "sliding_window": window }),
        DecoderFamily::Qwen2 => qwen_window(config),
        DecoderFamily::Qwen3 => {
            let mut json = json!({ "attention_bias": config.attention_bias });
            append(&mut json, qwen_window(config));
            json
        }
        DecoderFamily::Phi3 => json!({
            "embd_pdrop": 0.0,
            "partial_rotary_factor": rope::share(config),
            "resid_pdrop": decimal(config.dropout),
            "sliding_window": window,
        }),
        DecoderFamily::Olmo2 => json!({ "attention_bias": config.attention_bias }),
        DecoderFamily::Gemma => {
            let mut json = json!({ "attention_bias": config.attention_bias });
            if config.activation == Activation::GeluTanh {
                json["hidden_act"] = "gelu_pytorch_tanh".into();
            }
            json
        }
        DecoderFamily::GptNeox => json!({}),
        DecoderFamily::Mixtral => mixtral_json(config),
    }
}

fn qwen_window(config: &LlamaConfig) -> Value {
    match config.window {
        None => json!({ "use_sliding_window": false }),
        Some(SlidingWindow { size, from }) => {
            json!({ "use_sliding_window": true, "sliding_window": size, "max_window_layers": from })
        }
    }
}

fn mixtral_json(config: &LlamaConfig) -> Value {
    let window = config.window.map(|window| window.size);
    let Some(experts) = config.experts else { return json!({ "sliding_window": window }) };
    let mut json = json!({
        "num_experts_per_tok": experts.per_token,
        "num_local_experts": experts.count,
        "output_router_logits": experts.balance > 0.0,
        "sliding_window": window,
    });
    if experts.balance > 0.0 {
        json["router_aux_loss_coef"] = decimal(experts.balance);
    }
    json
}
