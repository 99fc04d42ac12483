//! What an option of training is: one description, from which its field, flag, default, check and comparisons follow.

use std::fmt::Display;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Deserializer, Error, Visitor};

use super::TrainConfig;
use super::config::{Bits, ConfigError, Debug, OPTIONS, OptimizerKind};
use crate::Pin;
use crate::pipeline::{Fusion, Overlap};
use crate::{Check, Recompute};

/// An option of training.
#[derive(Debug)]
pub struct OptionSpec {
    /// The name of its field and of its key in files; its flag has hyphens in place of underscores.
    pub name: &'static str,
    /// Its former name, which is still understood.
    pub alias: Option<&'static str>,
    /// What it belongs to.
    pub group: Group,
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
pub enum Group {
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

impl Group {
    /// The heading above its options.
    pub fn heading(self) -> &'static str {
        match self {
            Group::Model => "Model",
            Group::Step => "Step",
            Group::Devices | Group::Costs => "Devices",
            Group::Run => "Run",
            Group::Watching => "Watching",
            Group::Checkpoints => "Checkpoints",
            Group::Ranks => "Ranks (under phalanx launch, mpirun or srun)",
            Group::Debugging => "Debugging",
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

/// The name that is most like `text`, if one is.
pub(super) fn nearest<'a>(text: &str, names: &[&'a str]) -> Option<&'a str> {
    let scores = names.iter().map(|name| (strsim::jaro(text, name), *name));
    let best = scores.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.8).map(|(_, name)| name)
}

/// A type of options: how its values are read from flags and written in messages.
pub(super) trait OptionValue: Sized {
    /// What is there if the value is not absent.
    type Present;
    /// What values are called.
    const KIND: &'static str;
    /// The names of all values, if they have names.
    fn choices() -> &'static [&'static str] {
        &[]
    }
    fn parse(text: &str) -> Option<Self>;
    fn show(&self) -> Option<String>;
    fn present(&self) -> Option<&Self::Present>;
}

impl<T: OptionValue<Present = T>> OptionValue for Option<T> {
    type Present = T;
    const KIND: &'static str = T::KIND;
    fn choices() -> &'static [&'static str] {
        T::choices()
    }
    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }
    fn show(&self) -> Option<String> {
        self.as_ref()?.show()
    }
    fn present(&self) -> Option<&T> {
        self.as_ref()
    }
}

macro_rules! plain_values {
    ($($kind:literal: $($ty:ty),* => $show:expr;)*) => {
        $($(impl OptionValue for $ty {
            type Present = $ty;
            const KIND: &'static str = $kind;
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn show(&self) -> Option<String> {
                let show: fn(&$ty) -> String = $show;
                Some(show(self))
            }
            fn present(&self) -> Option<&Self> {
                Some(self)
            }
        })*)*
    };
}

plain_values! {
    "a whole number": usize, u64 => |number| number.to_string();
    "a number": f32, f64 => |number| format!("{number:?}");
    "true or false": bool => |is_on| is_on.to_string();
    "text": String => |text| text.clone();
    "a path": PathBuf => |path| path.display().to_string();
}

macro_rules! named_values {
    ($($ty:ty),*) => {
        $(impl OptionValue for $ty {
            type Present = $ty;
            const KIND: &'static str = "one of";
            fn choices() -> &'static [&'static str] {
                let mut names = Names(&[]);
                // It always fails: there is no value, only its type.
                _ = <$ty>::deserialize(&mut names);
                names.0
            }
            fn parse(text: &str) -> Option<Self> {
                <$ty>::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
            }
            fn show(&self) -> Option<String> {
                serde_json::to_value(self).ok()?.as_str().map(String::from)
            }
            fn present(&self) -> Option<&Self> {
                Some(self)
            }
        })*
    };
}

named_values!(OptimizerKind, Bits, Debug, Overlap, Fusion, Check, Pin, Recompute);

/// Learns the names of an enum's values from the way it is deserialized.
struct Names(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("there is no value"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.0 = names;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Makes the configuration, its defaults and the table of options from one entry for each option:
///
/// ```text
/// Group {
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
            group: Group::$group,
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
