use std::collections::BTreeSet;

use super::*;

#[test]
fn models_are_verified_smooth_and_repeatable() {
    for seed in 0..300 {
        let graph = random_graph(seed);
        assert_eq!(graph.verify(), Ok(()), "seed {seed}\n{graph}");
        assert!(is_smooth(&graph, &random_inputs(&graph, seed)), "seed {seed}\n{graph}");
        assert_eq!(graph, random_graph(seed), "seed {seed}");
        assert_eq!(graph.ty(graph.outputs()[0]).shape.rank(), 0, "seed {seed}");
    }
}

#[test]
fn every_operator_occurs() {
    let mut names = BTreeSet::new();
    for seed in 0..1000 {
        let graph = random_graph(seed);
        names.extend(graph.layers().iter().map(|(_, layer)| layer.op.to_text().0));
    }
    // Attention over earlier tokens has no gradient.
    let all = phalanx_ops::operators().names().filter(|&name| name != "cached_attention");
    let leaves = ["input", "param", "state", "constant", "table"];
    let missing: Vec<_> = all.chain(leaves).filter(|name| !names.contains(*name)).collect();
    assert!(missing.is_empty(), "never drawn: {missing:?}");
}

#[test]
fn inputs_fit_their_uses() {
    let text = "graph @uses {
        %ids = input i64[40]
        %labels = input i32[5, 8]
        %x = input f32[40]
        %table = param init=ones f32[3, 2]
        %rows = embedding %ids, %table : f32[40, 2]
        %flat = reshape shape=[40] %labels : i32[40]
        %nll = cross_entropy ignore=-7 %rows, %flat : f32[]
        %log = log %x : f32[40]
        return %nll, %log
    }";
    let graph = Graph::parse(text, phalanx_ops::operators()).expect("the text is a graph");
    let inputs = random_inputs(&graph, 3);
    assert!(inputs["ids"].data.iter().all(|id| [0.0, 1.0, 2.0].contains(id)));
    assert!(inputs["labels"].data.iter().all(|label| [-7.0, 0.0, 1.0].contains(label)));
    assert!(inputs["labels"].data.contains(&-7.0) && inputs["labels"].data.contains(&1.0));
    assert!(inputs["x"].data.iter().all(|&x| x >= 0.5));
}

#[test]
fn finite_differences_do_not_depend_on_their_step() {
    for seed in 0..60 {
        let graph = random_graph(seed);
        let inputs = random_inputs(&graph, seed);
        let coarse = crate::differences::gradients(&graph, &inputs, 1e-4);
        for (name, fine) in crate::differences::gradients(&graph, &inputs, 1e-5) {
            for (fine, coarse) in fine.data.iter().zip(&coarse[&name].data) {
                let bound = 1e-4 * fine.abs().max(1.0);
                assert!((fine - coarse).abs() < bound, "seed {seed} %{name}: {fine} {coarse}\n{graph}");
            }
        }
    }
}
