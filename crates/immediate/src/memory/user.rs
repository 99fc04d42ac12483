//! Which users use which bytes of an instance, how, and why one may not.
//!
//! Bytes are distinguished by span, and inside a span by the rectangle of elements: columns of one matrix have spans
//! that overlap and elements that do not. Users are values only; `access` keeps them apart.

use std::fmt;
use std::ops::Range;

use crate::instance::InstanceId;
use crate::space::Rect;

/// How bytes are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Only read.
    Read,
    /// Written, maybe read.
    Write,
    /// Read and written by an operation that commutes with others of its kind.
    Reduce,
}

/// What uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A closure over the bytes.
    Host,
    /// The copy plan of this number.
    Copy(u32),
}

/// Which bytes, counted from the first one of the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// From the first to the last.
    pub(crate) span: Range<usize>,
    /// The elements, in the coordinates of a whole instance; all bytes of the span if unknown.
    pub(crate) cells: Option<(InstanceId, Rect)>,
}

impl Footprint {
    pub(crate) fn overlaps(&self, other: &Footprint) -> bool {
        let spans = self.span.start < other.span.end && other.span.start < self.span.end;
        // Coordinates of different instances say nothing about each other, even if they lie on the same bytes.
        let apart = || match (&self.cells, &other.cells) {
            (Some((of, cells)), Some((other_of, others))) => of == other_of && !cells.overlaps(others),
            _ => false,
        };
        spans && !apart()
    }
}

/// A user of bytes of an instance.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) actor: Actor,
    pub(crate) mode: AccessMode,
    pub(crate) footprint: Footprint,
}

impl User {
    /// Whether the two must not be inside at the same time.
    pub(crate) fn clashes(&self, other: &User) -> bool {
        let both_read = (self.mode, other.mode) == (AccessMode::Read, AccessMode::Read);
        !both_read && self.footprint.overlaps(&other.footprint)
    }
}

/// Why bytes of an instance could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Its allocation has not come about.
    #[error("{0} is not ready; wait for its ready event")]
    NotReady(InstanceId),
    /// It is gone.
    #[error("{0} has been released; name the instance that took its place")]
    Released(InstanceId),
    /// Its bytes are only to be read.
    #[error("{0} is read-only; write to another instance")]
    ReadOnly(InstanceId),
    /// Another user uses the bytes and nothing orders the two.
    #[error("{mode} {instance} while {other} {other_mode} it; order one after the other by an event")]
    Unordered {
        /// The instance.
        instance: InstanceId,
        /// What was to be done with it.
        mode: AccessMode,
        /// What else uses it.
        other: Actor,
        /// How.
        other_mode: AccessMode,
    },
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Host => f.write_str("the host"),
            Actor::Copy(number) => write!(f, "copy c{number}"),
        }
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessMode::Read => "reads",
            AccessMode::Write => "writes",
            AccessMode::Reduce => "reduces into",
        })
    }
}
