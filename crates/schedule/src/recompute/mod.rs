//! Computing activations again in the backward pass instead of keeping them.
//!
//! A tensor that the forward pass computes and the backward pass reads lies in memory all the time between. Instead, its
//! task can run a second time just before the first backward reader; the first result then dies with its last forward
//! reader. Kernels give the same bits every time, so no result changes: memory is paid for with time. Decided is per
//! tensor, for all its tiles and microbatches together, so that devices that do the same stay alike.
//!
//! [`candidates`] lists what can be computed again, [`apply`] does it for a [`RecomputeChoice`]. [`full`] chooses nearly
//! everything, [`auto`] no more than it takes to fit. What was received from another device is never computed again.

mod apply;
mod auto;
mod candidates;
mod full;
mod gain;
mod twins;
mod uses;

pub use apply::apply;
pub use auto::{Fitted, Peak, StepDoesNotFit, auto};
pub use candidates::{RecomputeCandidate, candidates};
pub use full::full;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use phalanx_ir::tasks::BufferId;
use serde::{Deserialize, Serialize};

/// How much a user wants to be computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// As little as makes every device's memory suffice.
    #[default]
    Auto,
    /// Everything between the tensors at which the model is narrow.
    Full,
}

const WORDS: [(Recompute, &str); 3] =
    [(Recompute::None, "none"), (Recompute::Auto, "auto"), (Recompute::Full, "full")];

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(value, _)| value == self).map_or("", |(_, word)| word);
        f.write_str(word)
    }
}

/// A word that is none of `none`, `auto` and `full`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` does not say what is computed again: use none, auto or full")]
pub struct UnknownRecompute {
    /// The word.
    pub word: String,
}

impl FromStr for Recompute {
    type Err = UnknownRecompute;

    fn from_str(word: &str) -> Result<Self, UnknownRecompute> {
        let known = WORDS.iter().find(|(_, known)| *known == word).map(|&(value, _)| value);
        known.ok_or_else(|| UnknownRecompute { word: word.to_string() })
    }
}

/// The buffers that are computed again where the backward pass reads them; each owns its bytes.
///
/// A task computes all its results at once, so one of them stands for all. What cannot be computed again is kept, chosen
/// or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecomputeChoice {
    buffers: BTreeSet<BufferId>,
}

impl RecomputeChoice {
    /// How many buffers there are.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether nothing is computed again.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Whether `buffer` is among them.
    pub fn contains(&self, buffer: BufferId) -> bool {
        self.buffers.contains(&buffer)
    }

    /// The buffers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.buffers.iter().copied()
    }
}

impl FromIterator<BufferId> for RecomputeChoice {
    fn from_iter<I: IntoIterator<Item = BufferId>>(buffers: I) -> Self {
        RecomputeChoice { buffers: buffers.into_iter().collect() }
    }
}

impl Extend<BufferId> for RecomputeChoice {
    fn extend<I: IntoIterator<Item = BufferId>>(&mut self, buffers: I) {
        self.buffers.extend(buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_what_they_print() {
        for (value, word) in WORDS {
            assert_eq!((word.parse(), value.to_string()), (Ok(value), word.to_string()));
        }
        let error = "some".parse::<Recompute>().unwrap_err();
        assert_eq!(error.to_string(), "`some` does not say what is computed again: use none, auto or full");
    }
}
