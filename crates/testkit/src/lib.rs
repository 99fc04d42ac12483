//! What tests of other crates share: a naive evaluator of models, finite differences, generated models, file tests,
//! small models with batches, a counting allocator.
//!
//! A dev-dependency only. Nothing here is fast; everything here is plain enough to be believed. The allocator is the one
//! place with unsafe code.

pub mod allocations;
pub mod differences;
pub mod eval;
pub mod filetest;
pub mod generate;
pub mod programs;
mod rng;
mod soak;
pub mod structures;
pub mod zoo;

pub use phalanx_ir::Tensor;
pub use rng::Rng;
pub use soak::cases;
