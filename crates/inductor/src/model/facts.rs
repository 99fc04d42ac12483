//! What the passes ask of nodes again and again, in flat tables.

use phalanx_ir::{Id, IdVec};

use super::{BufId, LaunchGraph, LaunchKind, NodeId};
use crate::mode::PassMode;

/// A row of values for each node, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Rows<T> {
    starts: Vec<usize>,
    values: Vec<T>,
}

impl<T> Rows<T> {
    /// The row of `node`.
    pub fn of(&self, node: NodeId) -> &[T] {
        &self.values[self.starts[node.index()]..self.starts[node.index() + 1]]
    }

    /// The rows that `fill` appends, node by node.
    fn build(graph: &LaunchGraph, fill: impl Fn(NodeId, &mut Vec<T>)) -> Rows<T> {
        let mut rows = Rows { starts: Vec::with_capacity(graph.nodes.len() + 1), values: Vec::new() };
        rows.starts.push(0);
        for node in graph.nodes.ids() {
            fill(node, &mut rows.values);
            rows.starts.push(rows.values.len());
        }
        rows
    }
}

/// What a node is to the passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// It starts a collective that runs beside what follows.
    pub is_async: bool,
    /// It contains collectives, and is through with all of them when it ends.
    pub is_sync: bool,
    /// It contains a wait.
    pub has_wait: bool,
    /// It is protected like a wait when others sink past it.
    pub is_guarded: bool,
    /// It contains heavy compute.
    pub has_gemm: bool,
}

impl Traits {
    /// Whether it contains a collective.
    pub fn has_collective(self) -> bool {
        self.is_async || self.is_sync
    }

    fn new(graph: &LaunchGraph, node: NodeId, mode: PassMode) -> Traits {
        let has = |kind| graph.members(node).any(|leaf| leaf.kind == kind);
        let (has_async, has_sync, has_wait) =
            (has(LaunchKind::Collective), has(LaunchKind::SyncCollective), has(LaunchKind::Wait));
        let is_group = graph.nodes[node].is_group;
        // D8: the reference takes a group with a blocking collective for one that goes on.
        let is_async = has_async || (mode != PassMode::Fixed && is_group && has_sync);
        // D12: the reference protects waits, but not groups with a wait.
        let is_guarded = has_wait && (mode == PassMode::Fixed || !is_group);
        let has_gemm = graph.nodes[node].contains_gemm;
        Traits { is_async, is_sync: has_sync && !is_async, has_wait, is_guarded, has_gemm }
    }
}

/// The facts of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// How the passes run.
    pub mode: PassMode,
    /// By node.
    pub traits: IdVec<NodeId, Traits>,
    /// The nodes whose buffers a node depends on, ascending, each once.
    pub definers: Rows<NodeId>,
    /// The nodes it must stay behind, in any order.
    pub fences: Rows<NodeId>,
    /// The process groups of its collectives.
    pub groups: Rows<u32>,
    /// The buffers whose life it prolongs.
    pub uses: Rows<BufId>,
    /// The input position of every node.
    pub ranks: IdVec<NodeId, usize>,
}

impl Facts {
    /// The facts of a graph that a pass starts with in `order`; with `fakes`, nodes stay behind what they are only
    /// ordered behind.
    pub fn new(graph: &LaunchGraph, order: &[NodeId], mode: PassMode, fakes: bool) -> Facts {
        let definers = |bufs: &[BufId], row: &mut Vec<NodeId>| {
            row.extend(bufs.iter().filter_map(|&buf| graph.bufs[buf].definer));
        };
        let mut ranks: IdVec<NodeId, usize> = graph.nodes.ids().map(|_| 0).collect();
        for (rank, &node) in order.iter().enumerate() {
            ranks[node] = rank;
        }
        Facts {
            mode,
            traits: graph.nodes.ids().map(|node| Traits::new(graph, node, mode)).collect(),
            definers: Rows::build(graph, |node, row| definers(&graph.nodes[node].deps, row)),
            fences: Rows::build(graph, |node, row| {
                definers(&graph.nodes[node].deps, row);
                if fakes {
                    definers(&graph.nodes[node].fakes, row);
                }
            }),
            groups: Rows::build(graph, |node, row| {
                let collectives = graph.members(node).filter(|leaf| leaf.kind.is_collective());
                row.extend(collectives.map(|leaf| leaf.group));
            }),
            uses: uses(graph),
            ranks,
        }
    }

    /// Whether `node` reads what `definer` makes.
    pub fn depends(&self, node: NodeId, definer: NodeId) -> bool {
        self.definers.of(node).contains(&definer)
    }

    /// Whether two nodes have collectives on the stream of one process group.
    pub fn share_stream(&self, one: NodeId, other: NodeId) -> bool {
        self.groups.of(one).iter().any(|group| self.groups.of(other).contains(group))
    }
}

/// By node, the buffers it is a user of.
fn uses(graph: &LaunchGraph) -> Rows<BufId> {
    let mut starts = vec![0; graph.nodes.len() + 1];
    for (_, buf) in graph.bufs.iter() {
        buf.users.iter().for_each(|user| starts[user.index() + 1] += 1);
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut values = vec![BufId::from_index(0); starts[graph.nodes.len()]];
    let mut ends = starts.clone();
    for (id, buf) in graph.bufs.iter() {
        for user in &buf.users {
            values[ends[user.index()]] = id;
            ends[user.index()] += 1;
        }
    }
    Rows { starts, values }
}
