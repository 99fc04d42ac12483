//! Scalings of rotary frequencies in configuration files: by their text.

use phalanx_ir::RopeScaling;
use serde::{Deserialize, Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(scaling: &RopeScaling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(scaling)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RopeScaling, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|()| {
        de::Error::custom(format!("rope scaling `{text}` is unknown; use {}", RopeScaling::FORMS))
    })
}
