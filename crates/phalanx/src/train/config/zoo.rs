//! Models of the zoo by name, and which options they take.

use std::path::Path;

use serde_json::Value;

use super::{ConfigError, OPTIONS, OptionGroup, TrainConfig};
use crate::models::zoo::{ZooChoice, ZooEntry, ZooModel};
use crate::models::{ModelConfig, PresetError};
use crate::nn::OwnModel;
use crate::train::{OptionSet, OptionSpec};
use crate::{Error, hf};

/// Options that a model of the zoo takes beside those of a model of one's own.
const MORE: [&str; 8] = ["model", "size", "sizes", "hf", "save", "save_dtype", "log_every", "umask"];

impl TrainConfig {
    /// The model of the zoo that the configuration names, with the sizes that are set; none if it is of a family of text.
    pub fn zoo_model(&self) -> Result<Option<Box<dyn ZooModel>>, ConfigError> {
        Ok(self.zoo_choice()?.map(|choice| choice.model()))
    }

    /// The same as a choice among all models.
    pub(super) fn zoo_choice(&self) -> Result<Option<ZooChoice>, ConfigError> {
        let Some(entry) = ZooEntry::find(&self.model) else { return Ok(None) };
        let Some(preset) = entry.preset(&self.size) else {
            return Err(PresetError::Size { size: self.size.clone() }.into());
        };
        let mut sizes = self.given_sizes(entry, preset.sizes())?;
        for option in OPTIONS.iter().filter(|option| is_size(option) && self.is_set(option.name)) {
            let text = self.value(option.name).unwrap_or_default();
            let Some(size) = sizes.get_mut(option.name) else {
                return self.field(option.name, &text, &no_size(entry, &sizes));
            };
            *size = serde_json::from_str(&text).unwrap_or(Value::String(text));
        }
        match entry.read(sizes) {
            Ok(model) => Ok(Some(ZooChoice::new(entry, &*model))),
            Err(error) => self.field("model", &self.model, &error.to_string()),
        }
    }

    /// `sizes` with those of the option `sizes`.
    fn given_sizes(&self, entry: &ZooEntry, mut sizes: Value) -> Result<Value, ConfigError> {
        let Some(text) = &self.sizes else { return Ok(sizes) };
        let Ok(Value::Object(given)) = serde_json::from_str(text) else {
            let wanted = "it must be a JSON object, such as {\"classes\": 10}";
            return self.field("sizes", text, wanted);
        };
        for (name, size) in given {
            match sizes.get_mut(&name) {
                Some(place) => *place = size,
                None => return self.field("sizes", &name, &no_size(entry, &sizes)),
            }
        }
        Ok(sizes)
    }

    /// The same run with the model of the directory `hf`, if that has one of the zoo.
    pub fn with_zoo_directory(self) -> Result<TrainConfig, Error> {
        let Some(dir) = self.hf.clone() else { return Ok(self) };
        match hf::read_config(&dir) {
            Ok(ModelConfig::Zoo(choice)) => self.with_zoo(&choice, &dir),
            Err(error) if ZooEntry::find(&self.model).is_some() && dir.join("config.json").is_file() => {
                Err(error.into())
            }
            // Of another family; or weights alone, and the options tell the sizes.
            _ => Ok(self),
        }
    }

    /// The same run with this model of a directory. A size that is given must be that of the directory.
    pub(super) fn with_zoo(self, choice: &ZooChoice, dir: &Path) -> Result<TrainConfig, Error> {
        let wanted = |found: &str| format!("the model in {} has {found}: leave it out", dir.display());
        if ZooEntry::find(&self.model).is_some_and(|entry| entry.name != choice.name()) {
            return Ok(self.field("model", &self.model, &wanted(choice.name()))?);
        }
        let sizes = choice.sizes();
        let sized =
            TrainConfig { model: choice.name().into(), sizes: Some(sizes.to_string()), ..self.clone() };
        let given = TrainConfig { sizes: self.sizes.clone().or(sized.sizes.clone()), ..sized.clone() };
        let Some(given) = given.zoo_choice()? else { return Ok(sized) };
        let mut all = given.sizes().as_object().into_iter().flatten();
        let other = all.find(|(name, size)| *name != "dropout" && sizes.get(*name) != Some(*size));
        let Some((name, size)) = other else { return Ok(sized) };
        let found = sizes.get(name).map_or_else(String::new, Value::to_string);
        Ok(self.field("sizes", &format!("{{\"{name}\": {size}}}"), &wanted(&found))?)
    }

    /// The same configuration where sizes of models that are not among `given` are as usual, if its model is of the zoo:
    /// what a command sets for models of text is not meant for it.
    #[must_use]
    pub fn with_zoo_sizes(self, given: &[&str]) -> TrainConfig {
        if ZooEntry::find(&self.model).is_none() {
            return self;
        }
        let mut config = self;
        for option in OPTIONS.iter().filter(|option| is_size(option) && !given.contains(&option.name)) {
            config.assign(option.name, None);
        }
        config
    }

    /// Refuses options that a model of the zoo has no use for.
    pub(crate) fn check_zoo(&self, given: &[&str], model: &dyn ZooModel) -> Result<(), ConfigError> {
        let sizes = model.sizes();
        let is_used = |option: &OptionSpec| {
            OwnModel::has(option)
                || MORE.contains(&option.name)
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
    option.group == OptionGroup::Model && !["model", "size", "sizes"].contains(&option.name)
}

/// What to say about a size that a model does not have.
fn no_size(entry: &ZooEntry, sizes: &Value) -> String {
    let known: Vec<&str> =
        sizes.as_object().into_iter().flat_map(|all| all.keys()).map(|key| &**key).collect();
    format!("{} has none: its sizes are {}", entry.name, known.join(", "))
}
