//! Tests of models as functions.
#![allow(clippy::unwrap_used)]

mod errors;
mod graphs;
