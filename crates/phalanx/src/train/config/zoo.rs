//! Models of the zoo by name, and which options they take.

use serde_json::Value;

use super::{ConfigError, OPTIONS, OptionGroup, TrainConfig};
use crate::models::PresetError;
use crate::models::zoo::{ZooEntry, ZooModel};
use crate::nn::OwnModel;
use crate::train::{OptionSet, OptionSpec};

impl TrainConfig {
    /// The model of the zoo that the configuration names, with the sizes that are set; none if it is of a family of text.
    pub fn zoo_model(&self) -> Result<Option<Box<dyn ZooModel>>, ConfigError> {
        let Some(entry) = ZooEntry::find(&self.model) else { return Ok(None) };
        let Some(preset) = entry.preset(&self.size) else {
            return Err(PresetError::Size { size: self.size.clone() }.into());
        };
        let mut sizes = preset.sizes();
        for option in OPTIONS.iter().filter(|option| is_size(option) && self.is_set(option.name)) {
            let text = self.value(option.name).unwrap_or_default();
            let Some(size) = sizes.get_mut(option.name) else {
                let known: Vec<&str> =
                    sizes.as_object().into_iter().flat_map(|all| all.keys()).map(|key| &**key).collect();
                let wanted = format!("{} has none: its sizes are {}", entry.name, known.join(", "));
                return self.field(option.name, &text, &wanted);
            };
            *size = serde_json::from_str(&text).unwrap_or(Value::String(text));
        }
        match entry.read(sizes) {
            Ok(model) => Ok(Some(model)),
            Err(error) => self.field("model", &self.model, &error.to_string()),
        }
    }

    /// Refuses options that a model of the zoo has no use for.
    pub(crate) fn check_zoo(&self, given: &[&str], model: &dyn ZooModel) -> Result<(), ConfigError> {
        let sizes = model.sizes();
        let is_used = |option: &OptionSpec| {
            OwnModel::has(option)
                || ["model", "size", "log_every", "umask"].contains(&option.name)
                || (is_size(option) && sizes.get(option.name).is_some())
        };
        let unused = OPTIONS
            .iter()
            .find(|option| !is_used(option) && (given.contains(&option.name) || self.is_set(option.name)));
        let Some(option) = unused else { return self.validate() };
        let value = self.value(option.name).unwrap_or_default();
        let wanted = format!("{} has no use for it: leave it out, or use gpt2 or llama", self.model);
        self.field(option.name, &value, &wanted)
    }
}

impl TrainConfig {
    /// Refuses options that a graph file has no use for.
    pub(crate) fn check_graph(&self, given: &[&str], name: &str) -> Result<(), ConfigError> {
        let is_used = |option: &OptionSpec| {
            OwnModel::has(option) && option.name != "batch" || ["log_every", "umask"].contains(&option.name)
        };
        let unused = OPTIONS.iter().find(|option| !is_used(option) && given.contains(&option.name));
        let Some(option) = unused else { return self.validate() };
        let value = self.value(option.name).unwrap_or_default();
        let wanted = format!("{name} is a graph file, which has no use for it: leave it out");
        self.field(option.name, &value, &wanted)
    }
}

/// Whether an option is a size of models.
fn is_size(option: &OptionSpec) -> bool {
    option.group == OptionGroup::Model && !["model", "size"].contains(&option.name)
}
