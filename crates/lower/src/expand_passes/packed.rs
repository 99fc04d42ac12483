//! Finds attention whose query, key and value are the three column blocks of one tensor.
//!
//! Such an attention reads the tensor itself; the split and reshapes between them need no tasks, nor do their
//! gradients.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::Op;
use phalanx_ir::graph::{LayerId, ValueId};
use phalanx_ir::parallel::ParallelGraph;

/// Attention layers with the tensor they read, and the layers that need no tasks.
#[derive(Default)]
pub struct Packed {
    /// Attention layer to the tensor of its query, key and value columns.
    pub source: BTreeMap<LayerId, ValueId>,
    /// Splits and reshapes in between.
    pub skipped: BTreeSet<LayerId>,
}

impl Packed {
    /// Finds all of them.
    pub fn find(graph: &ParallelGraph) -> Packed {
        let mut uses = vec![0; graph.values().len()];
        let operands = graph.layers().iter().flat_map(|(_, layer)| &layer.operands);
        for &value in operands.chain(graph.outputs()) {
            uses[phalanx_ir::Id::index(value)] += 1;
        }
        let mut packed = Packed::default();
        for (id, layer) in graph.layers().iter() {
            if let (Op::Attention { .. }, Some((source, between))) = (&layer.op, trace(graph, &uses, id)) {
                packed.source.insert(id, source);
                packed.skipped.extend(between);
            }
        }
        packed
    }
}

/// The tensor that an attention's operands are columns of, and the layers between.
fn trace(graph: &ParallelGraph, uses: &[usize], attention: LayerId) -> Option<(ValueId, Vec<LayerId>)> {
    let mut between = Vec::new();
    let mut origin = None;
    for (position, &operand) in graph.layers()[attention].operands.iter().enumerate() {
        let reshape = graph.values()[operand].layer;
        let part = match graph.layers()[reshape].op {
            Op::Reshape(_) => graph.layers()[reshape].operands[0],
            _ => return None,
        };
        let split = graph.values()[part].layer;
        let Op::Split { axis, .. } = graph.layers()[split].op else { return None };
        let source = graph.layers()[split].operands[0];
        let shape = graph.ty(source).tile().shape;
        let query = graph.ty(operand).tile().shape;
        let fits = graph.layers()[split].results.len() == 3
            && graph.layers()[split].results[position] == part
            && axis + 1 == shape.rank()
            && shape.rank() == 3
            && shape.dims()[..2] == query.dims()[..2]
            && [operand, part].iter().all(|&value| uses[phalanx_ir::Id::index(value)] == 1)
            && origin.is_none_or(|known| known == source);
        if !fits {
            return None;
        }
        origin = Some(source);
        between.extend([reshape, split]);
    }
    Some((origin?, between))
}
