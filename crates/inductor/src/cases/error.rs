//! What is wrong with a case, and where.

use crate::fx;
use crate::model::{AlignError, FsdpError, LaunchGraphError};

/// Why a case has no answer. Every message begins with the path of the field in the case's object.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum CaseError {
    /// It is no JSON, or a field is missing or of a wrong type.
    #[error("{path}: {problem} (column {column})")]
    Json { path: String, problem: String, column: usize },
    /// Nothing says what kind of case it is.
    #[error("type: {found}; it must be one of {known}, or `collective` and `bytes` must be there")]
    Kind { found: String, known: String },
    /// The list is no graph.
    #[error("{path}: {error}")]
    List { path: String, error: LaunchGraphError },
    /// The values are no graph.
    #[error(transparent)]
    Values(#[from] fx::FxCaseError),
    /// Estimates cannot be aligned.
    #[error("{path}: {error}")]
    Align { path: String, error: AlignError },
    /// A traced step has no blocks.
    #[error("nodes: {error}")]
    Fsdp {
        #[from]
        error: FsdpError,
    },
    /// A collective that the model does not know.
    #[error(
        "collective: `{name}` has no cost in the model of {version}; known are all_reduce, all_gather, reduce_scatter \
         and all_to_all, in 2.15 also isend, irecv and batch_p2p"
    )]
    Collective { name: String, version: &'static str },
    /// A number out of its range.
    #[error("{path}: {value} is out of range; it must be {needed}")]
    Range { path: &'static str, value: f64, needed: &'static str },
}

impl From<serde_path_to_error::Error<serde_json::Error>> for CaseError {
    fn from(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        // A part of the path that is not known yet is a question mark.
        let path = error.path().to_string();
        let path = match path.trim_end_matches('?').trim_end_matches('.') {
            "" => "the case".to_string(),
            path => path.to_string(),
        };
        let inner = error.into_inner();
        let problem = inner.to_string();
        // A case is one line: the parser's line number says nothing.
        let place = format!(" at line {} column {}", inner.line(), inner.column());
        let problem = problem.strip_suffix(&place).unwrap_or(&problem).to_string();
        CaseError::Json { path, problem, column: inner.column() }
    }
}
