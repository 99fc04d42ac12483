//! The types of every level of a training step, from the model to the tasks of each device.
//!
//! | level | type | made by |
//! | --- | --- | --- |
//! | model | [`graph::Graph`] | `models`, or a user's own code |
//! | model on devices | [`parallel::ParallelGraph`] | `plan::parallelize` |
//! | tasks on tiled tensors | [`sharded::ShardedGraph`] | the first passes of `lower` |
//! | tasks on tiles | [`tasks::TaskGraph`] | the last passes of `lower` |
//!
//! Each level has a builder (the only way to make one), a verifier, a printer and a parser; printing and parsing are
//! inverse to each other. Nothing here runs, prints to a terminal, or reads a file.
#![forbid(unsafe_code)]

mod dtype;
mod glob;
mod id;
mod names;
mod op;
mod people;
mod precision;
mod shape;
mod table;
mod tensor;

pub mod graph;
pub mod parallel;
pub mod sharded;
pub mod tasks;
pub mod text;

pub use dtype::DType;
pub use glob::Glob;
pub use id::{Id, IdVec};
pub use names::{MAX_NAMES, Names};
pub use op::{
    Activation, Apart, Attribute, Binary, CompareKind, ConvAxis, Cuts, Dims, IndexBound, Init, LayerTasks,
    MAX_SPACE, Op, Operands, Operator, Operators, Part, PoolAxis, Pooling, Reduce, Resampling, ResizeAxis,
    RopeScaling, RowLeaves, RowSum, ScaleFactors, Slots, Space, Unary, each, fill_task, reduce_task, space,
};
pub use people::bytes_text;
pub use precision::Precision;
pub use shape::{MAX_ELEMENTS, MAX_RANK, OpError, Shape, TensorType, cut_choices, leaves_of};
pub use table::{INLINE, Table};
pub use tensor::Tensor;
