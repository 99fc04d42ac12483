//! Which group of an optimizer a parameter belongs to.

use phalanx_ir::Glob;

use crate::{LowerError, Optimizer, ParameterGroup};

/// The groups of an optimizer, their patterns read.
pub struct GroupPatterns<'a>(Vec<(Glob, &'a ParameterGroup)>);

impl<'a> GroupPatterns<'a> {
    /// Reads the patterns of an optimizer. Each must match one of the parameters.
    pub fn new(optimizer: &'a Optimizer, names: &[&str]) -> Result<GroupPatterns<'a>, LowerError> {
        let read = |group: &'a ParameterGroup| {
            let pattern = group.pattern.clone();
            let Some(glob) = Glob::new(&pattern) else { return Err(LowerError::GroupPattern { pattern }) };
            match names.iter().any(|name| glob.matches(name)) {
                true => Ok((glob, group)),
                false => Err(LowerError::EmptyGroup { pattern, close: glob.closest(names.iter().copied()) }),
            }
        };
        Ok(GroupPatterns(optimizer.groups.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// The last group whose pattern matches a name.
    pub fn find(&self, name: &str) -> Option<&'a ParameterGroup> {
        self.0.iter().rev().find(|(glob, _)| glob.matches(name)).map(|(_, group)| *group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_group_that_matches_counts() {
        let optimizer = Optimizer::sgd(0.0).group("body.*", 0.1, None).group("*.bias", 1.0, Some(0.0));
        let groups = GroupPatterns::new(&optimizer, &["body.w", "body.bias", "head.w"]).unwrap();
        let found = ["body.w", "body.bias", "head.w"].map(|name| groups.find(name).map(|group| group.rate));
        assert_eq!(found, [Some(0.1), Some(1.0), None]);
    }

    #[test]
    fn a_group_without_parameters_names_near_ones() {
        let error = |pattern: &str| {
            let optimizer = Optimizer::sgd(0.0).group(pattern, 1.0, None);
            GroupPatterns::new(&optimizer, &["head.w"]).err().map(|error| error.to_string())
        };
        let text = error("hat.*").unwrap();
        assert!(text.contains("`hat.*`") && text.contains("`head.w`"), "{text}");
        assert!(error("[").unwrap().contains("close its brackets"));
        assert_eq!(error("head.*"), None);
    }
}
