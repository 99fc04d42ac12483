//! A naive evaluator of models: every operator as plain loops in double precision.
//!
//! Where the operator's own definition leaves room:
//!
//! - dropout is the identity whatever its rate (its expected value);
//! - a cast between floats keeps the value unrounded, to an integer it truncates, to a truth value it tests for
//!   non-zero;
//! - in causal attention the query at time t sees the keys at times 0 to t, also if there are more keys than queries.

mod elementwise;
mod layout;
mod products;
mod rows;

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{DType, Op, Shape};

use crate::Tensor;

/// Computes every value of a verified model; `inputs` holds its inputs and parameters by name.
///
/// # Panics
/// If an input or parameter is missing or has another shape, or an index is out of range.
pub fn evaluate(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<ValueId, Tensor> {
    let mut values: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    for (_, layer) in graph.layers().iter() {
        let results = match layer.op {
            Op::Input | Op::Param(_) => vec![fed(graph, layer.results[0], inputs)],
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
    let shape = &results[0];
    let result = match op {
        Op::Input | Op::Param(_) => panic!("inputs and parameters are fed, not computed"),
        Op::Split { axis, blocks, .. } => return layout::split(operands[0], *axis, *blocks, results),
        Op::Constant(value) => Tensor::from_fn(shape, |_| f64::from(*value)),
        Op::Embedding { bag } => products::embedding(operands[0], operands[1], *bag, shape),
        Op::Linear { transposed, activation } => {
            products::linear(operands, *transposed, shape).map(|x| elementwise::activation(*activation, x))
        }
        Op::Matmul { transpose_a, transpose_b } => {
            products::matmul((operands[0], *transpose_a), (operands[1], *transpose_b), shape)
        }
        Op::Unary(unary) => operands[0].map(|x| elementwise::unary(*unary, x)),
        Op::Binary(binary) => Tensor::from_fn(shape, |index| {
            elementwise::binary(*binary, operands[0].at_stretched(index), operands[1].at_stretched(index))
        }),
        Op::Softmax { axis } => rows::softmax(operands[0], *axis),
        Op::LayerNorm { axes, eps } => rows::layer_norm(operands, *axes, f64::from(*eps)),
        Op::RmsNorm { eps } => rows::rms_norm(operands[0], operands[1], f64::from(*eps)),
        Op::Rotary { base } => rows::rotary(operands[0], f64::from(*base)),
        Op::Attention { causal, scale } => {
            products::attention([operands[0], operands[1], operands[2]], *causal, f64::from(*scale))
        }
        Op::Reshape(_) => Tensor::new(shape.clone(), operands[0].data.clone()),
        Op::Broadcast(_) => Tensor::from_fn(shape, |index| operands[0].at_stretched(index)),
        Op::Transpose(perm) => layout::transpose(operands[0], perm, shape),
        Op::Concat { axis, blocks } => layout::concat(operands, *axis, *blocks, shape),
        Op::Reduce { kind, axes, .. } => layout::reduce(operands[0], *kind, axes, shape),
        Op::Dropout { .. } => operands[0].clone(),
        Op::Cast(dtype) => operands[0].map(|x| cast(*dtype, x)),
        Op::CrossEntropy { ignore } => Tensor::scalar(rows::cross_entropy(operands[0], operands[1], *ignore)),
        Op::CountLabels { ignore } => {
            Tensor::scalar(operands[0].data.iter().filter(|&&label| label != *ignore as f64).count() as f64)
        }
        Op::Repartition { .. } | Op::Combine { .. } | Op::Replicate { .. } | Op::Reduction { .. } => {
            operands[0].clone()
        }
    };
    vec![result]
}

fn cast(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 | DType::Bf16 => x,
        DType::I32 | DType::I64 => x.trunc(),
        DType::Bool => f64::from(u8::from(x != 0.0)),
    }
}

#[cfg(test)]
mod tests;
