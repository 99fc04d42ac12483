//! Whether a model can be differentiated numerically at a point.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, Layer, ValueId};
use phalanx_ir::{Activation, Binary, Op, Reduce, Unary};
use phalanx_ops::{BinaryOp, LayerNorm, Linear, ReduceOp, RmsNorm, UnaryOp};

use crate::{Tensor, eval::evaluate};

/// How far from a kink or a tie every operand stays.
const MARGIN: f64 = 1e-3;
/// How large values may grow.
const LARGEST: f64 = 100.0;

/// Whether a model is well-behaved on these inputs: all values are finite and at most 100, and no operator is near a
/// point where its derivative jumps or is very large (the kink of relu, a tie of a maximum, a division by almost
/// zero).
pub fn is_smooth(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> bool {
    let values = evaluate(graph, inputs);
    let tame = |x: &f64| x.is_finite() && x.abs() <= LARGEST;
    values.values().all(|tensor| tensor.data.iter().all(tame))
        && graph.layers().iter().all(|(_, layer)| is_layer_smooth(layer, &values))
}

fn is_layer_smooth(layer: &Layer<()>, values: &BTreeMap<ValueId, Tensor>) -> bool {
    let operand = |slot: usize| &values[&layer.operands[slot]];
    let result = || &values[&layer.results[0]];
    let apart = |x: &f64| x.abs() > MARGIN;
    let op = &layer.op;
    if let Some(UnaryOp(unary)) = op.get() {
        return match unary {
            Unary::Act(Activation::Relu) | Unary::Abs => operand(0).data.iter().all(apart),
            Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::PowScalar(_) => {
                operand(0).data.iter().all(|&x| x > 0.05)
            }
            Unary::DivScalar(by) => by.abs() > 0.1,
            _ => true,
        };
    }
    match op.get() {
        Some(BinaryOp(Binary::Div)) => return operand(1).data.iter().all(|x| x.abs() > 0.1),
        Some(BinaryOp(Binary::Max | Binary::Min)) => {
            let difference =
                |index: &[usize]| operand(0).at_stretched(index) - operand(1).at_stretched(index);
            return Tensor::from_fn(&result().shape, difference).data.iter().all(apart);
        }
        _ => {}
    }
    if let Some(ReduceOp { kind: Reduce::Max, axes, .. }) = op.get() {
        return has_no_ties(operand(0), axes, result());
    }
    if let Some(LayerNorm { axes, .. }) = op.get() {
        return has_spread(operand(0), *axes);
    }
    let is_rms_norm = op.get::<RmsNorm>().is_some();
    is_relu_smooth(layer, values)
        && (!is_rms_norm || rows(operand(0), 1).all(|row| row.iter().any(|x| x.abs() > 0.1)))
}

/// Whether no output of a linear layer is near zero before its relu.
fn is_relu_smooth(layer: &Layer<()>, values: &BTreeMap<ValueId, Tensor>) -> bool {
    let Some(&Linear { transposed, activation: Activation::Relu }) = layer.op.get() else { return true };
    let operands: Vec<_> = layer.operands.iter().map(|value| &values[value]).collect();
    let plain = Op::from(Linear { transposed, activation: Activation::None });
    let shape = values[&layer.results[0]].shape.clone();
    crate::eval::apply(&plain, &operands, &[shape])[0].data.iter().all(|x| x.abs() > MARGIN)
}

/// Whether only one element of each reduced group comes near its maximum.
fn has_no_ties(x: &Tensor, axes: &[usize], largest: &Tensor) -> bool {
    let dims: Vec<_> = x.shape.dims().to_vec();
    let mut near = vec![0; largest.data.len()];
    Tensor::from_fn(&x.shape, |index| {
        let kept = (0..dims.len()).filter(|axis| !axes.contains(axis));
        let group = kept.fold(0, |position, axis| position * dims[axis] + index[axis]);
        near[group] += usize::from(x.at(index) > largest.data[group] - MARGIN);
        0.0
    });
    near.iter().all(|&count| count == 1)
}

/// Whether the elements of each normalized group differ, or are a single one, whose derivative is zero.
fn has_spread(x: &Tensor, axes: usize) -> bool {
    rows(x, axes).all(|row| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        row.len() == 1 || row.iter().any(|x| (x - mean).abs() > 0.1)
    })
}

/// Rows of the innermost `axes` dimensions.
fn rows(x: &Tensor, axes: usize) -> impl Iterator<Item = &[f64]> {
    x.data.chunks(x.shape.dims()[x.shape.rank() - axes..].iter().product())
}
