//! Tests of the models through their public interface.
#![allow(clippy::unwrap_used)]

mod texts;
