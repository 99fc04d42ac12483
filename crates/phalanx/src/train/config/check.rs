//! What is wrong with a configuration, and setting options by name.

use std::fmt::Display;
use std::path::PathBuf;

use phalanx_link::LinkError;

use super::{OPTIONS, OptionSpec, TrainConfig};
use crate::job::{Drill, DrillError};
use crate::models::PresetError;
use crate::train::options::{Mark, nearest};

/// Why a configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is wrong.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: Box<ConfigError> },
    /// A line of the file is wrong.
    #[error("line {line}: {source}")]
    Line { line: usize, source: Box<ConfigError> },
    /// The file is not TOML.
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    /// There is no such option.
    #[error("there is no option `{key}`: {hint}")]
    Unknown { key: String, hint: String },
    /// No such model or size.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// The option `link` is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The option `drill` is no drill.
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// An option has a value it cannot have.
    #[error("`{field}` is {value}; {wanted}")]
    Field { field: &'static str, value: String, wanted: String },
}

impl ConfigError {
    /// The error of a name that no option has.
    pub(super) fn unknown(key: &str) -> ConfigError {
        let names: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
        let hint = match nearest(key, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("use one of {}", names.join(", ")),
        };
        ConfigError::Unknown { key: key.into(), hint }
    }
}

impl TrainConfig {
    /// The value of the option of this name as a user writes it, if it is set.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut values = OPTIONS.iter().zip(self.values());
        values.find(|(option, _)| option.name == name).and_then(|(_, (value, _))| value)
    }

    /// Sets the option of this name to a value as a user writes it. An option that it excludes gets its default.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let option = OptionSpec::find(name).ok_or_else(|| ConfigError::unknown(name))?;
        if !self.assign(option.name, Some(text)) {
            return Err(option.misread(text));
        }
        let keeps_rule =
            OPTIONS.iter().zip(self.values()).all(|(other, (_, keeps))| keeps || other.name != option.name);
        if !keeps_rule {
            return self.field(option.name, &text, &format!("it must be {}", option.rule));
        }
        if let Some(other) = option.excludes() {
            self.assign(other, None);
        }
        Ok(())
    }

    /// Checks every option by itself and with those that it needs or excludes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (values, defaults) = (self.values(), TrainConfig::default().values());
        let is_set = |name: &str| {
            let mut all = OPTIONS.iter().zip(values.iter().zip(&defaults));
            all.any(|(option, (value, default))| option.name == name && value != default)
        };
        for (option, (value, keeps_rule)) in OPTIONS.iter().zip(&values) {
            let wrong = |wanted: String| match value {
                Some(value) => self.field(option.name, value, &wanted),
                None => Ok(()),
            };
            if !keeps_rule {
                wrong(format!("it must be {}", option.rule))?;
            }
            for mark in option.marks.iter().filter(|_| is_set(option.name)) {
                match mark {
                    Mark::Needs(other) if !is_set(other) => {
                        wrong(format!("it needs `{other}`, which is not set"))?
                    }
                    Mark::Excludes(other) if is_set(other) => {
                        wrong(format!("it goes without `{other}`: take one of them out"))?
                    }
                    _ => {}
                }
            }
        }
        match (self.parse_drill()?, &self.checkpoint, &self.drill) {
            (Some(Drill::Save(_)), None, Some(text)) => {
                self.field("drill", text, "it needs `checkpoint`: nothing is saved without")
            }
            _ => Ok(()),
        }
    }

    pub(super) fn field<T>(
        &self,
        field: &'static str,
        value: &dyn Display,
        wanted: &str,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Field { field, value: value.to_string(), wanted: wanted.into() })
    }
}
