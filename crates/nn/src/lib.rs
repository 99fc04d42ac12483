//! Models as functions: a [`Net`] is a place in the tree of names, a [`Tensor`] a value of the graph under construction.
//!
//! Layers with parameters are methods of [`Net`], which names their parameters by its path; layers without parameters are
//! methods of [`Tensor`]. The graph is static, so a layer needs no object: a model is a function from a place to a loss.
//! The first error is kept with the line that caused it, and whatever follows it is ignored, so models need no `?`.
//!
//! ```
//! use phalanx_nn::{F32, Net, Tensor, build_training};
//!
//! fn model(net: &Net) -> Tensor {
//!     let (x, y) = (net.input("x", F32, [net.batch(), 2]), net.input("y", F32, [net.batch(), 1]));
//!     let hidden = net.at("hidden").linear(&x, 16).tanh();
//!     net.at("out").linear(&hidden, 1).mse(&y)
//! }
//!
//! let built = build_training("line", 8, model)?;
//! assert!(built.graph.find("hidden.weight").is_some());
//! # Ok::<(), phalanx_nn::NnError>(())
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod attention;
mod elementwise;
mod error;
mod images;
mod layers;
mod losses;
mod net;
mod shapes;
mod tensor;

pub use attention::SelfAttention;
pub use error::NnError;
pub use images::ConvLayer;
pub use layers::{Dense, EmbeddingTable};
pub use net::{BuiltModel, Net, build_evaluation, build_training};
pub use phalanx_ir::DType::{self, Bool, F32, I32, I64};
pub use phalanx_ir::{Activation, Init, RopeScaling, Shape, Table};
pub use tensor::Tensor;

/// The label that leaves a position out of a cross-entropy, as in PyTorch.
pub const IGNORED: i64 = -100;
