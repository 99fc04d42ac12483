//! One device's list of compute, collectives and waits: the model that the reference's overlap passes work on.
//!
//! A list's order is the order of launches. A collective runs beside what follows it until its wait. The passes permute
//! the list; this level knows neither tensors nor kernels, only names, bytes and times. [`LaunchGraph::build`] is the only way
//! to make one: every name resolves, the list is topological, times are finite and not negative.

mod align;
mod build;
mod edges;
mod exposure;
mod facts;
mod fsdp;
mod greedy;
mod iterative;
mod list;
mod memory;
mod peak;
mod simple;
mod simulate;
mod visualize;

pub use align::{AlignError, align};
pub use build::{InputSpec, LaunchGraphError, NodeSpec, OutputSpec, Spec};
pub use fsdp::{FsdpBlock, FsdpBlocks, FsdpError, FsdpRole, enforce_comm_ordering_for_fsdp};
pub use greedy::{raise_comms, reorder_compute_for_overlap, sink_waits};
pub use iterative::{
    DriftError, Iterative, IterativePass, Stat, StopReason, reorder_communication_preserving_peak_memory,
    sink_waits_iterative,
};
pub use memory::{ListMemory, MemoryStep};
pub use peak::{Method, PeakOrder, breadth_first, depth_first, least_peak_first, reorder_for_peak_memory};
pub use simple::simple_overlap;
pub use simulate::Simulated;
pub use visualize::{DrawnOverlap, visualize_overlap};

use std::ops::Range;

use phalanx_ir::IdVec;

phalanx_ir::id! {
    /// A node: what moves as one in the list.
    pub struct NodeId("n");
    /// A leaf: a node, or a member of a grouped one.
    pub struct LeafId("l");
    /// A buffer, or an input whose bytes are released after its last reader.
    pub struct BufId("b");
}

/// What a leaf does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchKind {
    /// Computes.
    Compute,
    /// Starts a collective and goes on.
    Collective,
    /// Does a whole collective, its wait included.
    SyncCollective,
    /// Waits for a collective.
    Wait,
}

impl LaunchKind {
    /// Whether it is a collective of either kind.
    pub fn is_collective(self) -> bool {
        matches!(self, LaunchKind::Collective | LaunchKind::SyncCollective)
    }
}

/// What moves as one in the list.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name; a group's is its members' names joined.
    pub name: String,
    /// How long it takes, in nanoseconds; a group's own estimate, whatever its members' are.
    pub cost: f64,
    /// Its members; a node that is no group is its only one.
    pub leaves: Range<usize>,
    /// Whether it was given as a group.
    pub is_group: bool,
    /// Buffers it depends on and keeps alive, ascending, each once; none of its own.
    pub deps: Vec<BufId>,
    /// Buffers it is only ordered behind, ascending, each once; none of its own.
    pub fakes: Vec<BufId>,
    /// Buffers it defines, in the order given.
    pub outputs: Vec<BufId>,
    /// Whether some member is heavy compute.
    pub contains_gemm: bool,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: LaunchKind,
    /// The process group of a collective.
    pub group: u32,
    /// How long it takes, in nanoseconds.
    pub cost: f64,
    /// As of a node; buffers of the same group of nodes among them.
    pub deps: Vec<BufId>,
    /// As of a node.
    pub fakes: Vec<BufId>,
    /// Buffers it defines.
    pub outputs: Vec<BufId>,
    /// The node it is in.
    pub node: NodeId,
}

/// Bytes with a name.
#[derive(Clone, Debug)]
pub struct Buf {
    /// Its name.
    pub name: String,
    /// The leaf that defines it; none for an input, which is there from the start.
    pub definer: Option<NodeId>,
    /// Bytes added when its definer runs.
    pub alloc: u64,
    /// Bytes released after its last user.
    pub free: u64,
    /// The buffer whose storage it renames.
    pub renames: Option<BufId>,
    /// Whether it outlives the list.
    pub is_output: bool,
    /// Nodes that depend on it or on another name of its storage, ascending, each once: its life ends with the last.
    pub users: Vec<NodeId>,
}

/// A list of nodes in their initial order, with what each needs and makes.
#[derive(Clone, Debug)]
pub struct LaunchGraph {
    /// The nodes; their ids are their positions in the initial order.
    pub nodes: IdVec<NodeId, Node>,
    /// All members of all nodes, in order.
    pub leaves: IdVec<LeafId, Leaf>,
    /// All buffers; inputs that are never released are not among them.
    pub bufs: IdVec<BufId, Buf>,
}

impl LaunchGraph {
    /// The members of a node.
    pub fn members(&self, node: NodeId) -> impl Iterator<Item = &Leaf> {
        self.nodes[node].leaves.clone().map(|leaf| &self.leaves[phalanx_ir::Id::from_index(leaf)])
    }

    /// Whether the node is or contains a collective.
    pub fn contains_collective(&self, node: NodeId) -> bool {
        self.members(node).any(|leaf| leaf.kind.is_collective())
    }

    /// Whether the node is or contains a wait.
    pub fn contains_wait(&self, node: NodeId) -> bool {
        self.members(node).any(|leaf| leaf.kind == LaunchKind::Wait)
    }

    /// The initial order.
    pub fn order(&self) -> Vec<NodeId> {
        self.nodes.ids().collect()
    }

    /// Whether every node of `order` comes after what it depends on, and each is there once; with `fakes`, also after
    /// what it is only ordered behind.
    pub fn is_valid(&self, order: &[NodeId], fakes: bool) -> bool {
        use phalanx_ir::Id;
        let mut at = vec![usize::MAX; self.nodes.len()];
        for (position, node) in order.iter().enumerate() {
            at[node.index()] = position;
        }
        let is_behind = |node: NodeId, buf: &BufId| {
            self.bufs[*buf].definer.is_none_or(|definer| at[definer.index()] < at[node.index()])
        };
        order.len() == self.nodes.len()
            && at.iter().all(|&position| position != usize::MAX)
            && self.nodes.iter().all(|(id, node)| {
                node.deps.iter().all(|buf| is_behind(id, buf))
                    && (!fakes || node.fakes.iter().all(|buf| is_behind(id, buf)))
            })
    }
}
