//! What is wrong with a model, and on which line.

use std::panic::Location;

/// The first error of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct NnError {
    /// The source file of the call that failed.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// What is wrong.
    pub problem: String,
}

impl NnError {
    /// A problem of the call at `location`.
    pub(crate) fn new(location: &'static Location<'static>, problem: impl Into<String>) -> Self {
        NnError { file: location.file(), line: location.line(), problem: problem.into() }
    }
}
