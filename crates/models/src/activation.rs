//! Activations in configuration files: by the name the text form of graphs uses.

use phalanx_ir::Activation;
use serde::{Deserialize, Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(activation: &Activation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(activation)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(|()| {
        let known: Vec<String> = Activation::ALL.iter().map(Activation::to_string).collect();
        de::Error::custom(format!("activation `{name}` is unknown; use one of {}", known.join(", ")))
    })
}
