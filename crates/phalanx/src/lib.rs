//! Phalanx trains neural networks: a model and a plan become one static program for the whole step, replayed with
//! almost no overhead.
//!
//! [`nn`] is for models of one's own: a function builds the model, [`nn::Training`] trains it on any devices.
//! [`Trainer`] is the layer below, for graphs from elsewhere; [`train`] does a whole training run from one configuration, with data, checkpoints
//! and several processes. [`pipeline`] is the line through the system. What only tools and tests need is in [`internals`].
//!
//! ```
#![doc = include_str!("../../../examples/mlp.rs")]
//! ```
#![forbid(unsafe_code)]

mod bounds;
mod cache;
mod choice;
mod classes;
mod cluster;
mod costs;
mod device;
#[cfg(doctest)]
mod documents;
mod emit;
mod error;
mod files;
mod hashes;
mod layout;
mod memory;
mod overlap;
mod pin;
mod roofline;
mod seal;
mod session;
mod setters;
mod simulation;
mod timeline;
mod trainer;
mod watch;

pub mod artifact;
pub mod ckpt;
pub mod data;
pub mod generate;
pub mod hf;
pub mod job;
pub mod nn;
pub mod pipeline;
pub mod testing;
pub mod train;

pub use cache::{ProgramCache, cache_dir};
pub use choice::{ChoiceError, PlanChoice};
pub use cluster::{Cluster, ClusterError, MeasuredCluster, MeasuredLink};
pub use costs::{DeviceModel, DeviceModelError};
pub use device::{Check, Flavor};
pub use error::Error;
pub use hashes::StateHashes;
pub use memory::OverBudget;
pub use phalanx_import as import;
pub use phalanx_ir as ir;
pub use phalanx_link::{Link, LinkError, NetworkLevel, Topology, TopologyError};
pub use phalanx_lower::{Decays, Goal, Leaves, Optimizer, ParameterGroup, UpdateRule};
pub use phalanx_models as models;
pub use phalanx_ops as ops;
pub use phalanx_plan::{self as plan, Plan};
pub use phalanx_program::{Certificate, PortKind, Program};
pub use phalanx_runtime::ExecutionMode;
pub use phalanx_schedule::Schedule;
pub use phalanx_schedule::recompute::Recompute;
pub use pin::Pin;
pub use pipeline::{CompileError, Fusion, Overlap, Settings};
pub use session::{Feed, Profile, Session};
pub use simulation::{ClassRow, Simulation};
pub use trainer::{LearningRate, LrSchedule, Step, Trainer};

/// What most functions of this library return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kernels of operators of one's own: see `examples/custom_operator.rs`.
pub mod kernels {
    pub use phalanx_kernels::{Call, Kernel, Sizes, Words, Work, params, signature, table};
}

/// What tools and tests need beyond the rest: reports of steps and runs, kernel times, and the crates below.
/// It may change with every version.
pub mod internals {
    pub use crate::session::polls;
    pub use phalanx_kernels as kernels;
    pub use phalanx_lower as lower;
    pub use phalanx_net as net;
    pub use phalanx_opencl as opencl;
    pub use phalanx_program as program;
    pub use phalanx_schedule as schedule;

    /// Times of kernels: measured, kept in files, estimated.
    pub mod costs {
        pub use crate::costs::*;
    }
    /// Reading small files, never more of them than such files have.
    pub mod files {
        pub use crate::files::*;
    }
    /// How a model lies on devices, for people.
    pub mod layout {
        pub use crate::layout::*;
    }
    /// What becomes of transfers in a step, for people.
    pub mod overlap {
        pub use crate::overlap::*;
    }
    /// Where the time of a step goes, and what the machine could do.
    pub mod roofline {
        pub use crate::roofline::*;
    }
    /// A step as a trace and as a page.
    pub mod timeline {
        pub use crate::timeline::*;
    }
    /// What people see of a run.
    pub mod watch {
        pub use crate::watch::*;
    }
}
