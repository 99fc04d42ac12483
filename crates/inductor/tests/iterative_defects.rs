//! The reference's defects one by one: what its passes do, and what they do repaired.
#![allow(clippy::unwrap_used)]

use phalanx_inductor::cases::ListConfig;
use phalanx_inductor::mode::PassMode::{self, Fixed, Newer, Reference};
use phalanx_inductor::model::{
    DriftError, InputSpec, Iterative, IterativePass, LaunchGraph, LaunchKind, NodeSpec, OutputSpec, Spec,
    StopReason, simple_overlap,
};

/// A node whose only output has its name.
fn node(kind: LaunchKind, name: &str, cost: f64, reads: &[&str], size: u64) -> NodeSpec {
    let output = OutputSpec { name: name.into(), alloc: size, free: size, renames: None };
    NodeSpec {
        name: name.into(),
        kind: Some(kind),
        cost,
        reads: reads.iter().map(|&name| name.into()).collect(),
        outputs: vec![output],
        ..NodeSpec::default()
    }
}

fn compute(name: &str, cost: f64, reads: &[&str], size: u64) -> NodeSpec {
    node(LaunchKind::Compute, name, cost, reads, size)
}

fn collective(name: &str, cost: f64, reads: &[&str]) -> NodeSpec {
    node(LaunchKind::Collective, name, cost, reads, 10)
}

fn sync(name: &str, cost: f64, reads: &[&str]) -> NodeSpec {
    node(LaunchKind::SyncCollective, name, cost, reads, 10)
}

fn wait(name: &str, reads: &[&str]) -> NodeSpec {
    node(LaunchKind::Wait, name, 0.0, reads, 0)
}

fn group(name: &str, cost: f64, members: Vec<NodeSpec>) -> NodeSpec {
    NodeSpec { name: name.into(), cost, members, ..NodeSpec::default() }
}

fn on_stream(group: u32, node: NodeSpec) -> NodeSpec {
    NodeSpec { group, ..node }
}

/// A list that has an input `x` of 100 bytes, and whose outputs are given.
fn list(outputs: &[&str], nodes: Vec<NodeSpec>) -> LaunchGraph {
    let inputs = vec![InputSpec { name: "x".into(), size: 100, freeable: true }];
    let outputs = outputs.iter().map(|&name| name.into()).collect();
    LaunchGraph::build(&Spec { inputs, outputs, nodes, global_ordering: false }).unwrap()
}

fn by_memory() -> ListConfig {
    ListConfig {
        reorder_iterative_peak_memory_budget: 10.0,
        sink_iterative_peak_memory_budget: 10.0,
        sink_waits_iterative_swap_with_collectives: true,
        ..ListConfig::default()
    }
}

fn by_time() -> ListConfig {
    ListConfig {
        reorder_iterative_use_runtime_estimations: true,
        sink_iterative_use_runtime_estimations: true,
        ..by_memory()
    }
}

fn run(pass: IterativePass, graph: &LaunchGraph, config: &ListConfig, mode: PassMode) -> Iterative {
    pass.run(graph, graph.order(), config, mode)
}

fn names(graph: &LaunchGraph, order: &[phalanx_inductor::model::NodeId]) -> String {
    let names: Vec<_> = order.iter().map(|&node| graph.nodes[node].name.as_str()).collect();
    names.join(" ")
}

/// The order that a pass gives, and why the node treated last stopped.
fn outcome(
    pass: IterativePass,
    graph: &LaunchGraph,
    config: &ListConfig,
    mode: PassMode,
) -> (String, StopReason) {
    let found = run(pass, graph, config, mode);
    (names(graph, &found.order), found.stats.last().unwrap().limit)
}

#[test]
fn d1_a_wait_gains_from_what_its_group_passes() {
    let s = on_stream(1, sync("s", 0.0, &["w"]));
    let nodes = vec![collective("c", 100.0, &["x"]), wait("w", &["c"]), s, compute("k", 50.0, &[], 8)];
    let graph = list(&["s"], nodes);
    let found = |mode| outcome(IterativePass::Sink, &graph, &by_time(), mode);
    assert_eq!(found(Reference), ("c w s k".into(), StopReason::ExposesGroupCollectives));
    assert_eq!(found(Newer), ("c k w s".into(), StopReason::None));
    assert_eq!(found(Fixed), ("c k w s".into(), StopReason::None));
}

#[test]
fn d2_what_comes_along_no_longer_hides_the_wait_that_is_passed() {
    let other = on_stream(1, collective("d", 100.0, &["x"]));
    let nodes = vec![
        other,
        collective("c", 100.0, &["x"]),
        wait("w", &["c"]),
        compute("k", 50.0, &["w"], 8),
        wait("v", &["d"]),
    ];
    let graph = list(&["k"], nodes);
    let found = |mode| outcome(IterativePass::Sink, &graph, &by_time(), mode);
    assert_eq!(found(Reference), ("d c v w k".into(), StopReason::None));
    assert_eq!(found(Fixed), ("d c w k v".into(), StopReason::ExposesCandidateWait));
}

/// Two collectives, the later one nested in the earlier.
fn nested(stream: u32) -> LaunchGraph {
    let nodes = vec![
        collective("c", 100.0, &["x"]),
        on_stream(stream, collective("d", 100.0, &["x"])),
        compute("k", 7.0, &["x"], 8),
        wait("v", &["d"]),
        compute("l", 5.0, &["v"], 8),
        wait("w", &["c", "l"]),
    ];
    list(&["w"], nodes)
}

/// What hides the outer collective, seen from both ends.
fn hidden_from_both_ends(graph: &LaunchGraph, mode: PassMode) -> [f64; 2] {
    [IterativePass::Reorder, IterativePass::Sink]
        .map(|pass| run(pass, graph, &by_memory(), mode).stats[0].comp_time)
}

#[test]
fn d3_d4_d25_a_window_is_the_same_from_both_ends_and_ends_with_its_stream() {
    assert_eq!(hidden_from_both_ends(&nested(0), Reference), [12.0, 0.0]);
    assert_eq!(hidden_from_both_ends(&nested(0), Fixed), [7.0, 7.0]);
    assert_eq!(hidden_from_both_ends(&nested(1), Reference), [12.0, 0.0]);
    assert_eq!(hidden_from_both_ends(&nested(1), Fixed), [12.0, 12.0]);
}

#[test]
fn d5_the_peak_of_a_group_moves_with_it() {
    let nodes = vec![
        compute("p", 1.0, &[], 50),
        compute("z", 1.0, &["p"], 0),
        compute("a", 1.0, &[], 100),
        collective("c", 1.0, &[]),
        compute("last", 1.0, &["c"], 0),
    ];
    let graph = list(&["a"], nodes);
    let config = ListConfig { reorder_iterative_peak_memory_budget: 0.0, ..by_memory() };
    let found = |mode| outcome(IterativePass::Reorder, &graph, &config, mode);
    assert_eq!(found(Reference), ("p z c a last".into(), StopReason::PeakMemory));
    assert_eq!(found(Fixed), ("c p z a last".into(), StopReason::None));
    assert_eq!(run(IterativePass::Reorder, &graph, &config, Reference).stats[0].limit_peak, Some(160));
}

#[test]
fn d6_a_buffer_handed_over_has_a_new_last_user() {
    let nodes = vec![
        collective("c", 1.0, &["x"]),
        collective("d", 1.0, &["x"]),
        wait("w", &["c", "x"]),
        wait("v", &["d", "x"]),
        compute("k", 1.0, &["x"], 8),
    ];
    let graph = list(&[], nodes);
    let found = |mode| run(IterativePass::Sink, &graph, &by_memory(), mode);
    assert_eq!(names(&graph, &found(Reference).order), "c d k v w");
    assert_ne!(found(Reference).drift, 0);
    assert_eq!(found(Fixed).drift, 0);
}

#[test]
fn d7_inputs_do_not_move_with_the_first_node() {
    let nodes =
        vec![compute("a", 1.0, &[], 8), collective("c", 1.0, &[]), compute("k", 1.0, &["a", "c", "x"], 8)];
    let graph = list(&["k"], nodes);
    let found = |mode| run(IterativePass::Reorder, &graph, &by_memory(), mode);
    assert_eq!(names(&graph, &found(Reference).order), "c a k");
    assert_eq!([found(Reference).drift, found(Fixed).drift], [1, 0]);
}

#[test]
fn d8_a_group_with_a_blocking_collective_blocks() {
    let blocking = group("g", 3.0, vec![sync("s", 3.0, &[]), compute("l", 0.0, &["s"], 8)]);
    let graph = list(&[], vec![compute("a", 1.0, &[], 8), blocking, compute("k", 1.0, &["x"], 8)]);
    let found = |mode| run(IterativePass::Reorder, &graph, &by_memory(), mode);
    assert_eq!(names(&graph, &found(Reference).order), "g a k");
    assert_eq!(found(Fixed).stats, []);
}

#[test]
fn d11_the_node_at_the_end_is_treated() {
    let graph = list(&[], vec![compute("a", 1.0, &[], 8), collective("c", 1.0, &["x"])]);
    assert_eq!(run(IterativePass::Reorder, &graph, &by_memory(), Reference).stats, []);
    assert_eq!(
        outcome(IterativePass::Reorder, &graph, &by_memory(), Fixed),
        ("c a".into(), StopReason::None)
    );
    let graph = list(&[], vec![wait("w", &["x"]), compute("a", 1.0, &[], 8)]);
    assert_eq!(run(IterativePass::Sink, &graph, &by_memory(), Reference).stats, []);
    assert_eq!(outcome(IterativePass::Sink, &graph, &by_memory(), Fixed), ("a w".into(), StopReason::None));
}

#[test]
fn d12_a_wait_inside_a_group_is_protected() {
    let nodes = vec![
        on_stream(1, collective("d", 100.0, &["x"])),
        collective("c", 100.0, &["x"]),
        wait("w", &["c"]),
        on_stream(2, sync("s", 50.0, &["w"])),
        group("g", 0.0, vec![wait("v", &["d"]), compute("l", 0.0, &["v"], 8)]),
    ];
    let graph = list(&["s"], nodes);
    let found = |mode| outcome(IterativePass::Sink, &graph, &by_time(), mode);
    assert_eq!(found(Newer), ("d c g w s".into(), StopReason::None));
    assert_eq!(found(Fixed), ("d c w s g".into(), StopReason::ExposesCandidateWait));
}

#[test]
fn d14_collectives_of_a_process_group_keep_their_order() {
    let pair = |stream, fakes: &[&str]| {
        let fakes = fakes.iter().map(|&name| name.into()).collect();
        let second = NodeSpec { fakes, ..on_stream(stream, collective("d", 1.0, &["x"])) };
        list(&[], vec![collective("c", 1.0, &["x"]), second, compute("k", 1.0, &["c", "d"], 8)])
    };
    let found = |graph: &LaunchGraph, mode| outcome(IterativePass::Reorder, graph, &by_memory(), mode);
    assert_eq!(found(&pair(0, &[]), Reference), ("d c k".into(), StopReason::None));
    assert_eq!(found(&pair(0, &[]), Fixed), ("c d k".into(), StopReason::CollectiveOrdering));
    assert_eq!(found(&pair(1, &[]), Fixed), ("d c k".into(), StopReason::None));
    assert_eq!(found(&pair(1, &["c"]), Reference), ("d c k".into(), StopReason::None));
    assert_eq!(found(&pair(1, &["c"]), Fixed), ("c d k".into(), StopReason::DataDependency));
}

#[test]
fn d14_without_times_a_collective_does_not_pass_a_blocking_one_of_its_process_group() {
    let graph = list(&[], vec![sync("s", 1.0, &["x"]), collective("c", 1.0, &["x"])]);
    let found = |mode| names(&graph, &simple_overlap(&graph, graph.order(), mode));
    assert_eq!(found(Newer), "c s");
    assert_eq!(found(Fixed), "s c");
}

#[test]
fn d15_a_collective_that_is_just_hidden_stops() {
    let raised = |cost: f64, mode| {
        let nodes = vec![
            compute("a", 1.0, &[], 8),
            compute("b", 15.0, &[], 8),
            collective("c", cost, &["x"]),
            compute("k", 1.0, &["c"], 8),
        ];
        outcome(IterativePass::Reorder, &list(&[], nodes), &by_time(), mode)
    };
    assert_eq!(raised(5.0, Reference), ("c a b k".into(), StopReason::None));
    assert_eq!(raised(5.0, Fixed), ("a c b k".into(), StopReason::Unexposed));
    assert_eq!(raised(0.0, Reference), ("a c b k".into(), StopReason::Unexposed));
    assert_eq!(raised(0.0, Fixed), ("a b c k".into(), StopReason::Unexposed));
}

#[test]
fn d16_what_is_hidden_twice_is_no_gain() {
    let nodes = vec![compute("b", 15.0, &[], 8), collective("c", 5.0, &["x"]), compute("k", 1.0, &["c"], 8)];
    let graph = list(&[], nodes);
    let found = |mode| run(IterativePass::Reorder, &graph, &by_time(), mode).improvement(mode);
    assert_eq!([found(Reference), found(Fixed)], [15.0, 10.0]);
}

#[test]
fn d20_a_check_of_every_move_allows_what_the_budget_allows() {
    let nodes = vec![
        compute("b", 1.0, &[], 80),
        compute("l", 1.0, &["b"], 8),
        collective("c", 1.0, &["l"]),
        on_stream(1, collective("d", 1.0, &[])),
        compute("k", 1.0, &["d"], 8),
    ];
    let graph = list(&[], nodes);
    let found = |mode| IterativePass::Reorder.run_checked(&graph, graph.order(), &by_memory(), mode);
    assert!(matches!(found(Reference), Err(DriftError::Peak { peak: 98, allowed: 88, .. })));
    assert_eq!(graph.memory(&found(Fixed).unwrap().order).peak, 98);
}
