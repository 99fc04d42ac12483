//! The format of a case: a value graph with costs, and the scheduler's parameters.
//!
//! Parsing takes any numbers; [`FxCase::check`] says whether they describe a graph that can be scheduled. Nodes are
//! listed in an order that respects their reads, so a checked case has no cycle.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// One graph to schedule. Unknown keys are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FxCase {
    /// Limits and choices of the scheduler.
    pub params: Params,
    /// What the graph is given.
    pub graph_inputs: Vec<Input>,
    /// The values that the graph returns.
    pub graph_outputs: Vec<FxValue>,
    /// Operations, each making one value, in their original order.
    pub nodes: Vec<FxNode>,
}

/// Limits and choices of the scheduler; an absent limit does not bind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Params {
    /// How many bytes may be in flight before the oldest wait is forced.
    pub max_in_flight_bytes: Option<u64>,
    /// How many compute nodes ahead a collective may be started.
    pub max_compute_pre_fetch: usize,
    /// What share of a node's time hides communication.
    #[serde(rename = "compute_overlap_multipler")]
    pub overlap_multiplier: f64,
    /// How many collectives a window, and a bucket, looks at.
    pub max_coll_distance: usize,
    /// How many bytes the peak may grow.
    pub max_memory_increase_bytes: Option<u64>,
    /// By what share of itself the peak may grow; the larger of the two limits counts.
    pub max_memory_increase_ratio: Option<f64>,
    /// Whether buckets begin with the most exposed collectives; absent: only in groups that gather parameters.
    pub bucket_exposed_first: Option<bool>,
    /// How many bytes off the compute path are collected before they start together; absent: they never are.
    pub max_off_bucket_bytes: Option<u64>,
    /// Whether a window prefers collectives that could share a bucket.
    #[serde(rename = "prioritize_bucketing_during_scheduling")]
    pub prioritize_bucketing: bool,
}

/// A value that exists before the first node runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Input {
    /// What reads call it.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Whether its storage is freed after its last use.
    pub releasable: bool,
}

/// A reference to a value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum FxValue {
    /// What the node of this index makes.
    Node(usize),
    /// The graph input of this name.
    Input(String),
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FxKind {
    /// Computes on the device.
    Compute,
    /// Starts a collective.
    Collective,
    /// Waits for the one collective it reads.
    Wait,
}

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FxOp {
    /// Every rank gets the parts of all.
    AllGather,
    /// Every rank gets the sum of one part.
    ReduceScatter,
    /// Every rank gets the sum.
    AllReduce,
    /// Every rank gets a part of each.
    AllToAll,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FxNode {
    /// What it does.
    pub kind: FxKind,
    /// How long it takes.
    pub runtime_ns: f64,
    /// Its arguments.
    pub reads: Vec<FxValue>,
    /// Bytes of the value it makes.
    pub size: u64,
    /// Of a collective: what it does.
    pub op: Option<FxOp>,
    /// Of a collective: its process group.
    pub pg: Option<i64>,
    /// Of a collective: how long an empty message takes.
    pub latency_ns: Option<f64>,
    /// Of a compute node: whether it advances the compute index.
    #[serde(default)]
    pub gemm_like: bool,
}

/// Sums of bytes stay below this, so that they are exact as 64-bit floats and never overflow.
const MAX_BYTES: u64 = 1 << 53;

/// Most nanoseconds of a graph, so that sums of them are numbers.
const MAX_TIME: f64 = 1e300;

/// Why a case cannot be scheduled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum FxCaseError {
    /// Two inputs share a name.
    #[error("`graph_inputs`: {name:?} is there twice; give every input a name of its own")]
    DuplicateInput { name: String },
    /// A name without an input.
    #[error("node {node}: `reads` has the input {name:?}, which `graph_inputs` does not list")]
    UnknownInput { node: usize, name: String },
    /// A value of a later node, of the node itself or of none.
    #[error(
        "node {node}: `reads` has value {value}, but only the values 0 to {node} (excluded) exist before it"
    )]
    LaterValue { node: usize, value: usize },
    /// The graph returns something that does not exist.
    #[error("`graph_outputs` has {value:?}, which is neither a graph input nor one of the {n_nodes} nodes")]
    UnknownOutput { value: FxValue, n_nodes: usize },
    /// A wait must read exactly one collective.
    #[error("node {node}: `reads` of a wait has to be one collective, but is {reads:?}")]
    NotACollective { node: usize, reads: Vec<FxValue> },
    /// A collective must say what it is.
    #[error("node {node}: a collective needs `{field}`")]
    MissingField { node: usize, field: &'static str },
    /// A time that is negative, infinite or no number.
    #[error("node {node}: `{field}` is {value}, but a time is finite and not negative")]
    BadTime { node: usize, field: &'static str, value: f64 },
    /// Times whose sum is no number.
    #[error("`nodes`: all `runtime_ns` together are more than {MAX_TIME:e}")]
    TooLong,
    /// A parameter that is negative, infinite or no number.
    #[error("`params`: `{field}` is {value}, but has to be finite and not negative")]
    BadParam { field: &'static str, value: f64 },
    /// The values are too large for exact sums.
    #[error(
        "node {node}: `size` brings the graph's values and messages to {bytes} bytes; the limit is {MAX_BYTES}"
    )]
    TooLarge { node: usize, bytes: u64 },
}

impl FxCase {
    /// Whether the case describes a graph that can be scheduled: the first thing wrong with it, if there is one.
    pub fn check(&self) -> Result<(), FxCaseError> {
        self.params.check()?;
        let mut inputs = BTreeSet::new();
        for input in &self.graph_inputs {
            if !inputs.insert(input.name.as_str()) {
                return Err(FxCaseError::DuplicateInput { name: input.name.clone() });
            }
        }
        for (node, entry) in self.nodes.iter().enumerate() {
            entry.check_reads(node, &inputs)?;
            entry.check_fields(node)?;
            if entry.kind == FxKind::Wait && !self.is_collective(&entry.reads) {
                return Err(FxCaseError::NotACollective { node, reads: entry.reads.clone() });
            }
        }
        for value in &self.graph_outputs {
            let known = match value {
                FxValue::Node(index) => *index < self.nodes.len(),
                FxValue::Input(name) => inputs.contains(name.as_str()),
            };
            if !known {
                return Err(FxCaseError::UnknownOutput { value: value.clone(), n_nodes: self.nodes.len() });
            }
        }
        if self.nodes.iter().map(|node| node.runtime_ns).sum::<f64>() > MAX_TIME {
            return Err(FxCaseError::TooLong);
        }
        self.check_bytes()
    }

    fn is_collective(&self, reads: &[FxValue]) -> bool {
        matches!(reads, [FxValue::Node(start)] if self.nodes[*start].kind == FxKind::Collective)
    }

    fn check_bytes(&self) -> Result<(), FxCaseError> {
        let sizes = self.graph_inputs.iter().map(|input| (input.name.as_str(), input.size));
        let sizes: BTreeMap<&str, u64> = sizes.collect();
        let mut bytes = sizes.values().fold(0u64, |sum, &size| sum.saturating_add(size));
        for (node, entry) in self.nodes.iter().enumerate() {
            bytes = bytes.saturating_add(entry.size);
            if entry.kind == FxKind::Collective {
                let sent = entry.reads.iter().map(|value| match value {
                    FxValue::Node(index) => self.nodes[*index].size,
                    FxValue::Input(name) => sizes[name.as_str()],
                });
                bytes = sent.fold(bytes.saturating_add(entry.size), u64::saturating_add);
            }
            if bytes > MAX_BYTES {
                return Err(FxCaseError::TooLarge { node, bytes });
            }
        }
        Ok(())
    }
}

impl Params {
    fn check(&self) -> Result<(), FxCaseError> {
        let ratio = self.max_memory_increase_ratio.unwrap_or(0.0);
        for (field, value) in
            [("compute_overlap_multipler", self.overlap_multiplier), ("max_memory_increase_ratio", ratio)]
        {
            if !is_amount(value) {
                return Err(FxCaseError::BadParam { field, value });
            }
        }
        Ok(())
    }
}

impl FxNode {
    fn check_reads(&self, node: usize, inputs: &BTreeSet<&str>) -> Result<(), FxCaseError> {
        for value in &self.reads {
            match value {
                FxValue::Node(value) if *value >= node => {
                    return Err(FxCaseError::LaterValue { node, value: *value });
                }
                FxValue::Input(name) if !inputs.contains(name.as_str()) => {
                    return Err(FxCaseError::UnknownInput { node, name: name.clone() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_fields(&self, node: usize) -> Result<(), FxCaseError> {
        let times = [("runtime_ns", self.runtime_ns), ("latency_ns", self.latency_ns.unwrap_or(0.0))];
        if let Some(&(field, value)) = times.iter().find(|(_, value)| !is_amount(*value)) {
            return Err(FxCaseError::BadTime { node, field, value });
        }
        if self.kind != FxKind::Collective {
            return Ok(());
        }
        let given =
            [("op", self.op.is_some()), ("pg", self.pg.is_some()), ("latency_ns", self.latency_ns.is_some())];
        match given.iter().find(|(_, given)| !given) {
            Some(&(field, _)) => Err(FxCaseError::MissingField { node, field }),
            None => Ok(()),
        }
    }
}

fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}
