//! A naive evaluator of models: every operator by its own definition, plain loops in double precision.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{Op, Shape};

use crate::Tensor;

/// Computes every value of a verified model; `inputs` holds its inputs, parameters and states by name.
///
/// # Panics
/// If an input or parameter is missing or has another shape, or an index is out of range.
pub fn evaluate(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<ValueId, Tensor> {
    let mut values: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    for (_, layer) in graph.layers().iter() {
        let results = match layer.op {
            Op::Input | Op::Param(_) | Op::State(_) => vec![fed(graph, layer.results[0], inputs)],
            _ => {
                let operands: Vec<_> = layer.operands.iter().map(|value| &values[value]).collect();
                let shapes: Vec<_> =
                    layer.results.iter().map(|&value| graph.ty(value).shape.clone()).collect();
                apply(&layer.op, &operands, &shapes)
            }
        };
        values.extend(layer.results.iter().copied().zip(results));
    }
    values
}

fn fed(graph: &Graph, value: ValueId, inputs: &BTreeMap<String, Tensor>) -> Tensor {
    let name = &graph.values()[value].name;
    let Some(tensor) = inputs.get(name) else { panic!("`{name}` is not among the inputs") };
    assert_eq!(tensor.shape, graph.ty(value).shape, "`{name}` has the shape of the model");
    tensor.clone()
}

/// Applies one operator that has operands, or a constant; `results` are the shapes its shape rule gives.
///
/// # Panics
/// If the operands do not fit the operator, or an index is out of range.
pub fn apply(op: &Op, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
    match op {
        Op::Input | Op::Param(_) | Op::State(_) => {
            panic!("inputs, parameters and states are fed, not computed")
        }
        Op::Table(table) => {
            let elements = table.elements().expect("a table that is computed with has its bytes");
            vec![Tensor::new(results[0].clone(), elements)]
        }
        Op::Constant(value) => vec![Tensor::from_fn(&results[0], |_| f64::from(*value))],
        Op::Apply(operator) => operator.evaluate(operands, results),
        _ => vec![operands[0].clone()],
    }
}

#[cfg(test)]
mod tests;
