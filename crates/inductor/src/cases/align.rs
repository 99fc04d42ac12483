//! Estimates of several ranks.

use serde::Deserialize;
use serde_json::json;

use super::{Answer, CaseError, Keys, collect, parse};
use crate::mode::PassMode;
use crate::model::{AlignError, align};

#[derive(Deserialize)]
struct AlignCase {
    rank: usize,
    rank_runtimes_ns: Vec<Vec<f64>>,
    mm_like: Vec<bool>,
}

pub(super) fn keys() -> Vec<&'static str> {
    vec!["aligned_runtime_ns"]
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Answer, CaseError> {
    let case: AlignCase = parse(line)?;
    let aligned = align(&case.rank_runtimes_ns, &case.mm_like, case.rank, mode)
        .map_err(|error| CaseError::Align { path: path(&error), error })?;
    Ok(collect(keys, [("aligned_runtime_ns", json!(aligned))]))
}

fn path(error: &AlignError) -> String {
    match error {
        AlignError::Rank { .. } => "rank".into(),
        AlignError::Ragged { rank, .. } => format!("rank_runtimes_ns[{rank}]"),
        AlignError::Time { rank, node, .. } => format!("rank_runtimes_ns[{rank}][{node}]"),
    }
}
