//! Problems for the search: lists with results of the reference, and training steps on many devices.
#![allow(dead_code, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, reason = "the data is part of the test")]

pub mod graphs;
pub mod lists;
pub mod steps;
