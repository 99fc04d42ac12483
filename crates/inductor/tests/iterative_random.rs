//! The iterative passes on ten thousand random lists.
#![allow(clippy::unwrap_used)]

use phalanx_inductor::cases::ListConfig;
use phalanx_inductor::mode::PassMode;
use phalanx_inductor::model::{IterativePass, LaunchGraph, NodeId, simple_overlap};
use phalanx_ir::Id;
use phalanx_testkit::cases;

/// Process group and leaf of all collectives in an order, group by group.
fn collectives(graph: &LaunchGraph, order: &[NodeId]) -> Vec<(u32, usize)> {
    let leaves = order.iter().flat_map(|&node| graph.nodes[node].leaves.clone());
    let leaves = leaves.map(|leaf| (&graph.leaves[Id::from_index(leaf)], leaf));
    let mut collectives: Vec<_> = leaves
        .filter(|(leaf, _)| leaf.kind.is_collective())
        .map(|(leaf, number)| (leaf.group, number))
        .collect();
    collectives.sort_by_key(|&(group, _)| group);
    collectives
}

/// Whether an order keeps all dependencies, and of the order before the collectives of every process group.
fn assert_keeps(graph: &LaunchGraph, before: &[NodeId], order: &[NodeId], what: &str) {
    assert!(graph.is_valid(order, true), "{what}");
    assert_eq!(collectives(graph, order), collectives(graph, before), "{what}");
}

fn assert_within(graph: &LaunchGraph, (before, order): (&[NodeId], &[NodeId]), budget: f64, what: &str) {
    let (first, last) = (graph.memory(before).peak, graph.memory(order).peak);
    assert!((last - first) as f64 <= first as f64 * budget, "{what}: {first} {last}");
}

#[test]
fn repaired_passes_keep_order_and_budget_and_know_their_memory() {
    for seed in 0..cases(10_000) {
        let (graph, config) = crate::random::list(seed, 40);
        let mut order = graph.order();
        for pass in [IterativePass::Reorder, IterativePass::Sink, IterativePass::Reorder] {
            let what = format!("{seed} {pass:?}");
            let budget = match pass {
                IterativePass::Reorder => config.reorder_iterative_peak_memory_budget,
                IterativePass::Sink => config.sink_iterative_peak_memory_budget,
            };
            let found = pass.run(&graph, order.clone(), &config, PassMode::Fixed);
            assert_eq!(found.drift, 0, "{what}");
            assert_keeps(&graph, &order, &found.order, &what);
            assert_within(&graph, (&order, &found.order), budget, &what);
            if seed % 10 == 0 {
                let checked = pass.run_checked(&graph, order, &config, PassMode::Fixed);
                assert_eq!(checked.as_ref(), Ok(&found), "{what}");
            }
            order = found.order;
        }
        let found = simple_overlap(&graph, order.clone(), PassMode::Fixed);
        assert_keeps(&graph, &order, &found, &format!("{seed} simple"));
        assert_within(&graph, (&order, &found), 0.0, &format!("{seed} simple"));
    }
}

#[test]
fn faithful_passes_are_those_that_look_at_everything_again() {
    for seed in 0..cases(3000) {
        let (graph, config) = crate::random::list(seed, 40);
        let mut order = graph.order();
        let raised = IterativePass::Reorder.run(&graph, order.clone(), &config, PassMode::Reference);
        assert_eq!(raised, crate::naive::reorder(&graph, &order, &config), "{seed}");
        for order in [order.clone(), raised.order.clone()] {
            for (mode, newer) in [(PassMode::Reference, false), (PassMode::Newer, true)] {
                let sunk = IterativePass::Sink.run(&graph, order.clone(), &config, mode);
                assert_eq!(sunk, crate::naive::sink(&graph, &order, &config, newer), "{seed} {mode:?}");
            }
        }
        order = IterativePass::Sink.run(&graph, raised.order, &config, PassMode::Reference).order;
        let again = IterativePass::Reorder.run(&graph, order.clone(), &config, PassMode::Reference);
        assert_eq!(again, crate::naive::reorder(&graph, &order, &config), "{seed} again");
    }
}

/// A node that is treated alone, twice, starts the second time where it ended the first.
#[test]
fn exposures_kept_move_by_move_are_those_of_the_order_reached() {
    let mut n_met = 0;
    for seed in 0..cases(3000) {
        let (graph, config) = crate::random::list(seed, 40);
        let config = ListConfig {
            reorder_iterative_debug_limit_to_reorder: Some(1),
            sink_waits_iterative_debug_limit_to_sink: Some(1),
            ..config
        };
        for pass in [IterativePass::Reorder, IterativePass::Sink] {
            let first = pass.run(&graph, graph.order(), &config, PassMode::Fixed);
            let second = pass.run(&graph, first.order, &config, PassMode::Fixed);
            let (Some(first), Some(second)) = (first.stats.first(), second.stats.first()) else { continue };
            if first.node == second.node && first.moves > 0 {
                n_met += 1;
                let error = (first.final_exposed - second.initial_exposed).abs();
                assert!(error <= 1e-9 * (first.comm_time + first.comp_time), "{seed} {first:?} {second:?}");
            }
        }
    }
    assert!(n_met > cases(500), "{n_met}");
}
