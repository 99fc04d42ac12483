//! Ranges that fed indices must keep: kernels index tables with them.

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{DType, IndexBound, Op};

/// A fed index out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` holds {value} at position {position}; layer `{layer}` takes 0..{below}")]
pub struct BoundsError {
    /// The input.
    pub input: String,
    /// The offending value.
    pub value: i64,
    /// Where it stands.
    pub position: usize,
    /// The layer that indexes with it.
    pub layer: String,
    /// The end of the range.
    pub below: i64,
}

/// The range of one input.
#[derive(Clone, Debug)]
pub struct Bound {
    input: String,
    layer: String,
    below: i64,
    /// A value allowed besides the range.
    ignore: Option<i64>,
}

impl Bound {
    /// The bounds of all inputs and tables of `graph` that tables are indexed with, reached through shape changes only.
    pub fn of(graph: &Graph) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for (id, layer) in graph.layers().iter() {
            let shapes: Vec<_> = layer.operands.iter().map(|&operand| &graph.ty(operand).shape).collect();
            let bound = layer.op.operator().and_then(|operator| operator.index_bound(&shapes));
            let Some(IndexBound { slot, below, ignore }) = bound else { continue };
            for input in sources(graph, layer.operands[slot]) {
                let (layer, below) = (graph.layer_name(id).to_string(), below as i64);
                bounds.push(Bound { input: graph.values()[input].name.clone(), layer, below, ignore });
            }
        }
        bounds
    }

    /// Checks values fed to `input`.
    pub fn check(
        bounds: &[Bound],
        input: &str,
        values: impl Iterator<Item = i64> + Clone,
    ) -> Result<(), BoundsError> {
        for bound in bounds.iter().filter(|bound| bound.input == input) {
            let wrong = |value: i64| !(0..bound.below).contains(&value) && Some(value) != bound.ignore;
            if let Some((position, value)) = values.clone().enumerate().find(|&(_, value)| wrong(value)) {
                let Bound { layer, below, .. } = bound.clone();
                return Err(BoundsError { input: input.to_string(), value, position, layer, below });
            }
        }
        Ok(())
    }
}

/// The inputs and tables whose integers reach `value` unchanged.
fn sources(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let layer = &graph.layers()[graph.values()[value].layer];
    match layer.op {
        Op::Input | Op::Table(_) => vec![value],
        _ => {
            let indices = layer
                .operands
                .iter()
                .filter(|&&operand| matches!(graph.ty(operand).dtype, DType::I64 | DType::I32));
            indices.flat_map(|&operand| sources(graph, operand)).collect()
        }
    }
}
