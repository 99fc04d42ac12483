//! Why an operation did not complete. A fault poisons the operation's event and travels along events from there.

use std::fmt;
use std::sync::Arc;

/// What an event says once it has triggered: that its operation completed, or why not.
pub type Outcome = Result<(), Fault>;

/// The operation that did not complete, and why. Cheap to clone.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .0.operation, .0.cause)]
pub struct Fault(Arc<Inner>);

#[derive(PartialEq, Eq)]
struct Inner {
    operation: Box<str>,
    cause: Cause,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It was cancelled before the operation started.
    #[error("cancelled")]
    Cancelled,
    /// The body of a task failed, with its own words.
    #[error("failed: {0}")]
    Failed(Box<str>),
    /// A task did what it had promised not to do.
    #[error("{0}")]
    BrokenPromise(Box<str>),
    /// The runtime could not do what was asked.
    #[error("{0}")]
    Refused(Box<str>),
}

impl Fault {
    /// The fault of `operation`.
    pub fn new(operation: impl fmt::Display, cause: Cause) -> Fault {
        Fault(Arc::new(Inner { operation: operation.to_string().into(), cause }))
    }

    /// A body that failed, with its own words.
    pub fn failed(operation: impl fmt::Display, why: impl fmt::Display) -> Fault {
        Fault::new(operation, Cause::Failed(why.to_string().into()))
    }

    /// Something that the runtime could not do.
    pub fn refused(operation: impl fmt::Display, why: impl fmt::Display) -> Fault {
        Fault::new(operation, Cause::Refused(why.to_string().into()))
    }

    /// Which operation.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// What went wrong.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fault({self})")
    }
}
