//! Which parameters stay as they are: those that the patterns of an optimizer say.

use phalanx_ir::graph::LayerGraph;
use phalanx_ir::{Glob, Op};

use crate::{LowerError, Optimizer};

/// The patterns of an optimizer, read; see [`Optimizer::frozen`].
pub struct FrozenParameters {
    /// Whether each freezes what it matches, and the pattern.
    patterns: Vec<(bool, Glob)>,
}

impl FrozenParameters {
    /// Reads the patterns of an optimizer. Each must match a parameter of the model.
    pub fn new<T, L>(
        optimizer: &Optimizer,
        model: &LayerGraph<T, L>,
    ) -> Result<FrozenParameters, LowerError> {
        let params = model.leaves(|op| matches!(op, Op::Param(_)));
        let names: Vec<&str> = params.map(|param| model.values()[param].name.as_str()).collect();
        FrozenParameters::of_names(&optimizer.frozen, &names)
    }

    fn of_names(patterns: &[String], names: &[&str]) -> Result<FrozenParameters, LowerError> {
        let read = |text: &String| {
            let (freezes, pattern) = match text.strip_prefix('!') {
                Some(pattern) => (false, pattern),
                None => (true, text.as_str()),
            };
            let unclosed = || LowerError::FrozenPattern { pattern: text.clone() };
            let glob = Glob::new(pattern).ok_or_else(unclosed)?;
            match names.iter().any(|name| glob.matches(name)) {
                true => Ok((freezes, glob)),
                false => {
                    let close = glob.closest(names.iter().copied());
                    Err(LowerError::NothingFrozen { pattern: text.clone(), close })
                }
            }
        };
        Ok(FrozenParameters { patterns: patterns.iter().map(read).collect::<Result<_, _>>()? })
    }

    /// Whether the parameter of this name stays as it is.
    pub fn contains(&self, name: &str) -> bool {
        let others = self.patterns.first().is_some_and(|(freezes, _)| !freezes);
        let last = self.patterns.iter().rev().find(|(_, glob)| glob.matches(name));
        last.map_or(others, |(freezes, _)| *freezes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["wte.weight", "h.0.w", "h.1.w", "h.10.w"];

    fn frozen(patterns: &[&str]) -> Result<Vec<&'static str>, String> {
        let patterns = Optimizer::sgd(0.0).frozen(patterns.iter().copied()).frozen;
        let frozen = FrozenParameters::of_names(&patterns, &NAMES).map_err(|error| error.to_string())?;
        Ok(NAMES.into_iter().filter(|name| frozen.contains(name)).collect())
    }

    #[test]
    fn the_last_pattern_that_matches_counts() {
        assert_eq!(frozen(&[]).unwrap(), [""; 0]);
        assert_eq!(frozen(&["*wte*", "h.0.*"]).unwrap(), ["wte.weight", "h.0.w"]);
        assert_eq!(frozen(&["h.*", "!h.1*"]).unwrap(), ["h.0.w"]);
        assert_eq!(frozen(&["!h.1*", "h.10.*"]).unwrap(), ["wte.weight", "h.0.w", "h.10.w"]);
    }

    #[test]
    fn a_pattern_that_matches_nothing_names_near_parameters() {
        let error = frozen(&["*wtf*"]).unwrap_err();
        assert!(error.contains("`*wtf*`") && error.contains("`wte.weight`"), "{error}");
        assert!(frozen(&["!h.[0"]).unwrap_err().contains("`!h.[0`"));
    }
}
