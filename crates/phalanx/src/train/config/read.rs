//! Reading a configuration from a TOML file.

use std::ops::Range;
use std::path::Path;

use toml::de::DeTable;

use super::{ConfigError, OptionSpec, TrainConfig};
use crate::files;

impl TrainConfig {
    /// Reads a TOML file with one option a line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            files::read_text(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
        TrainConfig::parse(&text)
            .map_err(|error| ConfigError::File { path: path.into(), source: Box::new(error) })
    }

    /// Reads the text of such a file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text)?;
        let at_line = |place: Range<usize>, error: ConfigError| {
            let line = text[..place.start].matches('\n').count() + 1;
            ConfigError::Line { line, source: Box::new(error) }
        };
        for key in table.get_ref().keys() {
            if OptionSpec::find(key.get_ref()).is_none() {
                return Err(at_line(key.span(), ConfigError::unknown(key.get_ref())));
            }
        }
        toml::from_str(text).map_err(|error| {
            let place = error.span().unwrap_or_default();
            let mut values = table.get_ref().iter();
            let value = values.find(|(_, value)| value.span().contains(&place.start));
            let found = value.and_then(|(key, value)| Some((OptionSpec::find(key.get_ref())?, value.span())));
            match found {
                Some((option, place)) => at_line(place.clone(), option.misread(&text[place])),
                None => ConfigError::Parse(error),
            }
        })
    }
}
