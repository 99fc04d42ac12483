//! Random models under random plans: what comes out is legal, keeps every tile where its users are, and computes the same.

use std::collections::BTreeMap;

use phalanx_ir::Op;
use phalanx_ir::graph::{Builder, Graph, ValueId};
use phalanx_ir::parallel::{ParallelGraph, place};
use phalanx_plan::{Mesh, Pipeline, Plan, PlanError, PlanRule, parallelize};
use phalanx_testkit::cases;
use phalanx_testkit::eval::evaluate;
use phalanx_testkit::generate::{random_graph, random_inputs};

/// The evaluator is exact to 1e-12 or so; a mean over a cut dimension multiplies by a reciprocal in single precision.
const TOLERANCE: f64 = 1e-6;

/// A small generator of choices: the state of a 64-bit linear congruence.
struct Choice(u64);

impl Choice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// A plan with rules for some values, one axis each, where it divides.
fn random_plan(graph: &Graph, seed: u64) -> Plan {
    let mut choice = Choice(seed);
    let axes: Vec<(String, usize)> = ["a", "b", "c"]
        .into_iter()
        .map(|name| (name.to_string(), [2, 3, 2, 1, 5][choice.below(5)]))
        .collect();
    let mut plan = Plan { mesh: Mesh { axes: axes.clone() }, ..Plan::default() };
    for (value, tensor) in graph.values().iter() {
        let mut rule =
            PlanRule { pattern: tensor.name.clone(), regather: choice.below(2) == 0, ..PlanRule::default() };
        let is_param = matches!(graph.op_of(value), Op::Param(_));
        let sparse = if graph.op_of(value).is_leaf() { 1 } else { 6 };
        for (dim, &extent) in graph.ty(value).shape.dims().iter().enumerate() {
            let mut left = extent;
            for (axis, size) in &axes {
                let free = !rule.shard.values().chain(rule.store.values()).flatten().any(|used| used == axis);
                if free && choice.below(2 + sparse) == 0 && left.is_multiple_of(*size) {
                    left /= size;
                    let stored = rule.store.contains_key(&dim) || is_param && choice.below(2) == 0;
                    let map = if stored { &mut rule.store } else { &mut rule.shard };
                    map.entry(dim).or_default().push(axis.clone());
                }
            }
        }
        if !rule.shard.is_empty() || !rule.store.is_empty() {
            plan.rules.push(rule);
        }
    }
    if choice.below(4) == 0 {
        let names: Vec<_> = graph.layers().ids().map(|layer| graph.layer_name(layer).to_string()).collect();
        let stages = (0..2).map(|_| vec![names[choice.below(names.len())].clone()]).collect();
        plan.pipeline = Some(Pipeline { axis: "pp".into(), stages });
        plan.mesh.axes.insert(choice.below(4), ("pp".into(), 2));
    }
    if choice.below(3) == 0 {
        plan.microbatches = 2;
    }
    plan
}

/// The model that a parallel graph computes: parallel operators are the identity.
fn sequential(parallel: &ParallelGraph) -> Graph {
    let mut builder = Builder::new(parallel.name());
    let mut values: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (id, layer) in parallel.layers().iter() {
        let operands: Vec<_> = layer.operands.iter().map(|operand| values[operand]).collect();
        let name = parallel.layer_name(id);
        let results = match &layer.op {
            op if op.is_parallel() => operands,
            op if op.is_leaf() => {
                vec![builder.leaf(name, op.clone(), parallel.ty(layer.results[0]).global()).expect("a leaf")]
            }
            op => {
                builder.add(name, op.clone(), &operands).expect("the shapes are those of the parallel graph")
            }
        };
        values.extend(layer.results.iter().copied().zip(results));
    }
    builder.finish(parallel.outputs().iter().map(|output| values[output]).collect::<Vec<_>>())
}

fn assert_equal(graph: &Graph, parallel: &ParallelGraph, seed: u64) {
    let inputs = random_inputs(graph, seed);
    let computed = sequential(parallel);
    let (expected, found) = (evaluate(graph, &inputs), evaluate(&computed, &inputs));
    for (a, b) in graph.outputs().iter().zip(computed.outputs()) {
        assert_eq!(expected[a].shape, found[b].shape);
        for (a, b) in expected[a].data.iter().zip(&found[b].data) {
            assert!((a - b).abs() <= TOLERANCE * a.abs().max(1.0), "{a} became {b}\n{graph}\n{parallel}");
        }
    }
}

/// Operands of a task are on its devices, if they come from no other stage.
fn assert_local(parallel: &ParallelGraph) {
    for (id, layer) in
        parallel.layers().iter().filter(|(_, layer)| !layer.op.is_leaf() && !layer.op.is_parallel())
    {
        let rule = parallel.rule(id).expect("the graph is verified");
        for (&operand, map) in layer.operands.iter().zip(&rule.operands) {
            let groups = parallel.groups(operand).expect("the graph is verified");
            for (task, group) in layer.label.groups.iter().enumerate() {
                let tile = parallel.ty(operand).index(&map.coord(&rule.extents, &place(&rule.extents, task)));
                assert!(groups[tile].covers(group), "{}\n{parallel}", parallel.layer_name(id));
            }
        }
    }
}

/// No operator that the one before it undoes, and none that does nothing.
fn assert_minimal(parallel: &ParallelGraph) {
    for (id, layer) in parallel.layers().iter().filter(|(_, layer)| layer.op.is_parallel()) {
        assert_ne!(
            parallel.ty(layer.operands[0]),
            parallel.ty(layer.results[0]),
            "{}",
            parallel.layer_name(id)
        );
        let before = &parallel.layers()[parallel.values()[layer.operands[0]].layer];
        let order = |op: &Op| match op {
            Op::Reduction { .. } => 1,
            Op::Combine { .. } => 2,
            Op::Repartition { .. } => 3,
            Op::Replicate { .. } => 4,
            _ => 0,
        };
        let is_last = matches!(layer.op, Op::Replicate { .. }) || order(&before.op) != 4;
        assert!(is_last, "copies are made last: {}\n{parallel}", parallel.layer_name(id));
    }
}

#[test]
fn random_plans_are_legal_local_and_equal() {
    let (mut legal, mut conversions, mut refused) = (0, 0, 0);
    for seed in 0..cases(3000) {
        let graph = random_graph(seed % 600);
        let plan = random_plan(&graph, seed);
        let parallel = match parallelize(&graph, &plan) {
            Ok(parallel) => parallel,
            Err(PlanError::Microbatch(_) | PlanError::Indivisible { .. }) => {
                refused += 1;
                continue;
            }
            Err(error) => panic!("{error}\n{graph}\n{}", plan.to_text()),
        };
        parallel.verify().unwrap_or_else(|errors| panic!("{errors:#?}\n{parallel}\n{}", plan.to_text()));
        assert_eq!(Plan::parse(&plan.to_text()).as_ref(), Ok(&plan));
        assert_eq!(
            ParallelGraph::parse(parallel.to_string(), phalanx_ops::operators()).as_ref(),
            Ok(&parallel)
        );
        if plan.pipeline.is_none() {
            assert_local(&parallel);
        }
        assert_minimal(&parallel);
        if seed < cases(1000) {
            assert_equal(&graph, &parallel, seed);
        }
        legal += 1;
        conversions += parallel.layers().iter().filter(|(_, layer)| layer.op.is_parallel()).count();
    }
    assert!(
        legal > cases(2000) && conversions > cases(5000) as usize,
        "{legal} legal with {conversions} conversions, {refused} refused"
    );
}
