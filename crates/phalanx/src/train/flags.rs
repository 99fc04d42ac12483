//! Flags made from the table of options: names, texts, values and checks are those of the table.

use std::marker::PhantomData;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{ConfigError, OPTIONS, OptionSpec, TrainConfig};

/// The options of a command.
pub trait OptionSet {
    /// Whether an option is one of them.
    fn has(option: &OptionSpec) -> bool;

    /// The values of options that are not given.
    fn defaults() -> TrainConfig {
        TrainConfig::default()
    }
}

/// The flags of a set of options that were given, with their values.
#[derive(Debug)]
pub struct OptionFlags<S> {
    given: Vec<(&'static OptionSpec, String)>,
    set: PhantomData<S>,
}

impl<S> Clone for OptionFlags<S> {
    fn clone(&self) -> Self {
        OptionFlags { given: self.given.clone(), set: PhantomData }
    }
}

impl<S> Default for OptionFlags<S> {
    fn default() -> Self {
        OptionFlags { given: Vec::new(), set: PhantomData }
    }
}

impl<S> OptionFlags<S> {
    /// The options that were given, with their values.
    pub fn given(&self) -> &[(&'static OptionSpec, String)] {
        &self.given
    }

    /// The names of the options that were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.given.iter().map(|(option, _)| option.name)
    }

    /// A configuration with the values of flags.
    pub fn set(&self, mut config: TrainConfig) -> Result<TrainConfig, ConfigError> {
        self.given.iter().try_for_each(|(option, text)| config.set(option.name, text))?;
        Ok(config)
    }
}

impl<S: OptionSet> OptionFlags<S> {
    /// Options by their names in files, with values as a user writes them.
    pub fn of_options<N: AsRef<str>, V: Into<String>>(
        options: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, ConfigError> {
        let mut given = Vec::new();
        for (name, text) in options {
            let (name, text) = (name.as_ref(), text.into());
            let known = || OPTIONS.iter().filter(|option| S::has(option)).map(|option| option.name);
            let option = OptionSpec::find(name).filter(|option| S::has(option));
            let option = option.ok_or_else(|| ConfigError::unknown_of(name, known()))?;
            option.check(&text)?;
            given.push((option, text));
        }
        Ok(OptionFlags { given, set: PhantomData })
    }
}

impl<S: OptionSet> Args for OptionFlags<S> {
    fn augment_args(command: Command) -> Command {
        let defaults = S::defaults();
        let all = OPTIONS.iter().filter(|option| S::has(option));
        command.args(all.map(|option| flag::<S>(option, defaults.value(option.name))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: OptionSet> FromArgMatches for OptionFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |option: &'static OptionSpec| match matches.value_source(option.name)? {
            ValueSource::CommandLine if option.is_switch() => Some((option, "true".to_string())),
            ValueSource::CommandLine => Some((option, matches.get_one::<String>(option.name)?.clone())),
            _ => None,
        };
        let given = OPTIONS.iter().filter(|option| S::has(option)).filter_map(value).collect();
        Ok(OptionFlags { given, set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(Self::from_arg_matches(matches)?.given);
        Ok(())
    }
}

/// The flag of an option.
fn flag<S: OptionSet>(option: &'static OptionSpec, default: Option<String>) -> Arg {
    let excluded = option.excludes().filter(|other| OptionSpec::find(other).is_some_and(S::has));
    let spelled = |name: &str| name.replace('_', "-");
    let mut help = option.help.trim().trim_end_matches('.').to_string();
    let flag = Arg::new(option.name)
        .long(spelled(option.name))
        .help_heading(option.group.heading())
        .aliases(option.alias.map(spelled))
        .conflicts_with_all(excluded);
    if option.is_switch() {
        return flag.help(help).action(ArgAction::SetTrue);
    }
    if let Some(default) = default {
        help += &format!(" [default: {default}]");
    }
    let parser = match (option.choices)() {
        [] => ValueParser::new(|text: &str| option.check(text).map(|()| text.to_string()).map_err(wanted)),
        choices => PossibleValuesParser::new(choices).into(),
    };
    flag.help(help).value_name(option.value_name).value_parser(parser)
}

/// What a value must be; the parser names the flag and the value.
fn wanted(error: ConfigError) -> String {
    match error {
        ConfigError::Field { wanted, .. } => wanted,
        error => error.to_string(),
    }
}
