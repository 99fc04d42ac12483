//! What holds for every program:
//!
//! 1. every slice lies in the arena and starts on an aligned byte;
//! 2. no slice that an operation writes, its scratch included, overlaps another slice of the same operation;
//! 3. an operation has at most [`MAX_SLICES`] of a kind;
//! 4. ports have the bytes of their type, and distinct names.

use std::collections::BTreeSet;

use crate::{ALIGNMENT, MAX_SLICES, Operation, Program, Slice};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A slice is outside the arena or unaligned.
    #[error("{what}: {bytes} bytes at {offset} are unaligned or outside the arena of {arena}")]
    Slice {
        /// The operation or port.
        what: String,
        /// Its first byte.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The arena.
        arena: u64,
    },
    /// An operation would write what it reads.
    #[error("{what}: a written slice overlaps another operand")]
    Overlap {
        /// The operation.
        what: String,
    },
    /// Too many operands.
    #[error("{what}: {found} operands of a kind; at most {MAX_SLICES} are possible")]
    TooMany {
        /// The operation.
        what: String,
        /// How many it has.
        found: usize,
    },
    /// A port has the wrong size or a name twice.
    #[error("port `{name}` is named twice or does not have the bytes of its type")]
    Port {
        /// The port.
        name: String,
    },
}

impl Program {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<ProgramError>> {
        let mut errors = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            let name = &self.kernels[operation.kernel as usize];
            let what = || format!("operation {index} ({name} of {})", self.label(operation));
            self.check_operation(operation, what, &mut errors);
        }
        let mut names = BTreeSet::new();
        for port in &self.ports {
            self.check_slice(port.slice, || format!("port `{}`", port.name), &mut errors);
            if port.slice.bytes != port.ty.bytes() as u64 || !names.insert(&port.name) {
                errors.push(ProgramError::Port { name: port.name.clone() });
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_operation(
        &self,
        operation: &Operation,
        what: impl Fn() -> String,
        errors: &mut Vec<ProgramError>,
    ) {
        let (reads, writes) = (self.slices(&operation.reads), self.slices(&operation.writes));
        for slice in reads.iter().chain(writes).chain([&operation.scratch]) {
            self.check_slice(*slice, &what, errors);
        }
        let found = reads.len().max(writes.len());
        if found > MAX_SLICES {
            errors.push(ProgramError::TooMany { what: what(), found });
        }
        let written: Vec<Slice> = writes.iter().copied().chain([operation.scratch]).collect();
        let clash = written.iter().enumerate().any(|(index, slice)| {
            let others = reads.iter().chain(&written[..index]);
            others.into_iter().any(|other| slice.overlaps(*other))
        });
        if clash {
            errors.push(ProgramError::Overlap { what: what() });
        }
    }

    fn check_slice(&self, slice: Slice, what: impl Fn() -> String, errors: &mut Vec<ProgramError>) {
        let Slice { offset, bytes } = slice;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.arena);
        if !inside || !offset.is_multiple_of(ALIGNMENT) {
            errors.push(ProgramError::Slice { what: what(), offset, bytes, arena: self.arena });
        }
    }
}
