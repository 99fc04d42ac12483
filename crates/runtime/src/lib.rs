//! Replays programs.
//!
//! The runtime knows bytes and the order of operations, nothing of operators: kernels arrive as a [`Kernels`] table, so
//! it is tested with kernels that only count. Unsafe code lives in `arena` (slices of owned memory), `mapping` (files as
//! memory), `lanes` (a closure shared with threads), and where arenas are used during a run (`replay`, `transfer`).

mod arena;
mod counter;
mod lanes;
mod mapping;
mod ports;
mod rect;
mod replay;
mod transfer;

pub use arena::Arena;
pub use mapping::Mapping;
pub use ports::PortError;
pub use rect::Tile;
pub use replay::{Args, Kernels, Replay};
pub use transfer::{MAX_PARTS, Piece};
