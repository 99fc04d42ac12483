//! Masks: which elements a dropout zeroes.
//!
//! In the text of a chain a mask is one word, its numbers in the order below joined by `+`.

use std::fmt;
use std::str::FromStr;

use super::op::Field;
use crate::text::Attrs;

/// What decides, with the step and an element's place in the whole batch, whether the element becomes zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// The probability of zero.
    pub rate: f32,
    /// The run's seed.
    pub seed: u64,
    /// Which dropout of the model.
    pub salt: u64,
    /// Which microbatch.
    pub part: usize,
    /// Of how many.
    pub parts: usize,
    /// Into how many blocks the batch is cut before each is cut into parts.
    pub blocks: usize,
    /// Along which dimension the batch lies; of the text only if it is not 0.
    pub axis: usize,
}

impl Mask {
    /// Nothing becomes zero.
    pub const NONE: Mask = Mask { rate: 0.0, seed: 0, salt: 0, part: 0, parts: 1, blocks: 1, axis: 0 };
}

impl Field for Mask {
    fn put(&self, _key: &str, attrs: Attrs) -> Attrs {
        let Mask { rate, seed, salt, part, parts, blocks, axis } = self;
        let attrs = attrs.with("rate", rate).with("seed", seed).with("salt", salt);
        attrs.with("part", part).with("parts", parts).with("blocks", blocks).with_unless(&0, "batch", axis)
    }

    fn take(_key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        Ok(Mask {
            rate: attrs.take("rate")?,
            seed: attrs.take("seed")?,
            salt: attrs.take("salt")?,
            part: attrs.take("part")?,
            parts: attrs.take("parts")?,
            blocks: attrs.take("blocks")?,
            axis: attrs.take_or("batch", 0)?,
        })
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mask { rate, seed, salt, part, parts, blocks, axis } = self;
        write!(f, "{rate}+{seed}+{salt}+{part}+{parts}+{blocks}")?;
        if *axis == 0 { Ok(()) } else { write!(f, "+{axis}") }
    }
}

impl FromStr for Mask {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        fn number<T: FromStr>(word: &str) -> Result<T, ()> {
            word.parse().map_err(drop)
        }
        let words: Vec<&str> = word.split('+').collect();
        let (words, axis) = match words[..] {
            [ref words @ .., axis] if words.len() == 6 => (words, number(axis)?),
            ref words => (words, 0),
        };
        let [rate, seed, salt, part, parts, blocks] = *words else { return Err(()) };
        Ok(Mask {
            rate: number(rate)?,
            seed: number(seed)?,
            salt: number(salt)?,
            part: number(part)?,
            parts: number(parts)?,
            blocks: number(blocks)?,
            axis,
        })
    }
}
