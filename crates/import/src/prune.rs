//! Leaves layers out that nothing needs.

use std::collections::HashMap;

use phalanx_ir::graph::{Builder, Graph, ValueId};
use phalanx_ir::{Id, Op};

/// The graph without layers from which no way leads to an output or an update. Inputs stay.
pub(crate) fn pruned(graph: Graph) -> Graph {
    let mut needed = vec![false; graph.values().len()];
    let ends = graph.outputs().iter().copied();
    let updates = graph.updates().iter().flat_map(|update| [update.state, update.new]);
    ends.chain(updates).for_each(|value| needed[value.index()] = true);
    let layers: Vec<_> = graph.layers().iter().collect();
    for (_, layer) in layers.iter().rev() {
        if layer.results.iter().any(|value| needed[value.index()]) {
            layer.operands.iter().for_each(|value| needed[value.index()] = true);
        }
    }
    let mut builder = Builder::new(graph.name());
    let mut moved: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, layer) in layers {
        let is_kept =
            layer.results.iter().any(|value| needed[value.index()]) || matches!(layer.op, Op::Input);
        if !is_kept {
            continue;
        }
        let name = graph.layer_name(id);
        let made = match layer.op.is_leaf() {
            true => {
                builder.leaf(name, layer.op.clone(), graph.ty(layer.results[0]).clone()).map(|id| vec![id])
            }
            false => {
                let operands: Vec<ValueId> = layer.operands.iter().map(|operand| moved[operand]).collect();
                builder.add(name, layer.op.clone(), &operands)
            }
        };
        let made = made.expect("it was built before");
        for (old, new) in layer.results.iter().zip(made) {
            builder.rename(new, &graph.values()[*old].name);
            moved.insert(*old, new);
        }
    }
    for update in graph.updates() {
        builder.update(moved[&update.state], moved[&update.new]).expect("it was built before");
    }
    let outputs: Vec<ValueId> = graph.outputs().iter().map(|output| moved[output]).collect();
    builder.finish(outputs)
}
