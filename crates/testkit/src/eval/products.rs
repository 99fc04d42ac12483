//! Operators that multiply and sum, or look up.

use phalanx_ir::Shape;

use super::rows::softmax_of;
use crate::Tensor;

/// The integer an element stands for.
pub(super) fn integer(element: f64) -> usize {
    assert!(element >= 0.0 && element.fract() == 0.0, "{element} is an index");
    element as usize
}

pub(super) fn embedding(ids: &Tensor, table: &Tensor, bag: bool, shape: &Shape) -> Tensor {
    Tensor::from_fn(shape, |index| {
        let (&feature, outer) = index.split_last().expect("an embedding has a feature dimension");
        if !bag {
            return table.at(&[integer(ids.at(outer)), feature]);
        }
        let mut sum = 0.0;
        for k in 0..ids.shape.last() {
            sum += table.at(&[integer(ids.at(&[outer, &[k]].concat())), feature]);
        }
        sum
    })
}

/// x · weight + bias, before the activation.
pub(super) fn linear(operands: &[&Tensor], transposed: bool, shape: &Shape) -> Tensor {
    let (x, weight) = (operands[0], operands[1]);
    Tensor::from_fn(shape, |index| {
        let (&feature, outer) = index.split_last().expect("a linear layer has a feature dimension");
        let mut sum = operands.get(2).map_or(0.0, |bias| bias.at(&[feature]));
        for k in 0..x.shape.last() {
            let at = if transposed { [k, feature] } else { [feature, k] };
            sum += x.at(&[outer, &[k]].concat()) * weight.at(&at);
        }
        sum
    })
}

/// Each operand comes with whether it is stored transposed.
pub(super) fn matmul(a: (&Tensor, bool), b: (&Tensor, bool), shape: &Shape) -> Tensor {
    let stored = |batch: &[usize], row: usize, col: usize, transposed: bool| {
        let matrix = if transposed { [col, row] } else { [row, col] };
        [batch, &matrix].concat()
    };
    let dims = a.0.shape.dims();
    let inner = if a.1 { dims[dims.len() - 2] } else { dims[dims.len() - 1] };
    Tensor::from_fn(shape, |index| {
        let (batch, matrix) = index.split_at(index.len() - 2);
        let mut sum = 0.0;
        for k in 0..inner {
            sum += a.0.at(&stored(batch, matrix[0], k, a.1)) * b.0.at(&stored(batch, k, matrix[1], b.1));
        }
        sum
    })
}

/// Attention of query, key and value.
pub(super) fn attention([query, key, value]: [&Tensor; 3], causal: bool, scale: f64) -> Tensor {
    let [batch, time, heads, dim] = *query.shape.dims() else { panic!("a query has four dimensions") };
    let [_, keys, key_heads, _] = *key.shape.dims() else { panic!("a key has four dimensions") };
    let mut data = Vec::new();
    for b in 0..batch {
        for t in 0..time {
            for h in 0..heads {
                let from = h / (heads / key_heads);
                let seen = if causal { keys.min(t + 1) } else { keys };
                let score = |s: usize| scale * dot(query, [b, t, h], key, [b, s, from]);
                let weights = softmax_of(&(0..seen).map(score).collect::<Vec<_>>());
                for d in 0..dim {
                    data.push(weights.iter().enumerate().map(|(s, w)| w * value.at(&[b, s, from, d])).sum());
                }
            }
        }
    }
    Tensor::new(query.shape.clone(), data)
}

/// The sum of products of two innermost rows.
fn dot(a: &Tensor, [i, j, k]: [usize; 3], b: &Tensor, [l, m, n]: [usize; 3]) -> f64 {
    (0..a.shape.last()).map(|d| a.at(&[i, j, k, d]) * b.at(&[l, m, n, d])).sum()
}
