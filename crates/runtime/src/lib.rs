//! Replays programs.
//!
//! The runtime knows bytes and the order of operations, nothing of operators: kernels arrive as a [`Kernels`] table, so
//! it is tested with kernels that only count. Unsafe code lives in `arena` (slices of owned memory)
//! and `mapping` (files as memory).

mod arena;
mod mapping;
mod replay;

pub use arena::Arena;
pub use mapping::Mapping;
pub use replay::{Args, Kernels, PortError, Replay};
