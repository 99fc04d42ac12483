//! What a link between devices takes: pure arithmetic, without threads or clocks.
//!
//! A [`Link`] is a latency and a bandwidth; a [`Topology`] says over which links devices talk; [`Traffic`] says which
//! transfers hold up which. The same arithmetic predicts a step and throttles the transfers of a running one
//! (`net::Throttle`).

#![forbid(unsafe_code)]

mod link;
mod topology;
mod traffic;

pub use link::{Link, LinkError, rate, time};
pub use topology::{NetworkLevel, Topology, TopologyError};
pub use traffic::{Part, Traffic};
