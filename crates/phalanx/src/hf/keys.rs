//! The keys of a configuration file, read one by one with their types.

use std::path::Path;

use serde_json::{Map, Value};

use super::ConfigError;

/// A JSON object and the file it came from.
pub(super) struct Keys<'a> {
    pub(super) path: &'a Path,
    pub(super) map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The value of `key`; absent and null are the same.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A size that must be there.
    pub(super) fn size(&self, key: &'static str) -> Result<usize, ConfigError> {
        match self.get(key) {
            Some(value) => self.typed(key, value, "a whole number", as_size(value)),
            None => Err(ConfigError::Missing { path: self.path.into(), key }),
        }
    }

    /// A size with the default transformers has.
    pub(super) fn size_or(&self, key: &'static str, default: usize) -> Result<usize, ConfigError> {
        self.get(key).map_or(Ok(default), |value| self.typed(key, value, "a whole number", as_size(value)))
    }

    /// A size that may be null, with the default transformers has where the key is absent.
    pub(super) fn size_or_null(
        &self,
        key: &'static str,
        default: Option<usize>,
    ) -> Result<Option<usize>, ConfigError> {
        match self.map.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(_) => self.size(key).map(Some),
        }
    }

    /// A row of a table of `rows`, or none if null; below zero it counts from the end.
    pub(super) fn row(
        &self,
        key: &'static str,
        default: Option<usize>,
        rows: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let value = match self.map.get(key) {
            None => return Ok(default),
            Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let found = self.typed(key, value, "a whole number", value.as_i64())?;
        let row = if found < 0 { found.saturating_add_unsigned(rows as u64) } else { found };
        match usize::try_from(row).ok().filter(|&row| row < rows) {
            Some(row) => Ok(Some(row)),
            None => {
                Err(self.unsupported(key, value, format!("null, or a token below the {rows} of the model")))
            }
        }
    }

    /// A number that must be there.
    pub(super) fn number(&self, key: &'static str) -> Result<f32, ConfigError> {
        match self.get(key) {
            Some(_) => self.number_or(key, 0.0),
            None => Err(ConfigError::Missing { path: self.path.into(), key }),
        }
    }

    /// A number with the default transformers has.
    pub(super) fn number_or(&self, key: &'static str, default: f32) -> Result<f32, ConfigError> {
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        self.get(key).map_or(Ok(default), |value| self.typed(key, value, "a number", number(value)))
    }

    /// The same in double precision.
    pub(super) fn double_or(&self, key: &'static str, default: f64) -> Result<f64, ConfigError> {
        self.get(key).map_or(Ok(default), |value| self.typed(key, value, "a number", value.as_f64()))
    }

    /// A truth value with the default transformers has.
    pub(super) fn flag_or(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.get(key).map_or(Ok(default), |value| self.typed(key, value, "true or false", value.as_bool()))
    }

    /// A string with the default transformers has.
    pub(super) fn text_or(&self, key: &'static str, default: &'a str) -> Result<&'a str, ConfigError> {
        self.get(key).map_or(Ok(default), |value| self.typed(key, value, "a string", value.as_str()))
    }

    /// A token or a list of them; none if absent.
    pub(super) fn tokens(&self, key: &'static str) -> Result<Vec<i64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let tokens = match value {
            Value::Array(list) => list.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|token| vec![token]),
        };
        self.typed(key, value, "a whole number or a list of them", tokens)
    }

    /// An object inside this one, if there is one.
    pub(super) fn object(&self, key: &'static str) -> Result<Option<Keys<'a>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = self.typed(key, value, "an object", value.as_object())?;
        Ok(Some(Keys { path: self.path, map }))
    }

    /// Refuses any value of `key` but `default`, which is also what an absent key means.
    pub(super) fn only(&self, key: &'static str, default: Value) -> Result<(), ConfigError> {
        match self.get(key) {
            Some(value) if *value != default => Err(self.unsupported(key, value, default.to_string())),
            _ => Ok(()),
        }
    }

    /// An error about a value that means something else than Phalanx can build.
    pub(super) fn unsupported(&self, key: &'static str, value: &Value, supported: String) -> ConfigError {
        ConfigError::Unsupported { path: self.path.into(), key, value: value.to_string(), supported }
    }

    fn typed<T>(
        &self,
        key: &'static str,
        value: &Value,
        wanted: &'static str,
        read: Option<T>,
    ) -> Result<T, ConfigError> {
        read.ok_or_else(|| ConfigError::Type {
            path: self.path.into(),
            key,
            value: value.to_string(),
            wanted,
        })
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|size| usize::try_from(size).ok())
}
