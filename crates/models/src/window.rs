//! Sliding windows of attention, written as `SIZE[,LAYER]`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// In some layers a position sees only the last ones before it.
///
/// Texts are generated within a window only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Positions that are seen, one's own among them.
    pub size: usize,
    /// The first layer with a window; all after it have one, too.
    pub from: usize,
}

impl SlidingWindow {
    /// What values are, for messages.
    pub const FORM: &str = "SIZE[,LAYER] with a SIZE of at least 1, such as 4096 or 4096,28";
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            0 => write!(f, "{}", self.size),
            from => write!(f, "{},{from}", self.size),
        }
    }
}

impl FromStr for SlidingWindow {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (size, from) = text.split_once(',').unwrap_or((text, "0"));
        let number = |text: &str| text.trim().parse::<usize>().map_err(drop);
        let window = SlidingWindow { size: number(size)?, from: number(from)? };
        if window.size > 0 { Ok(window) } else { Err(()) }
    }
}

impl Serialize for SlidingWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SlidingWindow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || de::Error::custom(format!("window `{text}` is unknown; use {}", Self::FORM));
        text.parse().map_err(|()| wrong())
    }
}
