//! Where two artifacts differ: what they were made of first, what came of it last.

use serde::Serialize;
use serde_json::Value;

use super::{Artifact, ArtifactFiles};
use crate::Error;
use crate::train::value_differences;

/// A difference between two artifacts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactDifference {
    /// The field of the manifest, or the file with the number of the first line that differs.
    pub what: String,
    /// What it is on the left.
    pub left: String,
    /// What it is on the right.
    pub right: String,
}

/// All fields that differ, and of each text that differs the first line.
pub fn differences(left: &Artifact, right: &Artifact) -> Result<Vec<ArtifactDifference>, Error> {
    let [left_json, right_json] = [left, right].map(|artifact| {
        let described = artifact.describe(Vec::new()).ok();
        serde_json::to_value(described).unwrap_or(Value::Null)
    });
    let fields = value_differences("", &left_json, &right_json).into_iter();
    let mut all: Vec<ArtifactDifference> = fields
        .map(|(what, left, right)| {
            let what = what.trim_start_matches('.').to_string();
            ArtifactDifference { what, left, right }
        })
        .collect();
    let [left, right] = [left.to_files()?, right.to_files()?];
    let mut names: Vec<&String> = left.0.keys().chain(right.0.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let files = names.into_iter().filter(|name| *name != super::read::MANIFEST);
    all.extend(files.filter_map(|name| of_file(name, &left, &right)));
    Ok(all)
}

/// How a file differs, if it does.
fn of_file(name: &str, left: &ArtifactFiles, right: &ArtifactFiles) -> Option<ArtifactDifference> {
    let [left, right] = [left, right].map(|files| files.0.get(name));
    if left == right {
        return None;
    }
    let absent = |bytes: Option<&Vec<u8>>| bytes.map_or("absent".into(), |_| "there".to_string());
    let (Some(left), Some(right)) = (left, right) else {
        return Some(ArtifactDifference { what: name.into(), left: absent(left), right: absent(right) });
    };
    let [left, right] = [left, right].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let mut lines =
        (1..).zip(left.lines().map(Some).chain([None]).zip(right.lines().map(Some).chain([None])));
    let (line, (left, right)) = lines.find(|(_, (left, right))| left != right)?;
    let shown = |line: Option<&str>| line.map_or("its end".into(), |line| line.trim().to_string());
    Some(ArtifactDifference { what: format!("{name}:{line}"), left: shown(left), right: shown(right) })
}
