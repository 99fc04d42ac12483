//! Why there is no such plan.

use super::MAX_SOURCES;
use crate::instance::InstanceId;
use crate::layout::Element;
use crate::memory::AccessError;
use crate::space::Rect;

/// Why there is no such plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The pattern of a fill does not make up an element.
    #[error(
        "a pattern of {pattern} bytes for elements of {element}; an element must be one or several patterns"
    )]
    Pattern {
        /// Bytes of the pattern.
        pattern: usize,
        /// What the destination holds.
        element: Element,
    },
    /// Source and destination hold different things.
    #[error(
        "{source_id} holds {from} and {destination} holds {to}; copy between elements of one size, reduce one type"
    )]
    Elements {
        /// The source.
        source_id: InstanceId,
        /// What it holds.
        from: Element,
        /// The destination.
        destination: InstanceId,
        /// What that holds.
        to: Element,
    },
    /// Only numbers can be reduced.
    #[error("{destination} holds {element}, which cannot be reduced; use f32, f64, i32 or i64")]
    NotNumbers {
        /// The destination.
        destination: InstanceId,
        /// What it holds.
        element: Element,
    },
    /// A reduction has too few or too many sources.
    #[error("{sources} sources of a reduction; it has 1 to {MAX_SOURCES}")]
    SourceCount {
        /// How many.
        sources: usize,
    },
    /// An instance has another number of dimensions than the rectangle.
    #[error(
        "{instance} has the points {has} and the copy is over {rect}; both need the same number of dimensions"
    )]
    Ranks {
        /// The instance.
        instance: InstanceId,
        /// Its points.
        has: Box<Rect>,
        /// The rectangle of the copy.
        rect: Box<Rect>,
    },
    /// The destination's bytes are only to be read.
    #[error("{destination} is read-only; write to another instance")]
    ReadOnly {
        /// The destination.
        destination: InstanceId,
    },
    /// Source and destination share bytes.
    #[error("source and destination share bytes of {instance} over {domain}; go through another instance")]
    Overlap {
        /// The instance.
        instance: InstanceId,
        /// The points that are copied.
        domain: Box<Rect>,
    },
    /// Indices are not a row of integers.
    #[error("{instance} has the points {has} of {element}; indices are i32 or i64 along one dimension")]
    Indices {
        /// The instance.
        instance: InstanceId,
        /// Its points.
        has: Box<Rect>,
        /// What each holds.
        element: Element,
    },
    /// The plan does not use the instance that is to be replaced.
    #[error("copy c{plan} does not use {instance}; it uses {uses}")]
    NotUsed {
        /// The plan's number.
        plan: u32,
        /// The instance.
        instance: InstanceId,
        /// The destination of the plan.
        uses: InstanceId,
    },
}

/// Why a plan cannot be done now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CopyRefusal {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("index {position} of {indices} is {value}, but {table} has rows {lo} to {hi}; nothing is copied")]
    Index { position: usize, indices: InstanceId, value: i64, table: InstanceId, lo: i64, hi: i64 },
}
