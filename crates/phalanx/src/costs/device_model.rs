//! Devices that one does not have: kernel times from a few figures of their data sheet, for predictions.
//!
//! ```toml
//! name = "A100 80 GB"
//! launch = "4us"                  # what every kernel takes besides
//!
//! [product]                       # matrix products and attention
//! peak = 312e12                   # operations a second
//! share = [[0, 0.1], [1e9, 0.6]]  # of the peak, from so many operations on
//!
//! [memory]                        # everything else, and products that are bound by it
//! bandwidth = "2048GB"
//! share = [[0, 0.8]]              # of the bandwidth, from so many bytes on
//!
//! [bytes]                         # of each element, whatever this program computes in
//! weights = 2
//! activations = 2                 # gradients, too
//! state = 12                      # all optimizer state of a parameter
//! ```
//!
//! A task takes the longer of its operations and its bytes, and the launch. Sizes of elements change bytes in memory and on
//! links, and nothing else.

use std::path::{Path, PathBuf};

use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{DType, IdVec};
use phalanx_link::{LinkError, rate, time};
use phalanx_schedule::operations;
use serde::Deserialize;

use crate::files;

/// The most bytes of a file.
const MOST_BYTES: u64 = 1 << 20;

/// What is known of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// What people call it.
    pub name: String,
    /// Nanoseconds that every kernel takes besides.
    launch: f64,
    /// Operations a nanosecond of products.
    product: Rate,
    /// Bytes a nanosecond.
    memory: Rate,
    /// Bytes of an element, by what it is.
    sizes: ElementSizes,
}

/// A highest rate, and the share of it that is reached from some amounts on.
#[derive(Clone, Debug, PartialEq)]
struct Rate {
    peak: f64,
    shares: Vec<(f64, f64)>,
}

/// Bytes of elements of 32-bit floats, were they kept otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ElementSizes {
    weights: usize,
    activations: usize,
    state: usize,
}

impl Default for ElementSizes {
    fn default() -> Self {
        ElementSizes { weights: 4, activations: 4, state: 8 }
    }
}

/// Why a file describes no device.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DeviceModelError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is wrong.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: Box<DeviceModelError> },
    /// It is not TOML, or has keys that are not known.
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    /// A time or a bandwidth is none.
    #[error("`{key}`: {source}")]
    Quantity { key: &'static str, source: LinkError },
    /// A key has a value it cannot have.
    #[error("`{key}` is {value}; {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    launch: String,
    product: FileProduct,
    memory: FileMemory,
    #[serde(default)]
    bytes: ElementSizes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProduct {
    peak: f64,
    #[serde(default)]
    share: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMemory {
    bandwidth: String,
    #[serde(default)]
    share: Vec<(f64, f64)>,
}

impl DeviceModel {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<DeviceModel, DeviceModelError> {
        let read = || String::from_utf8(files::read_up_to(path, MOST_BYTES)?).map_err(std::io::Error::other);
        let text = read().map_err(|source| DeviceModelError::Read { path: path.into(), source })?;
        let at = |error| DeviceModelError::File { path: path.into(), source: Box::new(error) };
        DeviceModel::parse(&text).map_err(at)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<DeviceModel, DeviceModelError> {
        let File { name, launch, product, memory, bytes: sizes } = toml::from_str(text)?;
        let quantity = |key| move |source| DeviceModelError::Quantity { key, source };
        let launch = time(&launch).map_err(quantity("launch"))?.as_secs_f64() * 1e9;
        let bandwidth = rate(&memory.bandwidth).map_err(quantity("memory.bandwidth"))?;
        if !(1e3..=1e21).contains(&product.peak) {
            return wrong("product.peak", product.peak, "it must be from 1e3 to 1e21 operations a second");
        }
        sizes.check()?;
        let product = Rate::new("product.share", product.peak, product.share)?;
        let memory = Rate::new("memory.share", bandwidth, memory.share)?;
        Ok(DeviceModel { name, launch, product, memory, sizes })
    }

    /// The same device with products and memory so many times as fast.
    #[must_use]
    pub fn scaled(mut self, product: f64, memory: f64) -> DeviceModel {
        self.product.peak *= product;
        self.memory.peak *= memory;
        self
    }

    /// Nanoseconds of every task.
    pub fn costs(&self, tasks: &TaskGraph) -> IdVec<TaskId, u64> {
        tasks.tasks.ids().map(|task| self.cost(tasks, task)).collect()
    }

    fn cost(&self, tasks: &TaskGraph, id: TaskId) -> u64 {
        let task = &tasks.tasks[id];
        if let TaskOp::Send { .. } = task.op {
            return 0;
        }
        let bytes = |&buffer: &BufferId| tasks.buffers[buffer].ty.bytes() as f64;
        let touched: f64 = task.reads.iter().chain(&task.writes).map(bytes).sum();
        let operations = operations(tasks, id);
        (self.launch + self.product.time(operations).max(self.memory.time(touched))) as u64
    }

    /// Gives the tensors of a graph the sizes of elements that they would have. It can then be scheduled, not run.
    pub fn resize(&self, tasks: &mut TaskGraph) {
        let ElementSizes { weights, activations, state } = self.sizes;
        for (_, buffer) in tasks.buffers.iter_mut().filter(|(_, buffer)| buffer.ty.dtype == DType::F32) {
            let bytes = match buffer.role {
                Role::Param | Role::Table => weights,
                // The second moment takes what the first one leaves.
                Role::State if buffer.name.ends_with(".v") => state - 4,
                Role::State => 4,
                Role::Temp | Role::Input | Role::Output => activations,
            };
            buffer.ty.dtype = of_bytes(bytes);
        }
    }
}

/// An element type of so many bytes.
fn of_bytes(bytes: usize) -> DType {
    match bytes {
        1 => DType::Bool,
        2 => DType::Bf16,
        4 => DType::F32,
        _ => DType::I64,
    }
}

impl ElementSizes {
    fn check(self) -> Result<(), DeviceModelError> {
        for (key, bytes) in [("bytes.weights", self.weights), ("bytes.activations", self.activations)] {
            if ![1, 2, 4, 8].contains(&bytes) {
                return wrong(key, bytes, "it must be 1, 2, 4 or 8");
            }
        }
        match self.state {
            5 | 6 | 8 | 12 => Ok(()),
            state => wrong("bytes.state", state, "it must be 5, 6, 8 or 12, for both moments of a parameter"),
        }
    }
}

impl Rate {
    fn new(key: &'static str, per_second: f64, shares: Vec<(f64, f64)>) -> Result<Rate, DeviceModelError> {
        let legal = shares.iter().all(|&(from, share)| from >= 0.0 && share > 0.0 && share <= 1.0);
        if !legal || !shares.is_sorted_by(|a, b| a.0 < b.0) {
            let wanted =
                "it must be pairs of an amount and a share above 0, at most 1, the amounts ascending";
            return wrong(key, format!("{shares:?}"), wanted);
        }
        Ok(Rate { peak: per_second / 1e9, shares })
    }

    /// Nanoseconds for an amount.
    fn time(&self, amount: f64) -> f64 {
        let next = self.shares.partition_point(|&(from, _)| from <= amount);
        let share = next.checked_sub(1).map_or(self.shares.first(), |at| self.shares.get(at));
        amount / (self.peak * share.map_or(1.0, |&(_, share)| share))
    }
}

fn wrong<T>(key: &'static str, value: impl ToString, wanted: &'static str) -> Result<T, DeviceModelError> {
    Err(DeviceModelError::Value { key, value: value.to_string(), wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        launch = \"2us\"
        [product]
        peak = 1e12
        share = [[0, 0.5], [1e6, 1.0]]
        [memory]
        bandwidth = \"100GB\"
        [bytes]
        weights = 2
        activations = 2
        state = 12
    ";

    #[test]
    fn a_task_takes_its_operations_at_the_share_of_its_size() {
        let model = DeviceModel::parse(TEXT).unwrap();
        assert_eq!(model.product.time(1e5), 200.0);
        assert_eq!(model.product.time(1e6), 1000.0);
        assert_eq!(model.memory.time(1e5), 1000.0);
        assert_eq!(model.scaled(0.5, 2.0).product.time(1e6), 2000.0);
    }

    #[test]
    fn wrong_values_are_named() {
        let error =
            |from: &str, to: &str| DeviceModel::parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert!(error("2us", "2").contains("`launch`"));
        assert!(error("[[0, 0.5], [1e6, 1.0]]", "[[0, 1.5]]").contains("`product.share` is [(0.0, 1.5)]"));
        assert!(
            error("weights = 2", "weights = 3").contains("`bytes.weights` is 3; it must be 1, 2, 4 or 8")
        );
        assert!(error("state = 12", "state = 7").contains("`bytes.state` is 7"));
        assert!(error("peak = 1e12", "peak = 0.0").contains("`product.peak` is 0"));
        assert!(error("launch", "lunch").contains("unknown field `lunch`"));
    }
}
