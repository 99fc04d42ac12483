//! The order of collectives in a traced FSDP step: blocks of nodes that stay together, each behind the one before.

use std::collections::BTreeSet;

use phalanx_ir::{Id, IdVec};

use super::edges::{Edges, Lists};
use super::{BufId, LaunchGraph, LaunchKind, NodeId};
use crate::mode::PassMode;

/// What a node does in a traced FSDP step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsdpRole {
    /// Copies shards into the buffer that is gathered.
    CopyIn,
    /// Gathers into a given buffer.
    AllGather,
    /// Copies what was gathered out into parameters.
    CopyOut,
    /// Copies gradients into the buffer that is reduced.
    ChunkCat,
}

/// An entry of a list with blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsdpBlock {
    /// A node by itself.
    Node(NodeId),
    /// Nodes that stay together.
    Group(Vec<NodeId>),
}

/// A list with blocks, and what keeps them in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsdpBlocks {
    /// The list.
    pub order: Vec<FsdpBlock>,
    /// For a position of the list: a buffer that it is only ordered behind, and its own first buffer.
    pub links: Vec<(usize, BufId, Option<BufId>)>,
}

/// Why a step's collectives cannot be put into blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum FsdpError {
    /// There is nothing to put into blocks.
    #[error("no all-gather behind an `all_gather_copy_in` and no `chunk_cat` is in the list")]
    Nothing,
    /// The walk meets a node that is in a block already.
    #[error(
        "the block of {node} meets {other}, which is in another block; the reference cannot use a layer twice, mode \
         fixed can"
    )]
    Meets { node: String, other: String },
    /// A block has no wait where one must be.
    #[error("the block of {node} has no wait behind its first node")]
    NoWait { node: String },
    /// A name that says nothing about the order of creation.
    #[error("node `{name}` must be named `op` and its number")]
    Name { name: String },
}

/// Puts the all-gathers and reduce-scatters of a list into blocks and orders each block behind the one before.
///
/// D22: the reference fails where a layer is used twice, and no pass needs the blocks. Repaired, the list stays as it is
/// and every collective is ordered behind the one before it in its process group.
pub fn enforce_comm_ordering_for_fsdp(
    graph: &LaunchGraph,
    roles: &IdVec<NodeId, Option<FsdpRole>>,
    mode: PassMode,
) -> Result<FsdpBlocks, FsdpError> {
    if mode == PassMode::Fixed {
        return Ok(chain(graph));
    }
    let mut builder = Builder {
        graph,
        roles,
        edges: Edges::new(graph),
        groups: Vec::new(),
        group_of: vec![None; roles.len()],
    };
    let (mut gathers, mut scatters) = (Vec::new(), Vec::new());
    for node in graph.nodes.ids() {
        match roles[node] {
            Some(FsdpRole::AllGather) => gathers.extend(builder.gather(node)?),
            Some(FsdpRole::ChunkCat) => scatters.push(builder.scatter(node)?),
            _ => {}
        }
    }
    if builder.groups.is_empty() {
        return Err(FsdpError::Nothing);
    }
    let (order, positions) = builder.order();
    let links = [gathers, scatters].iter().flat_map(|pairs| builder.links(pairs, &positions)).collect();
    Ok(FsdpBlocks { order, links })
}

fn chain(graph: &LaunchGraph) -> FsdpBlocks {
    let mut before: Vec<(u32, NodeId)> = Vec::new();
    let mut links = Vec::new();
    for node in graph.nodes.ids() {
        for leaf in graph.members(node).filter(|leaf| leaf.kind.is_collective()) {
            let first = graph.nodes[node].outputs.first().copied();
            match before.iter_mut().find(|(group, _)| *group == leaf.group) {
                Some((_, last)) => {
                    let outputs = &graph.nodes[std::mem::replace(last, node)].outputs;
                    links.extend(outputs.iter().map(|&buf| (node.index(), buf, first)));
                }
                None => before.push((leaf.group, node)),
            }
        }
    }
    FsdpBlocks { order: graph.nodes.ids().map(FsdpBlock::Node).collect(), links }
}

/// A block up to its wait, and the rest, by number.
type Pair = [usize; 2];

struct Builder<'a> {
    graph: &'a LaunchGraph,
    roles: &'a IdVec<NodeId, Option<FsdpRole>>,
    edges: Edges,
    groups: Vec<Vec<NodeId>>,
    group_of: Vec<Option<usize>>,
}

impl Builder<'_> {
    /// The blocks of an all-gather, if something that is in no block yet is copied in for it.
    fn gather(&mut self, node: NodeId) -> Result<Option<Pair>, FsdpError> {
        let mut block = BTreeSet::from([node]);
        reach(&self.edges.before, node, &mut block, |_| true);
        let is_free_copy = |node: &NodeId| {
            self.roles[*node] == Some(FsdpRole::CopyIn) && self.group_of[node.index()].is_none()
        };
        if !block.iter().any(is_free_copy) {
            return Ok(None);
        }
        self.check_free(node, &block)?;
        reach(&self.edges.after, node, &mut block, |user| {
            let belongs = matches!(self.roles[user], Some(FsdpRole::AllGather | FsdpRole::CopyOut));
            let waits = self.graph.members(user).any(|leaf| leaf.kind == LaunchKind::Wait);
            self.group_of[user.index()].is_none() && (belongs || waits)
        });
        let mut block = self.sorted(block)?;
        let copies =
            block.iter().enumerate().filter(|(_, node)| self.roles[**node] == Some(FsdpRole::CopyOut));
        let end = copies.map(|(at, _)| at).nth(1).unwrap_or(block.len());
        block.truncate(end);
        self.split(node, block).map(Some)
    }

    /// The blocks of a reduce-scatter.
    fn scatter(&mut self, node: NodeId) -> Result<Pair, FsdpError> {
        let mut block = BTreeSet::from([node]);
        reach(&self.edges.after, node, &mut block, |_| true);
        self.check_free(node, &block)?;
        let block = self.sorted(block)?;
        self.split(node, block)
    }

    fn check_free(&self, node: NodeId, block: &BTreeSet<NodeId>) -> Result<(), FsdpError> {
        let met = block.iter().find(|&&other| other != node && self.group_of[other.index()].is_some());
        let name = |node: NodeId| self.graph.nodes[node].name.clone();
        met.map_or(Ok(()), |&other| Err(FsdpError::Meets { node: name(node), other: name(other) }))
    }

    /// The nodes in the order of their creation.
    fn sorted(&self, block: BTreeSet<NodeId>) -> Result<Vec<NodeId>, FsdpError> {
        let number = |node: NodeId| -> Result<(u64, NodeId), FsdpError> {
            let name = &self.graph.nodes[node].name;
            let digits = name.strip_prefix("op").and_then(|digits| digits.parse().ok());
            digits.map(|number| (number, node)).ok_or_else(|| FsdpError::Name { name: name.clone() })
        };
        let mut numbered = block.into_iter().map(number).collect::<Result<Vec<_>, _>>()?;
        numbered.sort_unstable();
        Ok(numbered.into_iter().map(|(_, node)| node).collect())
    }

    fn split(&mut self, node: NodeId, mut block: Vec<NodeId>) -> Result<Pair, FsdpError> {
        let waits = |node: &NodeId| self.graph.members(*node).any(|leaf| leaf.kind == LaunchKind::Wait);
        let Some(wait) = block.iter().skip(1).position(waits) else {
            return Err(FsdpError::NoWait { node: self.graph.nodes[node].name.clone() });
        };
        let rest = block.split_off(wait + 1);
        Ok([block, rest].map(|group| {
            group.iter().for_each(|node| self.group_of[node.index()] = Some(self.groups.len()));
            self.groups.push(group);
            self.groups.len() - 1
        }))
    }

    /// The list with every group at the place of its first member, and the position of every group.
    fn order(&self) -> (Vec<FsdpBlock>, Vec<Option<usize>>) {
        let mut positions = vec![None; self.groups.len()];
        let mut order = Vec::new();
        for node in self.graph.nodes.ids() {
            match self.group_of[node.index()] {
                None => order.push(FsdpBlock::Node(node)),
                Some(group) if positions[group].is_none() => {
                    positions[group] = Some(order.len());
                    order.push(FsdpBlock::Group(self.groups[group].clone()));
                }
                Some(_) => {}
            }
        }
        (order, positions)
    }

    /// Orders the first block of every pair behind the second block of the pair before.
    fn links(&self, pairs: &[Pair], positions: &[Option<usize>]) -> Vec<(usize, BufId, Option<BufId>)> {
        let outputs = |group: usize| {
            self.groups[group].iter().flat_map(|&node| self.graph.nodes[node].outputs.iter().copied())
        };
        let neighbors =
            pairs.windows(2).filter_map(|pair| Some((pair[0][1], pair[1][0], positions[pair[1][0]]?)));
        neighbors
            .flat_map(|(before, group, position)| {
                let first = outputs(group).next();
                outputs(before).map(move |buf| (position, buf, first))
            })
            .collect()
    }
}

/// Adds all that `lists` lead to from `node` through nodes that `may` be added.
fn reach(lists: &Lists<NodeId>, node: NodeId, found: &mut BTreeSet<NodeId>, may: impl Fn(NodeId) -> bool) {
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        for &next in lists.of(node) {
            if may(next) && found.insert(next) {
                stack.push(next);
            }
        }
    }
}
