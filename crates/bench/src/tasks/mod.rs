//! Graphs of equal tasks in the shapes of Task Bench: what a task costs, and how short it may be.
//!
//! A graph is `steps` rows of `width` tasks; a task reads some tasks of the row before, which its pattern says. All
//! its tasks have the same body, so whatever time a graph takes beyond its bodies is the executor's own.
//!
//! `pattern`, `busy`, `metg` and `cost` use nothing else of this crate: the programs that measure other systems compile
//! the same four files.

mod busy;
mod cost;
mod flows;
mod measure;
mod metg;
mod ours;
mod parts;
mod pattern;
mod timing;

pub use busy::{busy, calibrate};
pub use cost::{Cost, SHARES, cost};
pub use flows::{FlowKind, FlowResult, freeze};
pub use measure::{GraphResult, ModeCost, PointResult, TasksBench};
pub use metg::{TaskWork, metg};
pub use ours::{LaunchMode, Ours, TasksError};
pub use parts::TaskParts;
pub use pattern::{Pattern, PatternShape, UnknownPattern};
pub use timing::Spread;
