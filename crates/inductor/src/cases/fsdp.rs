//! Traced FSDP steps.

use phalanx_ir::{Id, IdVec};
use serde_json::json;

use super::list::NodeJson;
use super::{Answer, CaseError, FsdpOp, Keys, ListCase, collect, parse};
use crate::mode::PassMode;
use crate::model::{FsdpBlock, FsdpRole, NodeId, enforce_comm_ordering_for_fsdp};

pub(super) fn keys() -> Vec<&'static str> {
    vec!["new_order", "fake_deps"]
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Answer, CaseError> {
    let case: ListCase = parse(line)?;
    let graph = case.checked_graph()?;
    let roles: IdVec<NodeId, Option<FsdpRole>> = case.nodes.iter().map(role).collect();
    let blocks = enforce_comm_ordering_for_fsdp(&graph, &roles, mode)?;
    let order = blocks.order.iter().map(|block| match block {
        FsdpBlock::Node(node) => json!({ "node": node.index() }),
        FsdpBlock::Group(nodes) => {
            json!({ "group": nodes.iter().map(|node| node.index()).collect::<Vec<_>>() })
        }
    });
    let links = blocks.links.iter().map(|&(position, buf, by)| {
        json!([position, graph.bufs[buf].name, by.map(|by| &graph.bufs[by].name)])
    });
    Ok(collect(keys, [("new_order", order.collect()), ("fake_deps", links.collect())]))
}

fn role(node: &NodeJson) -> Option<FsdpRole> {
    match (node.fsdp_op, node.op.as_deref()) {
        (Some(FsdpOp::AllGatherCopyIn), _) => Some(FsdpRole::CopyIn),
        (Some(FsdpOp::SplitWithSizesCopy), _) => Some(FsdpRole::CopyOut),
        (Some(FsdpOp::ChunkCat), _) => Some(FsdpRole::ChunkCat),
        (None, Some("all_gather_out")) => Some(FsdpRole::AllGather),
        (None, _) => None,
    }
}
