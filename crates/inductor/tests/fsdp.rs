//! Blocks of a traced FSDP step where the recorded results do not reach.
#![allow(clippy::unwrap_used)]

use phalanx_inductor::mode::PassMode;
use phalanx_inductor::model::{
    FsdpBlock, FsdpError, FsdpRole, LaunchGraph, LaunchKind, NodeId, NodeSpec, OutputSpec, Spec,
    enforce_comm_ordering_for_fsdp,
};
use phalanx_ir::{Id, IdVec};

type Node = (LaunchKind, Option<FsdpRole>, &'static [usize]);

/// Nodes with their roles and the nodes that they read.
fn step(nodes: &[Node]) -> (LaunchGraph, IdVec<NodeId, Option<FsdpRole>>) {
    let specs = nodes.iter().enumerate().map(|(at, (kind, _, reads))| {
        let output = OutputSpec { name: format!("buf{at}"), alloc: 1, free: 1, renames: None };
        let reads = reads.iter().map(|read| format!("buf{read}")).collect();
        NodeSpec {
            name: format!("op{at}"),
            kind: Some(*kind),
            reads,
            outputs: vec![output],
            ..NodeSpec::default()
        }
    });
    let graph = LaunchGraph::build(&Spec { nodes: specs.collect(), ..Spec::default() }).unwrap();
    (graph, nodes.iter().map(|&(_, role, _)| role).collect())
}

const GATHER: [Node; 4] = [
    (LaunchKind::Compute, Some(FsdpRole::CopyIn), &[]),
    (LaunchKind::Collective, Some(FsdpRole::AllGather), &[0]),
    (LaunchKind::Wait, None, &[1]),
    (LaunchKind::Compute, Some(FsdpRole::CopyOut), &[2]),
];

/// The second all-gather gathers what the first one gathered.
fn reused() -> (LaunchGraph, IdVec<NodeId, Option<FsdpRole>>) {
    let second: [Node; 4] = [
        (LaunchKind::Compute, Some(FsdpRole::CopyIn), &[3]),
        (LaunchKind::Collective, Some(FsdpRole::AllGather), &[4]),
        (LaunchKind::Wait, None, &[5]),
        (LaunchKind::Compute, Some(FsdpRole::CopyOut), &[6]),
    ];
    step(&[GATHER, second].concat())
}

#[test]
fn d22_a_layer_that_is_used_twice_fails_in_the_reference_only() {
    let (graph, roles) = reused();
    let found = |mode| enforce_comm_ordering_for_fsdp(&graph, &roles, mode);
    let meets = FsdpError::Meets { node: "op5".into(), other: "op0".into() };
    assert_eq!(found(PassMode::Reference), Err(meets.clone()));
    assert_eq!(found(PassMode::Newer), Err(meets));
    let fixed = found(PassMode::Fixed).unwrap();
    assert_eq!(fixed.order, graph.nodes.ids().map(FsdpBlock::Node).collect::<Vec<_>>());
    let links: Vec<_> =
        fixed.links.iter().map(|(at, buf, by)| (*at, buf.index(), by.map(|by| by.index()))).collect();
    assert_eq!(links, [(5, 1, Some(5))], "the second collective is behind the first");
}

#[test]
fn a_gather_is_cut_at_its_wait_and_before_a_second_copy_out() {
    let more: [Node; 2] =
        [(LaunchKind::Compute, Some(FsdpRole::CopyOut), &[2]), (LaunchKind::Compute, None, &[3, 4])];
    let (graph, roles) = step(&[&GATHER[..], &more].concat());
    let found = enforce_comm_ordering_for_fsdp(&graph, &roles, PassMode::Reference).unwrap();
    let id = NodeId::from_index;
    let groups = [vec![id(0), id(1)], vec![id(2), id(3)]].map(FsdpBlock::Group);
    assert_eq!(found.order, [&groups[..], &[FsdpBlock::Node(id(4)), FsdpBlock::Node(id(5))]].concat());
    assert!(found.links.is_empty());
}

#[test]
fn what_is_no_traced_step_is_an_error() {
    let (graph, roles) = step(&[(LaunchKind::Compute, None, &[])]);
    let found = enforce_comm_ordering_for_fsdp(&graph, &roles, PassMode::Reference);
    assert_eq!(found, Err(FsdpError::Nothing));
    let (graph, roles) =
        step(&[(LaunchKind::Compute, Some(FsdpRole::ChunkCat), &[]), (LaunchKind::Collective, None, &[0])]);
    let found = enforce_comm_ordering_for_fsdp(&graph, &roles, PassMode::Reference);
    assert_eq!(found, Err(FsdpError::NoWait { node: "op0".into() }));
}
