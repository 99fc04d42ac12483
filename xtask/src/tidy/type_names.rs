//! Public types have names that are unique in the workspace, so that a name in a message or a search means one thing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::read;

/// Names that several public types share, with the reason.
const SHARED: &[(&str, &str)] = &[
    (
        "Attention Broadcast CountLabels CrossEntropy Embedding Function LayerNorm Mask Normalize RmsNorm Rotary \
         SquaredDeviations",
        "an operator or its attribute, and what its kernel takes of it",
    ),
    ("Args Command", "the arguments of one subcommand each; the module names it"),
    (
        "Builder Graph Task",
        "of the model in `ir`, of the program, and of the runtime's executor; no file uses two of them",
    ),
    ("Lane Piece Rect Tile", "the same thing on two levels: in the task graph or program, and in memory"),
    (
        "AccessError ConfigError Difference Failure Fault LaunchError LayoutError",
        "what went wrong with the operation of one module; callers see it through that operation's result",
    ),
    (
        "Measured Mode Options Outcome Profile Report Request",
        "settings or result of one operation each, used with the name of its module",
    ),
    (
        "Arrival Blocks Dims Job Launch Launcher Layout Machine Operands Part Run Step Table Tensor Watch Way",
        "one in the half that compiles, one in the half that runs or in a tool; no file uses two of them",
    ),
];

/// Reports public types of crates that share a name, and entries of [`SHARED`] that are no longer needed.
pub fn check_type_names(root: &Path, files: &[PathBuf], offences: &mut Vec<String>) {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(root).unwrap_or(file).display().to_string();
        if path.starts_with("crates/") && path.contains("/src/") && !path.ends_with("tests.rs") {
            for (line, name) in public_types(&read(file)) {
                places.entry(name).or_default().push(format!("{path}:{line}"));
            }
        }
    }
    let shared = || SHARED.iter().flat_map(|(names, _)| names.split(' '));
    let is_shared = |name: &str| shared().any(|shared| shared == name);
    for (name, places) in places.iter().filter(|(name, places)| places.len() > 1 && !is_shared(name)) {
        let places = places.join(", ");
        offences.push(format!("{places}: public types share the name `{name}`; rename all but one"));
    }
    for name in shared().filter(|name| places.get(*name).is_none_or(|places| places.len() < 2)) {
        offences
            .push(format!("xtask/src/tidy/type_names.rs: `{name}` is unique now; remove it from the list"));
    }
}

/// The public types that a file declares, each with its line.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let declared = |line: &str| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let (kind, name) = rest.split_once(' ')?;
        let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
        let is_type = ["struct", "enum", "union", "trait", "type"].contains(&kind);
        (is_type && !name.is_empty()).then_some(name)
    };
    (1..).zip(text.lines()).filter_map(|(line, text)| Some((line, declared(text)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_types_count() {
        let text = "pub struct Lane<'a> {\n  pub enum Kind;\npub(crate) struct Own;\npub fn Made() {}\npub type Run = ();\n";
        let found = public_types(text);
        assert_eq!(found, [(1, "Lane".to_string()), (2, "Kind".to_string()), (5, "Run".to_string())]);
    }
}
