//! Greedy passes and orders for memory against plain versions of themselves, and what is repaired in them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use phalanx_inductor::mode::PassMode;
use phalanx_inductor::model::{
    BufId, InputSpec, LaunchGraph, LaunchKind, LeafId, Method, NodeId, NodeSpec, OutputSpec, Spec,
    breadth_first, depth_first, least_peak_first, raise_comms, reorder_compute_for_overlap,
    reorder_for_peak_memory, sink_waits, visualize_overlap,
};
use phalanx_ir::Id;
use phalanx_testkit::cases;

const SEEDS: u64 = 1000;

fn before(graph: &LaunchGraph, node: NodeId) -> BTreeSet<NodeId> {
    let node = &graph.nodes[node];
    node.deps.iter().chain(&node.fakes).filter_map(|&buf| graph.bufs[buf].definer).collect()
}

fn ready(graph: &LaunchGraph, done: &[NodeId]) -> Vec<NodeId> {
    let open = graph.nodes.ids().filter(|node| !done.contains(node));
    open.filter(|&node| before(graph, node).iter().all(|before| done.contains(before))).collect()
}

/// All leaves that a leaf needs.
fn ancestors(graph: &LaunchGraph, leaf: LeafId, found: &mut BTreeSet<LeafId>) {
    let defines =
        |buf: &BufId| graph.leaves.iter().find(|(_, leaf)| leaf.outputs.contains(buf)).map(|(id, _)| id);
    let leaf = &graph.leaves[leaf];
    for definer in leaf.deps.iter().chain(&leaf.fakes).filter_map(defines) {
        if found.insert(definer) {
            ancestors(graph, definer, found);
        }
    }
}

/// The routine as it is told: all ancestors of all collectives, all ready nodes looked at.
fn plain(graph: &LaunchGraph, order: &[NodeId], [raises, sinks, overlaps]: [bool; 3]) -> Vec<NodeId> {
    let mut first = vec![usize::MAX; graph.nodes.len()];
    let comms = order.iter().filter(|&&node| graph.contains_collective(node));
    for (number, &node) in comms.enumerate().filter(|_| raises) {
        let mut found = BTreeSet::new();
        graph.nodes[node]
            .leaves
            .clone()
            .for_each(|leaf| ancestors(graph, LeafId::from_index(leaf), &mut found));
        let needed = found.into_iter().map(|leaf| graph.leaves[leaf].node).chain([node]);
        needed.for_each(|node| first[node.index()] = first[node.index()].min(number));
    }
    let score = |node: &NodeId| {
        let waits = sinks && graph.contains_wait(*node) && !(raises && graph.contains_collective(*node));
        (first[node.index()], waits, order.iter().position(|other| other == node))
    };
    let computes = |node: &NodeId| !graph.contains_collective(*node) && !graph.contains_wait(*node);
    let mut done = Vec::new();
    while let Some(node) = ready(graph, &done).into_iter().min_by_key(score) {
        done.push(node);
        let mut left = if overlaps && graph.contains_collective(node) { graph.nodes[node].cost } else { 0.0 };
        while left > 0.0
            && let Some(node) = ready(graph, &done).into_iter().filter(computes).min_by_key(score)
        {
            left -= graph.nodes[node].cost;
            done.push(node);
        }
    }
    done
}

#[test]
fn passes_are_those_of_the_plain_routine_from_any_order() {
    let mut moved = 0;
    for seed in 0..cases(SEEDS) {
        let graph = crate::random::list(seed, 40).0;
        let initial = graph.order();
        // A valid order other than the initial one.
        for order in [initial.clone(), breadth_first(&graph, &initial)] {
            let mode = PassMode::Reference;
            assert_eq!(
                sink_waits(&graph, &order, mode),
                plain(&graph, &order, [false, true, false]),
                "{seed}"
            );
            assert_eq!(
                raise_comms(&graph, &order, mode),
                plain(&graph, &order, [true, false, false]),
                "{seed}"
            );
            let overlapped = reorder_compute_for_overlap(&graph, &order, mode);
            assert_eq!(overlapped, plain(&graph, &order, [true; 3]), "{seed}");
            moved += usize::from(overlapped != order);
            for mode in [PassMode::Newer, PassMode::Fixed] {
                let order = reorder_compute_for_overlap(&graph, &order, mode);
                assert!(graph.is_valid(&order, true), "{seed}");
            }
        }
    }
    assert!(moved > cases(500) as usize, "{moved} of the orders change");
}

/// The order that lifts memory least, as it is told.
fn plain_least(graph: &LaunchGraph, order: &[NodeId], threshold: i64) -> Vec<NodeId> {
    let position = |node: NodeId| order.iter().position(|&other| other == node);
    let size =
        |node: NodeId| graph.nodes[node].outputs.iter().map(|&buf| graph.bufs[buf].alloc as i64).sum::<i64>();
    let counts =
        || graph.bufs.iter().map(|(_, buf)| buf).filter(|buf| buf.definer.is_some() || !buf.users.is_empty());
    let mut live: i64 = counts().filter(|buf| buf.definer.is_none()).map(|buf| buf.free as i64).sum();
    let mut top = live.max(counts().filter(|buf| buf.is_output).map(|buf| buf.free as i64).sum());
    let mut done: Vec<NodeId> = Vec::new();
    loop {
        let freed = |node: NodeId| -> i64 {
            let left = |users: &[NodeId]| {
                users.iter().copied().filter(|user| !done.contains(user)).collect::<Vec<_>>()
            };
            let is_last = |users: &[NodeId], definer| {
                left(users) == [node] || users.is_empty() && definer == Some(node)
            };
            let bufs = graph.bufs.iter().map(|(_, buf)| buf).filter(|buf| !buf.is_output);
            bufs.filter(|buf| is_last(&buf.users, buf.definer)).map(|buf| buf.free as i64).sum()
        };
        let key = |node: &NodeId| {
            let (size, net) = (size(*node), size(*node) - freed(*node));
            (if size > top - live { size } else { 0 }, net, position(*node))
        };
        let successor = |node: &NodeId| {
            let after =
                graph.nodes.ids().filter(|&user| before(graph, user).contains(node)).filter_map(position);
            (after.min().unwrap_or(usize::MAX), position(*node))
        };
        let ready = ready(graph, &done);
        let is_large = threshold > 0 && ready.iter().all(|&node| size(node) > threshold);
        let next = ready.into_iter();
        let next = if is_large { next.min_by_key(successor) } else { next.min_by_key(key) };
        let Some(node) = next else { return done };
        let freed = freed(node);
        live += size(node);
        top = top.max(live);
        live -= freed;
        done.push(node);
    }
}

fn plain_breadth(graph: &LaunchGraph, order: &[NodeId]) -> Vec<NodeId> {
    let mut done: Vec<NodeId> = Vec::new();
    let at = |order: &[NodeId], node: &NodeId| order.iter().position(|other| other == node);
    loop {
        let key = |node: &NodeId| {
            let mut places: Vec<_> = before(graph, *node).iter().map(|before| at(&done, before)).collect();
            places.sort_unstable();
            (places, at(order, node))
        };
        let Some(next) = ready(graph, &done).into_iter().min_by_key(key) else { return done };
        done.push(next);
    }
}

fn plain_depth(graph: &LaunchGraph, order: &[NodeId]) -> Vec<NodeId> {
    fn visit(
        graph: &LaunchGraph,
        nodes: impl Iterator<Item = NodeId>,
        order: &[NodeId],
        done: &mut Vec<NodeId>,
    ) {
        let weight = |node: &NodeId| {
            let added = graph.nodes[*node].outputs.iter().map(|&buf| graph.bufs[buf].alloc);
            let used = graph.bufs.iter().filter(|(_, buf)| buf.users.contains(node)).map(|(_, buf)| buf.free);
            (added.chain(used).sum::<u64>(), order.iter().position(|other| other == node))
        };
        let mut nodes: Vec<NodeId> = nodes.collect();
        nodes.sort_by_key(weight);
        for node in nodes {
            if !done.contains(&node) {
                visit(graph, before(graph, node).into_iter(), order, done);
                done.push(node);
            }
        }
    }
    let mut done = Vec::new();
    visit(graph, order.iter().copied(), order, &mut done);
    done
}

#[test]
fn orders_for_memory_are_those_of_the_plain_versions_and_the_best_is_chosen() {
    let mut chosen = BTreeSet::new();
    for seed in 0..cases(SEEDS) {
        let graph = crate::random::list(seed, 40).0;
        let order = graph.order();
        assert_eq!(breadth_first(&graph, &order), plain_breadth(&graph, &order), "{seed}");
        assert_eq!(depth_first(&graph, &order), plain_depth(&graph, &order), "{seed}");
        for threshold in [0, 30] {
            let least = least_peak_first(&graph, &order, threshold);
            assert_eq!(least, plain_least(&graph, &order, threshold as i64), "{seed} {threshold}");
        }
        let best = reorder_for_peak_memory(&graph, &order, 0, PassMode::Fixed);
        assert!(graph.is_valid(&best.order, true));
        assert_eq!(graph.memory(&best.order).peak, best.peak);
        let others = [least_peak_first(&graph, &order, 0), depth_first(&graph, &order), order];
        assert!(others.iter().all(|order| best.peak <= graph.memory(order).peak), "{seed}");
        assert_eq!(best.method == Method::Given, best.order == graph.order(), "{seed}");
        chosen.insert(format!("{:?}", best.method));
    }
    assert_eq!(chosen.len(), 4, "every method wins somewhere: {chosen:?}");
}

fn node(name: &str, kind: LaunchKind, cost: f64, reads: &[&str]) -> NodeSpec {
    let reads = reads.iter().map(|&read| read.into()).collect();
    let output = OutputSpec { name: format!("{name}_out"), alloc: 10, free: 10, renames: None };
    NodeSpec {
        name: name.into(),
        kind: Some(kind),
        cost,
        reads,
        outputs: vec![output],
        ..NodeSpec::default()
    }
}

fn list(nodes: Vec<NodeSpec>) -> LaunchGraph {
    LaunchGraph::build(&Spec { nodes, ..Spec::default() }).unwrap()
}

fn names<'a>(graph: &'a LaunchGraph, order: &[NodeId]) -> Vec<&'a str> {
    order.iter().map(|&node| graph.nodes[node].name.as_str()).collect()
}

#[test]
fn d24_compute_without_cost_is_not_put_behind_a_collective() {
    let graph = list(vec![
        node("a", LaunchKind::Compute, 0.0, &[]),
        node("comm", LaunchKind::Collective, 5.0, &[]),
        node("wait", LaunchKind::Wait, 0.0, &["comm_out"]),
        node("next", LaunchKind::Collective, 5.0, &["wait_out"]),
        node("b", LaunchKind::Compute, 9.0, &[]),
    ]);
    let found = |mode| reorder_compute_for_overlap(&graph, &graph.order(), mode);
    assert_eq!(names(&graph, &found(PassMode::Reference)), ["comm", "a", "b", "wait", "next"]);
    assert_eq!(names(&graph, &found(PassMode::Fixed)), ["comm", "b", "wait", "next", "a"]);
}

#[test]
fn d8_a_blocking_collective_hides_nothing_even_inside_a_group() {
    let member = node("comm", LaunchKind::SyncCollective, 5.0, &[]);
    let group = NodeSpec { name: "group".into(), cost: 5.0, members: vec![member], ..NodeSpec::default() };
    let graph = list(vec![
        group,
        node("next", LaunchKind::Collective, 1.0, &["comm_out"]),
        node("a", LaunchKind::Compute, 9.0, &[]),
    ]);
    let found = |mode| reorder_compute_for_overlap(&graph, &graph.order(), mode);
    assert_eq!(names(&graph, &found(PassMode::Reference)), ["group", "a", "next"]);
    assert_eq!(names(&graph, &found(PassMode::Fixed)), ["group", "next", "a"]);
    let time = |mode| graph.simulate(&found(mode)).makespan;
    assert!(time(PassMode::Fixed) < time(PassMode::Reference));
}

#[test]
fn only_the_member_that_a_collective_needs_draws_its_own_needs_along() {
    let members =
        vec![node("x", LaunchKind::Compute, 1.0, &[]), node("y", LaunchKind::Compute, 1.0, &["far_out"])];
    let group = NodeSpec { name: "group".into(), cost: 2.0, members, ..NodeSpec::default() };
    let graph = list(vec![
        node("other", LaunchKind::Compute, 1.0, &[]),
        node("far", LaunchKind::Compute, 1.0, &[]),
        group,
        node("comm", LaunchKind::Collective, 1.0, &["x_out"]),
    ]);
    // `far` is no ancestor of the collective, although the group behind it must come first.
    let raised = raise_comms(&graph, &graph.order(), PassMode::Fixed);
    assert_eq!(names(&graph, &raised), ["other", "far", "group", "comm"]);
}

#[test]
fn d17_the_older_estimate_forgets_outputs() {
    let nodes =
        vec![node("a", LaunchKind::Compute, 1.0, &[]), node("b", LaunchKind::Compute, 1.0, &["a_out"])];
    let graph =
        LaunchGraph::build(&Spec { nodes, outputs: vec!["b_out".into()], ..Spec::default() }).unwrap();
    let peaks = [PassMode::Reference, PassMode::Newer, PassMode::Fixed]
        .map(|mode| graph.older_peak(&graph.order(), mode));
    assert_eq!(peaks, [10, 20, 20]);
}

#[test]
fn d19_storage_outlives_the_list_by_any_of_its_names() {
    let mut wait = node("wait", LaunchKind::Wait, 0.0, &["comm_out"]);
    wait.outputs[0] = OutputSpec { name: "done".into(), alloc: 0, free: 0, renames: Some("comm_out".into()) };
    let input = InputSpec { name: "in".into(), size: 7, freeable: true };
    let nodes = vec![
        node("comm", LaunchKind::Collective, 1.0, &["in"]),
        wait,
        node("last", LaunchKind::Compute, 1.0, &[]),
    ];
    let outputs = vec!["done".into()];
    let mut graph =
        LaunchGraph::build(&Spec { inputs: vec![input], outputs, nodes, ..Spec::default() }).unwrap();
    let after = |graph: &LaunchGraph| {
        graph.memory(&graph.order()).steps.iter().map(|step| step.post_free).collect::<Vec<_>>()
    };
    assert_eq!(after(&graph), [10, 0, 0], "what the reference computes");
    graph.resolve_outputs();
    assert_eq!(after(&graph), [10, 10, 10]);
}

#[test]
fn d23_a_foreign_wait_ends_nothing() {
    let graph = list(vec![
        node("long", LaunchKind::Collective, 100.0, &[]),
        node("short", LaunchKind::Collective, 1.0, &[]),
        node("wait", LaunchKind::Wait, 0.0, &["long_out"]),
        node("a", LaunchKind::Compute, 30.0, &[]),
        node("b", LaunchKind::Compute, 5.0, &[]),
    ]);
    let drawn = visualize_overlap(&graph, &graph.order(), PassMode::Reference);
    assert_eq!((drawn.runtime, drawn.hidden), (136.0, vec![]));
    let simulated = visualize_overlap(&graph, &graph.order(), PassMode::Fixed);
    assert_eq!((simulated.runtime, simulated.hidden), (135.0, vec![3]), "the short one runs beside `a`");
}
