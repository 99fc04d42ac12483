//! What the programs of this folder share: the graphs, the body of a task, one measured point, and the search.
#![forbid(unsafe_code)]

// The files with which `phalanx bench tasks` measures ours, so that the two cannot mean different things. By path,
// because the whole of the package is not needed here and takes minutes to build.
#[path = "../../../../crates/bench/src/tasks/busy.rs"]
mod busy;
#[path = "../../../../crates/bench/src/tasks/cost.rs"]
mod cost;
#[path = "../../../../crates/bench/src/tasks/metg.rs"]
mod metg;
#[path = "../../../../crates/bench/src/tasks/pattern.rs"]
mod pattern;
mod point;

pub use busy::{busy, calibrate};
pub use cost::{Cost, SHARES, cost};
pub use metg::TaskWork;
pub use pattern::{Pattern, PatternShape, UnknownPattern};
pub use point::Point;

/// The middle of some values, the lower one of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
