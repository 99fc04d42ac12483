//! A list of nodes for the overlap passes.

use serde::Deserialize;

use crate::model::{Graph, GraphError, InputSpec, Kind, NodeSpec, OutputSpec, Spec};

/// A list and the knobs of the iterative passes.
#[derive(Clone, Debug, Deserialize)]
pub struct ListCase {
    /// Inputs.
    pub graph_inputs: Vec<InputJson>,
    /// Names that outlive the list.
    pub graph_outputs: Vec<String>,
    /// Nodes in their initial order.
    pub nodes: Vec<NodeJson>,
    /// Whether collectives keep their order by fake dependencies.
    #[serde(default)]
    pub global_ordering: bool,
    /// The knobs.
    #[serde(default)]
    pub config: Config,
}

/// An input.
#[derive(Clone, Debug, Deserialize)]
pub struct InputJson {
    name: String,
    size: u64,
    freeable: bool,
}

/// A node, or a member of a group.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeJson {
    name: String,
    kind: KindJson,
    runtime_ns: f64,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    weak_reads: Vec<String>,
    #[serde(default)]
    fake_reads: Vec<String>,
    #[serde(default)]
    outputs: Vec<OutputJson>,
    #[serde(default)]
    gemm_like: bool,
    #[serde(default)]
    pg: u32,
    #[serde(default)]
    sync: bool,
    #[serde(default)]
    members: Vec<NodeJson>,
    /// What kind of collective.
    #[serde(default)]
    pub op: Option<String>,
    /// Which part of a traced FSDP step.
    #[serde(default)]
    pub fsdp_op: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindJson {
    Compute,
    Collective,
    Wait,
    Group,
}

#[derive(Clone, Debug, Deserialize)]
struct OutputJson {
    buf: String,
    size: u64,
    mutates: Option<String>,
    alloc: Option<u64>,
    free: Option<u64>,
}

/// The knobs of the iterative passes, by their original names.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Stop after that many collectives.
    pub reorder_iterative_debug_limit_to_reorder: Option<usize>,
    /// Stop after that many waits.
    pub sink_waits_iterative_debug_limit_to_sink: Option<usize>,
    /// Whether moving collectives looks at times.
    pub reorder_iterative_use_runtime_estimations: bool,
    /// Whether moving waits looks at times.
    pub sink_iterative_use_runtime_estimations: bool,
    /// Multiplies the times of nodes that contain a collective.
    pub reorder_sink_runtime_estimations_comm_mult: f64,
    /// Multiplies all other times.
    pub reorder_sink_runtime_estimations_non_comm_mult: f64,
    /// How much more than hidden a collective must be before it stops.
    pub reorder_iterative_extra_comm_comp_overlap: f64,
    /// How much more than hidden a wait must be before it stops.
    pub sink_iterative_extra_comm_comp_overlap: f64,
    /// How far above the first peak collectives may lift memory, as a share of it.
    pub reorder_iterative_peak_memory_budget: f64,
    /// How far above the first peak waits may lift memory, as a share of it.
    pub sink_iterative_peak_memory_budget: f64,
    /// Whether a collective may pass another.
    pub reorder_iterative_unsafe_collectives_reorder: bool,
    /// Whether a wait in a group with a collective may pass another collective.
    pub sink_waits_iterative_unsafe_collectives_reorder: bool,
    /// Whether a collective may take another along.
    pub reorder_iterative_group_with_collectives: bool,
    /// Whether a wait may pass a collective.
    pub sink_waits_iterative_swap_with_collectives: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            reorder_iterative_debug_limit_to_reorder: None,
            sink_waits_iterative_debug_limit_to_sink: None,
            reorder_iterative_use_runtime_estimations: false,
            sink_iterative_use_runtime_estimations: false,
            reorder_sink_runtime_estimations_comm_mult: 2.0,
            reorder_sink_runtime_estimations_non_comm_mult: 1.0,
            reorder_iterative_extra_comm_comp_overlap: 0.5,
            sink_iterative_extra_comm_comp_overlap: 0.5,
            reorder_iterative_peak_memory_budget: 0.2,
            sink_iterative_peak_memory_budget: 0.2,
            reorder_iterative_unsafe_collectives_reorder: true,
            sink_waits_iterative_unsafe_collectives_reorder: true,
            reorder_iterative_group_with_collectives: false,
            sink_waits_iterative_swap_with_collectives: false,
        }
    }
}

impl ListCase {
    /// The list as a graph.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let input = |input: &InputJson| InputSpec {
            name: input.name.clone(),
            size: input.size,
            freeable: input.freeable,
        };
        Graph::build(&Spec {
            inputs: self.graph_inputs.iter().map(input).collect(),
            outputs: self.graph_outputs.clone(),
            nodes: self.nodes.iter().map(NodeJson::spec).collect(),
            global_ordering: self.global_ordering,
        })
    }
}

impl NodeJson {
    fn spec(&self) -> NodeSpec {
        let kind = match self.kind {
            KindJson::Compute => Some(Kind::Compute),
            KindJson::Collective if self.sync => Some(Kind::SyncCollective),
            KindJson::Collective => Some(Kind::Collective),
            KindJson::Wait => Some(Kind::Wait),
            KindJson::Group => None,
        };
        NodeSpec {
            name: self.name.clone(),
            kind,
            cost: self.runtime_ns,
            group: self.pg,
            reads: self.reads.iter().chain(&self.weak_reads).cloned().collect(),
            fakes: self.fake_reads.clone(),
            outputs: self.outputs.iter().map(OutputJson::spec).collect(),
            gemm_like: self.gemm_like,
            members: self.members.iter().map(NodeJson::spec).collect(),
        }
    }
}

impl OutputJson {
    fn spec(&self) -> OutputSpec {
        let size = if self.mutates.is_some() { 0 } else { self.size };
        OutputSpec {
            name: self.buf.clone(),
            alloc: self.alloc.unwrap_or(size),
            free: self.free.unwrap_or(size),
            renames: self.mutates.clone(),
        }
    }
}
