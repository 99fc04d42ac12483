//! The graph of a case with everything about it that scheduling does not change.
//!
//! Inputs, the case's nodes and one output node are numbered in this order and are all scheduled. Times are the
//! reference's: milliseconds, so that sums round as its sums do.

use std::collections::BTreeMap;

use phalanx_ir::{Id, IdVec};

use super::bits::NodeSet;
use super::case::{FxCase, FxKind, FxNode, FxOp, FxValue};

phalanx_ir::id! {
    /// A node in the original order: inputs, the case's nodes, the output.
    pub struct FxNodeId("n");
    /// A collective that some node waits for, in the order of the first waits.
    pub struct CollectiveId("c");
    /// A process group, in the order of the collectives.
    pub struct GroupId("g");
}

/// What a node is to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// There from the start, or the end of everything: takes no time.
    Border,
    /// Offers its time as a window.
    Compute,
    /// The same, and advances the compute index.
    Gemm,
    /// Starts a collective.
    Start(CollectiveId),
    /// Waits for a collective.
    Wait(CollectiveId),
    /// A collective that no node waits for: it is neither hidden nor moved.
    Unwaited,
}

/// What collectives must share to be merged.
pub(super) type BucketKey = (FxOp, GroupId);

/// A collective that can be hidden.
pub(super) struct Collective {
    pub(super) start: FxNodeId,
    /// The first of its waits.
    pub(super) wait: FxNodeId,
    pub(super) op: FxOp,
    pub(super) group: GroupId,
    /// What it sends and receives.
    pub(super) bytes: u64,
    pub(super) time: f64,
    /// The time of an empty message.
    pub(super) latency: f64,
}

impl Collective {
    /// What it can be merged with, if with anything.
    pub(super) fn key(&self) -> Option<BucketKey> {
        (self.op != FxOp::AllToAll).then_some((self.op, self.group))
    }
}

/// A case as the scheduler sees it.
pub(super) struct Graph {
    pub(super) n_inputs: usize,
    pub(super) roles: IdVec<FxNodeId, Role>,
    /// What a node reads, without repetition, in the order of its arguments.
    pub(super) reads: IdVec<FxNodeId, Vec<FxNodeId>>,
    pub(super) users: IdVec<FxNodeId, Vec<FxNodeId>>,
    /// Milliseconds.
    pub(super) times: IdVec<FxNodeId, f64>,
    pub(super) collectives: IdVec<CollectiveId, Collective>,
    pub(super) n_groups: usize,
    /// Everything a node depends on.
    pub(super) ancestors: IdVec<FxNodeId, NodeSet>,
    /// The smallest compute index that a node leads to; none: it is off the compute path.
    pub(super) blocks: IdVec<FxNodeId, Option<usize>>,
    /// Whether a node leads to, or is, a reduce-scatter.
    pub(super) blocks_scatter: IdVec<FxNodeId, bool>,
}

impl Graph {
    /// The graph of a checked case.
    pub(super) fn new(case: &FxCase) -> Self {
        let reads = reads(case);
        let mut users: IdVec<FxNodeId, Vec<FxNodeId>> = reads.ids().map(|_| Vec::new()).collect();
        for (node, values) in reads.iter() {
            values.iter().for_each(|&value| users[value].push(node));
        }
        let (roles, collectives, n_groups) = roles(case, &reads);
        let indices = compute_indices(&roles);
        let scatters = per_node(case, None, |node| (node.op == Some(FxOp::ReduceScatter)).then_some(0));
        let scatters = nearest(&users, |node| scatters[node]);
        Graph {
            n_inputs: case.graph_inputs.len(),
            ancestors: closure(reads.len(), reads.ids(), |node| reads[node].iter().copied()),
            blocks: nearest(&users, |node| indices[node]),
            blocks_scatter: scatters.into_iter().map(|index| index.is_some()).collect(),
            times: per_node(case, 0.0, |node| node.runtime_ns / 1e6),
            roles,
            users,
            collectives,
            n_groups,
            reads,
        }
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.roles.len()
    }

    /// The index in the case of a node that is neither an input nor the output.
    pub(super) fn case_index(&self, node: FxNodeId) -> Option<usize> {
        let index = node.index().checked_sub(self.n_inputs)?;
        (index + 1 < self.n_nodes() - self.n_inputs).then_some(index)
    }

    pub(super) fn is_input(&self, node: FxNodeId) -> bool {
        node.index() < self.n_inputs
    }

    /// The collective that a node starts or waits for.
    pub(super) fn collective_of(&self, node: FxNodeId) -> Option<CollectiveId> {
        match self.roles[node] {
            Role::Start(collective) | Role::Wait(collective) => Some(collective),
            _ => None,
        }
    }

    /// The collective that a node starts.
    pub(super) fn started(&self, node: FxNodeId) -> Option<CollectiveId> {
        match self.roles[node] {
            Role::Start(collective) => Some(collective),
            _ => None,
        }
    }

    /// Whether one of the two depends on the other.
    pub(super) fn related(&self, one: FxNodeId, other: FxNodeId) -> bool {
        self.ancestors[one].contains(other) || self.ancestors[other].contains(one)
    }
}

/// Every node's ancestors over `edges`, which agree with `order`.
pub(super) fn closure<I: Iterator<Item = FxNodeId>>(
    n_nodes: usize,
    order: impl Iterator<Item = FxNodeId>,
    edges: impl Fn(FxNodeId) -> I,
) -> IdVec<FxNodeId, NodeSet> {
    let mut ancestors: IdVec<FxNodeId, NodeSet> = (0..n_nodes).map(|_| NodeSet::new(n_nodes)).collect();
    for node in order {
        let mut set = NodeSet::new(n_nodes);
        for parent in edges(node) {
            set.union(&ancestors[parent]);
            set.insert(parent);
        }
        ancestors[node] = set;
    }
    ancestors
}

/// Something about every node of the case; inputs and output have `border`.
fn per_node<T: Clone>(case: &FxCase, border: T, of: impl Fn(&FxNode) -> T) -> IdVec<FxNodeId, T> {
    let inputs = case.graph_inputs.iter().map(|_| border.clone());
    inputs.chain(case.nodes.iter().map(of)).chain([border.clone()]).collect()
}

/// The place of every compute node among the compute nodes.
fn compute_indices(roles: &IdVec<FxNodeId, Role>) -> IdVec<FxNodeId, Option<usize>> {
    let mut next = 0..;
    roles.iter().map(|(_, &role)| if role == Role::Gemm { next.next() } else { None }).collect()
}

/// The smallest index among a node and everything that depends on it.
fn nearest(
    users: &IdVec<FxNodeId, Vec<FxNodeId>>,
    index: impl Fn(FxNodeId) -> Option<usize>,
) -> IdVec<FxNodeId, Option<usize>> {
    let mut nearest: IdVec<FxNodeId, Option<usize>> = users.ids().map(index).collect();
    for node in users.ids().rev() {
        let later = users[node].iter().filter_map(|&user| nearest[user]);
        nearest[node] = nearest[node].into_iter().chain(later).min();
    }
    nearest
}

fn reads(case: &FxCase) -> IdVec<FxNodeId, Vec<FxNodeId>> {
    let n_inputs = case.graph_inputs.len();
    let names: BTreeMap<&str, usize> =
        case.graph_inputs.iter().enumerate().map(|(at, input)| (input.name.as_str(), at)).collect();
    let distinct = |values: &[FxValue]| {
        let mut nodes = Vec::with_capacity(values.len());
        for value in values {
            let node = FxNodeId::from_index(match value {
                FxValue::Node(index) => n_inputs + index,
                FxValue::Input(name) => names[name.as_str()],
            });
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    };
    let inputs = case.graph_inputs.iter().map(|_| Vec::new());
    let nodes = case.nodes.iter().map(|node| distinct(&node.reads));
    inputs.chain(nodes).chain([distinct(&case.graph_outputs)]).collect()
}

/// What every node is, with the collectives in the order of their first waits and the number of their groups.
fn roles(
    case: &FxCase,
    reads: &IdVec<FxNodeId, Vec<FxNodeId>>,
) -> (IdVec<FxNodeId, Role>, IdVec<CollectiveId, Collective>, usize) {
    let n_inputs = case.graph_inputs.len();
    let mut roles: IdVec<FxNodeId, Role> = reads.ids().map(|_| Role::Border).collect();
    let mut collectives = IdVec::new();
    let mut groups = BTreeMap::new();
    for (at, node) in case.nodes.iter().enumerate() {
        let id = FxNodeId::from_index(n_inputs + at);
        roles[id] = match node.kind {
            FxKind::Compute if node.gemm_like => Role::Gemm,
            FxKind::Compute => Role::Compute,
            FxKind::Collective => Role::Unwaited,
            FxKind::Wait => {
                let start = reads[id][0];
                if roles[start] == Role::Unwaited {
                    let next = GroupId::from_index(groups.len());
                    let group = *groups.entry(case.nodes[start.index() - n_inputs].pg).or_insert(next);
                    let collective = collective(case, &reads[start], (start, id), group);
                    roles[start] = Role::Start(collectives.push(collective));
                }
                let Role::Start(collective) = roles[start] else {
                    unreachable!("a checked wait reads a collective");
                };
                Role::Wait(collective)
            }
        };
    }
    (roles, collectives, groups.len())
}

fn collective(
    case: &FxCase,
    sends: &[FxNodeId],
    (start, wait): (FxNodeId, FxNodeId),
    group: GroupId,
) -> Collective {
    let n_inputs = case.graph_inputs.len();
    let size = |node: FxNodeId| match node.index().checked_sub(n_inputs) {
        Some(at) => case.nodes[at].size,
        None => case.graph_inputs[node.index()].size,
    };
    let FxNode { op, runtime_ns, latency_ns, .. } = case.nodes[start.index() - n_inputs];
    let op = op.expect("a checked collective has an op");
    let sum = sends.iter().map(|&node| size(node)).sum::<u64>() + size(start);
    Collective {
        start,
        wait,
        op,
        group,
        // An all-reduce works in place: input and output are the same bytes.
        bytes: if op == FxOp::AllReduce { sum / 2 } else { sum },
        time: runtime_ns / 1e6,
        latency: latency_ns.expect("a checked collective has a latency") / 1e6,
    }
}
