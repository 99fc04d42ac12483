//! Gradients by central finite differences of the naive evaluator: slow, and independent of any derivative formula.

use std::collections::BTreeMap;

use phalanx_ir::Op;
use phalanx_ir::graph::{Graph, ValueId};

use crate::{Tensor, eval::evaluate};

/// The gradient of the model's first output, a scalar, with respect to one input or parameter.
///
/// The error is about `eps²` of the third derivative plus 1e-16 of the loss over `eps`; 1e-5 suits most models.
///
/// # Panics
/// If the first output is no scalar, or as [`evaluate`] does.
pub fn gradient(graph: &Graph, inputs: &BTreeMap<String, Tensor>, param: ValueId, eps: f64) -> Tensor {
    let name = &graph.values()[param].name;
    let mut inputs = inputs.clone();
    let Some(point) = inputs.get(name).cloned() else { panic!("`{name}` is not among the inputs") };
    let mut loss_at = |element: usize, x: f64| {
        let mut moved = point.clone();
        moved.data[element] = x;
        inputs.insert(name.clone(), moved);
        loss(graph, &inputs)
    };
    let slope =
        |(element, &x): (usize, &f64)| (loss_at(element, x + eps) - loss_at(element, x - eps)) / (2.0 * eps);
    Tensor::new(point.shape.clone(), point.data.iter().enumerate().map(slope).collect::<Vec<_>>())
}

/// The gradients with respect to every parameter, by name.
///
/// # Panics
/// As [`gradient`] does.
pub fn gradients(graph: &Graph, inputs: &BTreeMap<String, Tensor>, eps: f64) -> BTreeMap<String, Tensor> {
    let params = graph.leaves(|op| matches!(op, Op::Param(_)));
    params.map(|id| (graph.values()[id].name.clone(), gradient(graph, inputs, id, eps))).collect()
}

/// The model's first output, which is a scalar.
///
/// # Panics
/// If it is no scalar, or as [`evaluate`] does.
pub fn loss(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> f64 {
    let output = graph.outputs()[0];
    assert_eq!(graph.ty(output).shape.rank(), 0, "the first output is a scalar loss");
    evaluate(graph, inputs)[&output].data[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quadratic_has_a_linear_gradient() {
        let text = "graph @square {
            %w = param init=zeros f32[3]
            %s = square %w : f32[3]
            %y = reduce kind=sum axes=[0] %s : f32[]
            return %y
        }";
        let graph = Graph::parse(text, phalanx_ops::operators()).expect("the text is a graph");
        let inputs = BTreeMap::from([("w".to_string(), Tensor::new([3], [1.0, -2.0, 0.5]))]);
        let found = &gradients(&graph, &inputs, 1e-3)["w"];
        for (found, expected) in found.data.iter().zip([2.0, -4.0, 1.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} is {expected}");
        }
    }
}
