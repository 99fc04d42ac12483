//! Random plans for a model: everything a plan file can say, where extents allow it.

use phalanx::Plan;
use phalanx::ir::Op;
use phalanx::ir::graph::{Graph, ValueId};
use phalanx::plan::{Mesh, Pipeline, PlanRule};
use phalanx_testkit::Rng;

/// The most devices: each is a thread.
const MOST_DEVICES: usize = 12;

/// A plan with a mesh of one to three axes and rules for some values.
pub fn random_plan(model: &Graph, seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let mut plan = Plan { mesh: mesh(&mut rng), ..Plan::default() };
    if rng.once_in(5) && plan.mesh.devices() * 2 <= MOST_DEVICES {
        let names: Vec<_> = model.layers().ids().map(|layer| model.layer_name(layer).to_string()).collect();
        let stages = (0..2).map(|_| vec![rng.choose(&names)]).collect();
        plan.pipeline = Some(Pipeline { axis: "pp".into(), stages });
        let at = rng.below(plan.mesh.axes.len() + 1);
        plan.mesh.axes.insert(at, ("pp".into(), 2));
    }
    if rng.once_in(3) {
        let count = rng.choose(&[2, 2, 4, 3]);
        // Now and then a batch that cannot be cut, which must be refused.
        if rng.once_in(20) || has_batch_of(model, count) {
            plan.microbatches = count;
        }
    }
    let axes: Vec<_> = plan.mesh.axes.iter().filter(|(name, _)| name != "pp").cloned().collect();
    // Some plans say something about almost every tensor, some about few.
    let sparse = rng.choose(&[1, 3, 8]);
    let rules = model.values().ids().map(|value| rule(model, value, &axes, sparse, &mut rng));
    plan.rules = rules.filter(|rule| !rule.shard.is_empty() || !rule.store.is_empty()).collect();
    if plan.microbatches > 1 && rng.once_in(2) {
        share_batch(&mut plan, model);
    }
    plan
}

/// Lets the first axis cut the batch of all inputs and store all else, as data parallel plans do.
fn share_batch(plan: &mut Plan, model: &Graph) {
    let is_free = |(name, _): &&(String, usize)| name != "pp";
    let (axis, size) =
        plan.mesh.axes.iter().find(is_free).expect("a mesh has an axis besides stages").clone();
    plan.rules.clear();
    for leaf in model.leaves(|op| matches!(op, Op::Input | Op::Param(_))) {
        let mut rule = PlanRule { pattern: model.values()[leaf].name.clone(), ..PlanRule::default() };
        let is_input = matches!(model.op_of(leaf), Op::Input);
        let batch = model.ty(leaf).shape.dims().first().copied().unwrap_or(1);
        if batch.is_multiple_of(size) {
            let map = if is_input { &mut rule.shard } else { &mut rule.store };
            map.insert(0, vec![axis.clone()]);
            plan.rules.push(rule);
        }
    }
}

/// Whether there are inputs and all of them have a batch that `count` divides.
fn has_batch_of(model: &Graph, count: usize) -> bool {
    let inputs: Vec<_> = model.leaves(|op| matches!(op, Op::Input)).collect();
    let divides = |&input: &ValueId| {
        let batch = model.ty(input).shape.dims().first();
        batch.is_some_and(|batch| batch.is_multiple_of(count))
    };
    !inputs.is_empty() && inputs.iter().all(divides)
}

fn mesh(rng: &mut Rng) -> Mesh {
    let mut axes: Vec<(String, usize)> = Vec::new();
    let mut devices = 1;
    for name in ["a", "b", "c"].into_iter().take(1 + rng.below(3)) {
        let size = rng.choose(&[2, 2, 2, 4, 3]);
        if devices * size <= MOST_DEVICES {
            devices *= size;
            axes.push((name.to_string(), size));
        }
    }
    Mesh { axes }
}

/// A rule for one value: each axis cuts at most one dimension, where it divides.
fn rule(model: &Graph, value: ValueId, axes: &[(String, usize)], sparse: usize, rng: &mut Rng) -> PlanRule {
    let pattern = model.values()[value].name.clone();
    let mut rule = PlanRule { pattern, regather: rng.once_in(2), ..PlanRule::default() };
    let rank = model.ty(value).shape.rank();
    let is_param = matches!(model.op_of(value), Op::Param(_));
    let once_in = if model.op_of(value).is_leaf() { 1 + sparse / 3 } else { 2 * sparse };
    let mut left = model.ty(value).shape.dims().to_vec();
    for (axis, size) in axes {
        if rank == 0 || !rng.once_in(once_in) {
            continue;
        }
        let dim = rng.below(rank);
        // Now and then a cut that does not divide, which must be refused.
        if left[dim].is_multiple_of(*size) || rng.once_in(200) {
            left[dim] /= size;
            // What is stored cut is cut further, so nothing may cut the dimension after it.
            let stored = rule.store.contains_key(&dim) || is_param && rng.once_in(3);
            let map = if stored { &mut rule.store } else { &mut rule.shard };
            map.entry(dim).or_default().push(axis.clone());
        }
    }
    rule
}
