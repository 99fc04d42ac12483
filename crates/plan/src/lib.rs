//! Plans: how a model is laid out over devices and over time.
//!
//! [`parallelize`] turns a model and a [`Plan`] into a parallel graph. So far a plan knows one device and cuts the
//! batch into microbatches (gradient accumulation); the bits do not depend on how many.
#![forbid(unsafe_code)]

mod microbatch;

pub use microbatch::MicrobatchError;

use phalanx_ir::Id;
use phalanx_ir::graph::Graph;
use phalanx_ir::parallel::{DeviceId, ParallelGraph};

/// How a model is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Into how many parts the batch is cut, worked on one after the other.
    pub microbatches: usize,
}

impl Default for Plan {
    /// One device, the whole batch at once.
    fn default() -> Self {
        Plan { microbatches: 1 }
    }
}

/// Lays `model` out as `plan` says.
pub fn parallelize(model: &Graph, plan: &Plan) -> Result<ParallelGraph, MicrobatchError> {
    let device = DeviceId::from_index(0);
    if plan.microbatches == 1 {
        return Ok(ParallelGraph::on_one_device(model, device, |_| 0));
    }
    let (unrolled, microbatch) = microbatch::split_batch(model, plan.microbatches)?;
    Ok(ParallelGraph::on_one_device(&unrolled, device, |layer| microbatch[layer.index()]))
}
