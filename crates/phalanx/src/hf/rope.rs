//! What a configuration says about rotary positions: their base and what becomes of their frequencies.

use phalanx_ir::RopeScaling;
use phalanx_models::LlamaConfig;
use serde_json::{Value, json};

use super::ConfigError;
use super::config::decimal;
use super::keys::Keys;

/// The keys of objects about rotary positions: before transformers 5, and since.
const ROPE: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// The rotary base, from `rope_parameters` (transformers 5) or `key` at the top level (before).
pub(super) fn base(keys: &Keys<'_>, key: &'static str, default: f32) -> Result<f32, ConfigError> {
    let mut base = keys.number_or(key, default)?;
    for key in ROPE {
        let Some(rope) = keys.object(key)? else { continue };
        base = rope.number_or("rope_theta", base)?;
    }
    Ok(base)
}

/// The share of a head's features that is turned, likewise; the object and the key that say so.
pub(super) fn partial<'a>(
    keys: &Keys<'a>,
    key: &'static str,
    default: f64,
) -> Result<(Keys<'a>, &'static str, f64), ConfigError> {
    const INNER: &str = "partial_rotary_factor";
    let top = Keys { path: keys.path, map: keys.map };
    let mut found = (top, key, keys.double_or(key, default)?);
    for key in ROPE {
        let Some(rope) = keys.object(key)? else { continue };
        if rope.get(INNER).is_some() {
            let share = rope.double_or(INNER, default)?;
            found = (rope, INNER, share);
        }
    }
    Ok(found)
}

/// The share that a model turns, such that transformers, which rounds down, turns as many features.
pub(super) fn share(config: &LlamaConfig) -> f64 {
    let Some(dim) = config.rotary_dim else { return 1.0 };
    let share = dim as f64 / config.head_dim as f64;
    if (share * config.head_dim as f64) as usize == dim { share } else { share.next_up() }
}

/// What becomes of the rotary frequencies; kinds that cannot be built are refused.
pub(super) fn scaling(keys: &Keys<'_>) -> Result<RopeScaling, ConfigError> {
    let mut scaling = RopeScaling::None;
    for key in ROPE {
        let Some(rope) = keys.object(key)? else { continue };
        let kind = rope.text_or("rope_type", rope.text_or("type", "default")?)?;
        let text = match kind {
            // An object that says nothing does not undo what the other says.
            "default" => continue,
            "linear" => format!("linear:{}", rope.number("factor")?),
            "dynamic" => format!("dynamic:{}", rope.number("factor")?),
            "llama3" => {
                let original = rope.size("original_max_position_embeddings")?;
                let [low, high] = [rope.number("low_freq_factor")?, rope.number("high_freq_factor")?];
                format!("llama3:{},{low},{high},{original}", rope.number("factor")?)
            }
            other => {
                let supported = "\"default\", \"linear\", \"dynamic\", \"llama3\"";
                return Err(rope.unsupported("rope_type", &other.into(), supported.into()));
            }
        };
        scaling = text.parse().map_err(|()| {
            rope.unsupported(key, &Value::Object(rope.map.clone()), RopeScaling::FORMS.into())
        })?;
    }
    Ok(scaling)
}

/// The object that says the same to transformers.
pub(super) fn to_json(config: &LlamaConfig) -> Value {
    let mut json = json!({ "rope_theta": decimal(config.rope_base), "rope_type": "default" });
    if config.family.turns_partly() {
        json["partial_rotary_factor"] = share(config).into();
    }
    let fields = match config.rope_scaling {
        RopeScaling::None => json!({}),
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": decimal(factor) }),
        RopeScaling::Dynamic { factor } => json!({ "rope_type": "dynamic", "factor": decimal(factor) }),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": decimal(factor),
            "low_freq_factor": decimal(low),
            "high_freq_factor": decimal(high),
            "original_max_position_embeddings": original,
        }),
    };
    if let (Value::Object(json), Value::Object(mut fields)) = (&mut json, fields) {
        json.append(&mut fields);
    }
    json
}
