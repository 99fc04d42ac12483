//! A list of nodes for the overlap passes.

use serde::Deserialize;

use super::CaseError;
use crate::model::{InputSpec, LaunchGraph, LaunchGraphError, LaunchKind, NodeSpec, OutputSpec, Spec};

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
    pub config: ListConfig,
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
    pub fsdp_op: Option<FsdpOp>,
}

/// A part of a traced FSDP step that is no collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsdpOp {
    /// Copies shards into the buffer that is gathered.
    AllGatherCopyIn,
    /// Copies what was gathered out into parameters.
    SplitWithSizesCopy,
    /// Copies gradients into the buffer that is reduced.
    ChunkCat,
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
pub struct ListConfig {
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

impl Default for ListConfig {
    fn default() -> Self {
        ListConfig {
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
    pub fn graph(&self) -> Result<LaunchGraph, LaunchGraphError> {
        let input = |input: &InputJson| InputSpec {
            name: input.name.clone(),
            size: input.size,
            freeable: input.freeable,
        };
        LaunchGraph::build(&Spec {
            inputs: self.graph_inputs.iter().map(input).collect(),
            outputs: self.graph_outputs.clone(),
            nodes: self.nodes.iter().map(NodeJson::spec).collect(),
            global_ordering: self.global_ordering,
        })
    }
}

/// Where a list is wrong.
impl ListCase {
    /// The list as a graph, or the path of what is wrong.
    pub(super) fn checked_graph(&self) -> Result<LaunchGraph, CaseError> {
        self.graph().map_err(|error| CaseError::List { path: self.path(&error), error })
    }

    fn path(&self, error: &LaunchGraphError) -> String {
        let path = match error {
            LaunchGraphError::Twice { name, .. } => self.definitions(name).nth(1),
            LaunchGraphError::Unknown { by, name, .. } => {
                let outputs = self.graph_outputs.iter().position(|output| output == name);
                let by =
                    self.leaves().find_map(|(at, node)| Some(format!("{at}.{}", node.use_of(by, name)?)));
                by.or_else(|| outputs.map(|at| format!("graph_outputs[{at}]")))
            }
            LaunchGraphError::Cost { node: name, .. } => {
                let is_wrong = |node: &NodeJson| &node.name == name && node.runtime_ns < 0.0;
                self.leaves().find(|(_, node)| is_wrong(node)).map(|(at, _)| format!("{at}.runtime_ns"))
            }
            LaunchGraphError::Group { node: name, .. } => {
                let group = self.leaves().find(|(_, node)| &node.name == name);
                group.map(|(at, _)| format!("{at}.members"))
            }
            LaunchGraphError::Total { .. } => None,
        };
        path.unwrap_or("nodes".into())
    }

    /// All nodes and members with their paths.
    fn leaves(&self) -> impl Iterator<Item = (String, &NodeJson)> {
        self.nodes.iter().enumerate().flat_map(|(at, node)| {
            let members = node.members.iter().enumerate();
            let members = members.map(move |(member, node)| (format!("nodes[{at}].members[{member}]"), node));
            std::iter::once((format!("nodes[{at}]"), node)).chain(members)
        })
    }

    /// The paths of all that define `name`.
    fn definitions(&self, name: &str) -> impl Iterator<Item = String> {
        let inputs = self.graph_inputs.iter().enumerate().filter(move |(_, input)| input.name == name);
        let outputs = self.leaves().flat_map(|(at, node)| {
            let outputs = node.outputs.iter().enumerate();
            outputs.map(move |(output, json)| (format!("{at}.outputs[{output}].buf"), json))
        });
        let outputs = outputs.filter(move |(_, json)| json.buf == name).map(|(path, _)| path);
        inputs.map(|(at, _)| format!("graph_inputs[{at}].name")).chain(outputs)
    }
}

impl NodeJson {
    /// The field by which the node, if it is called `by`, uses `name`.
    fn use_of(&self, by: &str, name: &str) -> Option<String> {
        let lists =
            [("reads", &self.reads), ("weak_reads", &self.weak_reads), ("fake_reads", &self.fake_reads)];
        let mut reads = lists.into_iter().filter_map(|(field, names)| {
            let at = names.iter().position(|read| read == name)?;
            Some(format!("{field}[{at}]"))
        });
        let renames = self.outputs.iter().position(|output| output.mutates.as_deref() == Some(name));
        let found = reads.next().or_else(|| renames.map(|at| format!("outputs[{at}].mutates")));
        found.filter(|_| self.name == by)
    }

    fn spec(&self) -> NodeSpec {
        let kind = match self.kind {
            KindJson::Compute => Some(LaunchKind::Compute),
            KindJson::Collective if self.sync => Some(LaunchKind::SyncCollective),
            KindJson::Collective => Some(LaunchKind::Collective),
            KindJson::Wait => Some(LaunchKind::Wait),
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
