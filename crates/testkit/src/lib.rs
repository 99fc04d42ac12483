//! What tests of other crates share: a naive evaluator of models, finite differences, generated models, file tests.
//!
//! A dev-dependency only. Nothing here is fast; everything here is plain enough to be believed.
#![forbid(unsafe_code)]

pub mod differences;
pub mod eval;
pub mod filetest;
pub mod generate;
mod rng;

pub use phalanx_ir::Tensor;
pub use rng::Rng;
