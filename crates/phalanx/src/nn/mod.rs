//! Models of one's own: a function builds the model, [`Training`] trains it.
//!
//! [`Net`] and [`Tensor`] come from the crate `phalanx-nn`. [`Training`] compiles what the function builds for training
//! and for evaluation, on the devices, ranks and plan that [`Args`] say; the program is the same on one core and on many
//! hosts, and so are the bits.
//!
//! ```
//! use phalanx::nn::{Args, F32, Net, Tensor, Training};
//!
//! fn line(net: &Net) -> Tensor {
//!     let (x, y) = (net.input("x", F32, [net.batch(), 1]), net.input("y", F32, [net.batch(), 1]));
//!     net.at("line").linear(&x, 1).mse(&y)
//! }
//!
//! # fn main() -> phalanx::Result<()> {
//! let mut run = Training::new(&Args::default(), line).batch(4).sgd(0.1, 0.0).start()?;
//! for _ in 0..100 {
//!     run.step([("x", &[0.0, 1.0, 2.0, 3.0]), ("y", &[1.0, 3.0, 5.0, 7.0])])?;
//! }
//! assert!((run.session().read("line.weight")?[0] - 2.0).abs() < 0.1);
//! # Ok(())
//! # }
//! ```

mod args;
mod error;
mod evaluation;
mod feeds;
mod log;
mod metrics;
mod predict;
mod report;
mod run;
mod saved;
mod source;
mod steps;
mod training;

pub use args::Args;
pub(crate) use args::OwnModel;
pub use error::TrainingError;
pub use evaluation::MeanMetrics;
pub use feeds::{AsFeed, FeedElement, Feeds, OwnedFeed};
pub use metrics::{Metrics, StepOutcome};
pub use phalanx_nn::*;
pub use predict::Predictor;
pub use run::TrainingRun;
pub use source::ModelGraphs;
pub use training::Training;
