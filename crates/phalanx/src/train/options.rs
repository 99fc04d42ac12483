//! What an option of training is: one description, from which its field, flag, default, check and comparisons follow.

mod values;

use std::fmt::Display;

use phalanx_plan::nearest;

use super::TrainConfig;
use super::config::{ConfigError, OPTIONS};
pub(super) use values::OptionValue;

/// An option of training.
#[derive(Debug)]
pub struct OptionSpec {
    /// The name of its field and of its key in files; its flag has hyphens in place of underscores.
    pub name: &'static str,
    /// Its former name, which is still understood.
    pub alias: Option<&'static str>,
    /// What it belongs to.
    pub group: OptionGroup,
    /// What it means.
    pub help: &'static str,
    /// What stands for its value in texts; empty for a switch, which is on if its flag is given.
    pub value_name: &'static str,
    /// The values it can have, if they have names.
    pub choices: fn() -> &'static [&'static str],
    pub(super) kind: &'static str,
    /// Which values of its type it can have; empty for all.
    pub(super) rule: &'static str,
    pub(super) marks: &'static [Mark],
}

/// What options are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionGroup {
    /// The model.
    Model,
    /// A step of the optimizer.
    Step,
    /// Where and how exactly a step runs.
    Devices,
    /// The times by which transfers are scheduled.
    Costs,
    /// The run as a whole.
    Run,
    /// What is observed beside the steps.
    Watching,
    /// What is saved, and when.
    Checkpoints,
    /// A job of several processes.
    Ranks,
    /// Other ways to run the same operations.
    Debugging,
}

impl OptionGroup {
    /// The heading above its options.
    pub fn heading(self) -> &'static str {
        match self {
            OptionGroup::Model => "Model",
            OptionGroup::Step => "Step",
            OptionGroup::Devices | OptionGroup::Costs => "Devices",
            OptionGroup::Run => "Run",
            OptionGroup::Watching => "Watching",
            OptionGroup::Checkpoints => "Checkpoints",
            OptionGroup::Ranks => "Ranks (under phalanx launch, mpirun or srun)",
            OptionGroup::Debugging => "Debugging",
        }
    }
}

/// What distinguishes an option from most others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The bits of later steps depend on it, beside the model.
    AffectsBits,
    /// Ranks of a job need not agree on it: rank 0 decides, or each has its own.
    PerRank,
    /// It is useless unless another option is set.
    Needs(&'static str),
    /// It is set in place of another option.
    Excludes(&'static str),
    /// It is useless unless another option has one of these values.
    OnlyWith(&'static str, &'static [&'static str]),
    /// It is useless on one device, unless it has one of these values.
    SeveralDevices(&'static [&'static str]),
    /// It is useless in a process that no launcher has started.
    InJob,
}

impl OptionSpec {
    /// The option of this name, or formerly of this name.
    pub fn find(name: &str) -> Option<&'static OptionSpec> {
        OPTIONS.iter().find(|option| option.name == name || option.alias == Some(name))
    }

    /// Whether the bits of later steps depend on it, beside the model.
    pub fn affects_bits(&self) -> bool {
        self.marks.contains(&Mark::AffectsBits)
    }

    /// Whether all ranks of a job must have the same value.
    pub fn is_same_on_all_ranks(&self) -> bool {
        !self.marks.contains(&Mark::PerRank)
    }

    /// The option in place of which it is set.
    pub fn excludes(&self) -> Option<&'static str> {
        self.marks.iter().find_map(|mark| if let Mark::Excludes(other) = mark { Some(*other) } else { None })
    }

    /// Whether its flag takes no value.
    pub fn is_switch(&self) -> bool {
        self.value_name.is_empty()
    }

    /// Checks a value as a user writes it.
    pub fn check(&self, text: &str) -> Result<(), ConfigError> {
        TrainConfig::default().set(self.name, text)
    }

    /// The error of a value that is not of its type.
    pub(super) fn misread(&self, value: impl Display) -> ConfigError {
        let value = value.to_string();
        let choices = (self.choices)();
        let mut wanted = match choices {
            [] => format!("it must be {}", self.kind),
            _ => format!("it must be {} {}", self.kind, choices.join(", ")),
        };
        if !self.rule.is_empty() {
            wanted += &format!(", {}", self.rule);
        }
        if let Some(near) = nearest(value.trim_matches('"'), choices) {
            wanted += &format!("; did you mean {near}?");
        }
        ConfigError::Field { field: self.name, value, wanted }
    }
}

/// Makes the configuration, its defaults and the table of options from one entry for each option:
///
/// ```text
/// OptionGroup {
///     /// What it means: the field's documentation and the flag's help.
///     name was "former_name": Type = default, "VALUE" [Mark, Mark] where |value| condition, "condition in words";
/// }
/// ```
///
/// `was`, the marks and the condition may be left out. A switch has an empty value.
macro_rules! train_options {
    (@holds) => { |_| true };
    (@holds $holds:expr) => { $holds };
    (@text) => { "" };
    (@text $text:literal) => { $text };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    ($(#[$about:meta])* $($group:ident { $(
        $(#[doc = $doc:literal])+
        $name:ident $(was $alias:literal)?: $ty:ty = $default:expr, $value:literal
        $([$($mark:expr),*])? $(where $holds:expr, $rule:literal)?;
    )* })*) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[non_exhaustive]
        pub struct TrainConfig {
            $($($(#[doc = $doc])+ $(#[serde(alias = $alias)])? pub $name: $ty,)*)*
        }

        impl Default for TrainConfig {
            fn default() -> Self {
                TrainConfig { $($($name: $default,)*)* }
            }
        }

        /// All options, in the order of the fields.
        pub static OPTIONS: &[OptionSpec] = &[$($(OptionSpec {
            name: stringify!($name),
            alias: train_options!(@alias $($alias)?),
            group: OptionGroup::$group,
            help: concat!($($doc),+),
            value_name: $value,
            choices: <$ty as OptionValue>::choices,
            kind: <$ty as OptionValue>::KIND,
            rule: train_options!(@text $($rule)?),
            marks: &[$($($mark),*)?],
        },)*)*];

        /// Each method sets the field of its name.
        impl TrainConfig {
            $($($(#[doc = $doc])+
            #[must_use]
            pub fn $name(mut self, value: $ty) -> Self {
                self.$name = value;
                self
            })*)*

            /// Sets a field to a value as a user writes it, or to its default; whether it is a value.
            fn assign(&mut self, name: &str, text: Option<&str>) -> bool {
                match name {
                    $($(stringify!($name) => {
                        let value = text.map_or_else(|| Some($default), OptionValue::parse);
                        value.map(|value| self.$name = value).is_some()
                    })*)*
                    _ => false,
                }
            }

            /// The values of all options as a user writes them, if they are set, and whether they keep their rules.
            fn values(&self) -> Vec<(Option<String>, bool)> {
                vec![$($(shown(&self.$name, train_options!(@holds $($holds)?)),)*)*]
            }
        }
    };
}
pub(super) use train_options;

/// A value as a user writes it, and whether it keeps its rule.
pub(super) fn shown<T: OptionValue>(value: &T, holds: fn(&T::Present) -> bool) -> (Option<String>, bool) {
    (value.show(), value.present().is_none_or(holds))
}
