//! The types of options: how their values are read from flags and written in messages.

use std::path::PathBuf;

use phalanx_ir::Precision;
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Deserializer, Error, Visitor};

use crate::hf::SaveDtype;
use crate::pipeline::{Fusion, Overlap};
use crate::train::config::{Bits, Debug, LoraSave, OptimizerKind};
use crate::{Check, LrSchedule, Pin, Recompute};

/// A type of options: how its values are read from flags and written in messages.
pub trait OptionValue: Sized {
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

named_values!(
    OptimizerKind,
    LrSchedule,
    LoraSave,
    Bits,
    Debug,
    Overlap,
    Fusion,
    Check,
    Pin,
    Precision,
    Recompute,
    SaveDtype
);

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
