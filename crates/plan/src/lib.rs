//! Plans: how a model is laid out over devices and over time.
//!
//! A [`Plan`] is a small text: a mesh of devices, rules that give dimensions of tensors to its axes, stages of a pipeline,
//! microbatches. [`preset`] writes the usual ones; [`parallelize`] turns a model and a plan into a parallel graph. No plan
//! changes what is computed.
//!
//! ```
//! use phalanx_ir::{Init, TensorType, graph::Builder};
//! use phalanx_ops::Layers;
//! use phalanx_plan::{parallelize, preset};
//! let mut model = Builder::new("line");
//! let x = model.input("x", TensorType::f32([4, 2]))?;
//! let w = model.param("w", [1, 2], Init::Normal(0.1))?;
//! let y = model.linear("y", x, w, None)?;
//! let model = model.finish([y]);
//! let plan = preset("dp2", 2, &model)?;
//! println!("{}\n{}", plan.to_text(), parallelize(&model, &plan)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod classes;
mod error;
mod file;
mod microbatch;
mod parallelize;
mod plan;
mod presets;
mod whole;

pub use error::{PlanError, Said};
pub use file::nearest;
pub use microbatch::MicrobatchError;
pub use parallelize::parallelize;
pub use plan::{MOST_DEVICES, Mesh, Pipeline, Plan, PlanRule};
pub use presets::{PRESETS, preset};
pub use whole::{LeftWhole, left_whole};
