//! PyTorch Inductor's overlap passes and cost models, exact or with their defects repaired, on JSON cases.
//!
//! [`model`] is the list of one device's launches that the passes reorder, [`fx`] the graph of values, [`nccl`] what
//! collectives take. [`search`] orders a list by the search of `phalanx_schedule`, for comparison; [`cases`] reads a case
//! and answers it. No training step goes through this crate.

#![forbid(unsafe_code)]

pub mod cases;
pub mod fx;
pub mod mode;
pub mod model;
pub mod nccl;
pub mod search;
