//! Phalanx trains neural networks: a model and a plan become one static program for the whole step, replayed with
//! almost no overhead.
//!
//! The line through the system is [`pipeline`]; [`Trainer`] is what most users need:
//!
//! ```
#![doc = include_str!("../../../examples/mlp.rs")]
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod choice;
mod device;
mod emit;
mod error;
mod hashes;
mod memory;
mod session;
mod trainer;

pub mod bench;
pub mod ckpt;
pub mod costs;
pub mod data;
pub mod generate;
pub mod golden;
pub mod hf;
pub mod job;
pub mod layout;
pub mod overlap;
pub mod parity;
pub mod pipeline;
pub mod roofline;
pub mod testing;
pub mod timeline;
pub mod train;
pub mod watch;

pub use choice::{ChoiceError, PlanChoice};
pub use device::{Check, Flavor};
pub use error::Error;
pub use hashes::StateHashes;
pub use memory::OverBudget;
pub use phalanx_ir as ir;
pub use phalanx_kernels as kernels;
pub use phalanx_lower as lower;
pub use phalanx_lower::{Decays, Goal, Leaves, Optimizer, Rule};
pub use phalanx_models as models;
pub use phalanx_net as net;
pub use phalanx_net::{Link, LinkError};
pub use phalanx_ops as ops;
pub use phalanx_plan as plan;
pub use phalanx_plan::Plan;
pub use phalanx_program as program;
pub use phalanx_program::{Certificate, PortKind, Program};
pub use phalanx_runtime::Door;
pub use phalanx_schedule::recompute::Recompute;
pub use phalanx_schedule::{self as schedule, Schedule};
pub use session::{Feed, Profile, Session};
pub use trainer::{LearningRate, Step, Trainer};
