//! What a link between devices takes: pure arithmetic, without threads or clocks.
//!
//! A [`Link`] is a latency and a bandwidth; [`Traffic`] says which transfers hold up which. The same arithmetic predicts a
//! step and holds the transfers of a running one back (`net::Wire`).

#![forbid(unsafe_code)]

mod link;
mod traffic;

pub use link::{Link, LinkError};
pub use traffic::{Part, Traffic};
