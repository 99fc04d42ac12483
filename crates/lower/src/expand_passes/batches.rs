//! Along which dimension of each value samples lie: from the inputs on, as the operators carry it, or as the layer's label
//! says.

use phalanx_ir::graph::{Layer, ValueId};
use phalanx_ir::parallel::{LayerPlacement, ParallelGraph};
use phalanx_ir::{IdVec, Op, Shape};

/// The dimension of the batch of every value that has one.
pub(super) fn batches(graph: &ParallelGraph) -> IdVec<ValueId, Option<usize>> {
    let mut batches: IdVec<ValueId, Option<usize>> = graph.values().ids().map(|_| None).collect();
    for (_, layer) in graph.layers().iter() {
        for (slot, &result) in layer.results.iter().enumerate() {
            let is_dim = |batch: &usize| *batch < graph.ty(result).dims().len();
            batches[result] = match &layer.op {
                _ if layer.label.batch.is_some() => layer.label.batch.filter(is_dim),
                Op::Input => Some(0).filter(is_dim),
                op if op.is_leaf() => None,
                Op::Apply(_) => carried(graph, layer, slot, &batches),
                _ => batches[layer.operands[0]],
            };
        }
    }
    batches
}

/// Where the batch of the first operand that has one is in result `slot`.
fn carried(
    graph: &ParallelGraph,
    layer: &Layer<LayerPlacement>,
    slot: usize,
    batches: &IdVec<ValueId, Option<usize>>,
) -> Option<usize> {
    let shapes = |values: &[ValueId]| -> Vec<Shape> {
        values.iter().map(|&value| graph.ty(value).global().shape).collect()
    };
    let (operands, results) = (shapes(&layer.operands), shapes(&layer.results));
    let [operands, results]: [Vec<&Shape>; 2] = [operands.iter().collect(), results.iter().collect()];
    let cuts = layer.op.operator()?.cuts(&operands, &results);
    let own: Vec<_> = layer.operands.iter().map(|&operand| batches[operand]).collect();
    cuts.carried(&own, slot)
}
