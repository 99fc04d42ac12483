//! Random plans for a model: everything a plan file can say, where extents allow it.

use phalanx::Plan;
use phalanx::ir::Op;
use phalanx::ir::graph::{Graph, ValueId};
use phalanx::plan::{Mesh, Pipeline, Rule};
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
        plan.microbatches = rng.choose(&[2, 2, 4, 3]);
    }
    let axes: Vec<_> = plan.mesh.axes.iter().filter(|(name, _)| name != "pp").cloned().collect();
    // Some plans say something about almost every tensor, some about few.
    let sparse = rng.choose(&[1, 3, 8]);
    let rules = model.values().ids().map(|value| rule(model, value, &axes, sparse, &mut rng));
    plan.rules = rules.filter(|rule| !rule.shard.is_empty() || !rule.store.is_empty()).collect();
    plan
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
fn rule(model: &Graph, value: ValueId, axes: &[(String, usize)], sparse: usize, rng: &mut Rng) -> Rule {
    let pattern = model.values()[value].name.clone();
    let mut rule = Rule { pattern, again: rng.once_in(2), ..Rule::default() };
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
