//! Problems for the search: lists and graphs with results of the reference.
#![allow(dead_code, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, reason = "the data is part of the test")]

pub mod graphs;
pub mod lists;
