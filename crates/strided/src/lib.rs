//! Copies, fills and ordered reductions of bytes that lie in strides: the loops, and the fastest way over them.
//!
//! A [`Nest`] is worked out once from extents and strides and knows no address; [`copy`], [`fill`] and [`reduce`] run
//! it on addresses that the caller answers for, [`copy_slices`] between slices. It is the only code that collapses
//! dimensions and the only strided copy: of transfers, ports and checkpoints, messages between threads, and deferred
//! copies. All of the crate moves bytes by address, so unsafe code is in every file but `nest`.

#[cfg(target_arch = "x86_64")]
mod abreast;
mod kernel;
mod nest;
mod reduce;
#[cfg(target_arch = "x86_64")]
mod registers;
#[cfg(target_arch = "x86_64")]
mod streamed;
#[cfg(test)]
mod tests;
mod transpose;

use std::fmt;

pub use kernel::{copy, copy_slices, fill};
pub use nest::{ByteRuns, Nest, Place, Strides, walk};
pub use reduce::{Addresses, reduce};

/// The most loops of a nest.
pub const MAX_LOOPS: usize = 6;

/// The most sources of a reduction.
pub const MAX_SOURCES: usize = 64;

/// How two numbers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum; integers wrap around.
    Sum,
    /// The larger one, or the one that is not a number.
    Max,
    /// The smaller one, or the one that is not a number.
    Min,
}

/// Where a reduction starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// From what the destination holds: `((d op s0) op s1) ...`.
    Destination,
    /// From the first source: `(s0 op s1) ...`.
    FirstSource,
}

/// What is moved or reduced, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
    /// A 32-bit signed integer.
    I32,
    /// A 64-bit signed integer.
    I64,
    /// So many bytes that are only moved.
    Bytes(usize),
}

impl Element {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 => 8,
            Element::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::F32 => f.write_str("f32"),
            Element::F64 => f.write_str("f64"),
            Element::I32 => f.write_str("i32"),
            Element::I64 => f.write_str("i64"),
            Element::Bytes(bytes) => write!(f, "bytes[{bytes}]"),
        }
    }
}
