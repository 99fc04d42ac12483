//! Cases as JSON: lists of nodes with the knobs of the passes, one object a line.
//!
//! Keys that no pass looks at are ignored, so that a case may carry what it expects.

mod list;

pub use list::{Config, ListCase};
