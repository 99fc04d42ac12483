//! Operators that treat a tensor row by row.

use super::products::integer;
use crate::Tensor;

/// Softmax of one row.
pub(super) fn softmax_of(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|x| x / total).collect()
}

pub(super) fn softmax(x: &Tensor, axis: usize) -> Tensor {
    Tensor::from_fn(&x.shape, |index| {
        let mut other = index.to_vec();
        let row: Vec<f64> = (0..x.shape.dims()[axis])
            .map(|k| {
                other[axis] = k;
                x.at(&other)
            })
            .collect();
        softmax_of(&row)[index[axis]]
    })
}

/// Operands are the input and, if it is scaled and shifted, gamma and beta.
pub(super) fn layer_norm(operands: &[&Tensor], axes: usize, eps: f64) -> Tensor {
    let x = operands[0];
    let n: usize = x.shape.dims()[x.shape.rank() - axes..].iter().product();
    let mut data = Vec::new();
    for row in x.data.chunks(n) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
        for (i, x) in row.iter().enumerate() {
            let gamma = operands.get(1).map_or(1.0, |gamma| gamma.data[i]);
            let beta = operands.get(2).map_or(0.0, |beta| beta.data[i]);
            data.push((x - mean) / (variance + eps).sqrt() * gamma + beta);
        }
    }
    Tensor::new(x.shape.clone(), data)
}

pub(super) fn rms_norm(x: &Tensor, gamma: &Tensor, eps: f64) -> Tensor {
    let n = x.shape.last();
    let mut data = Vec::new();
    for row in x.data.chunks(n) {
        let mean_square = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
        data.extend(row.iter().zip(&gamma.data).map(|(x, gamma)| x / (mean_square + eps).sqrt() * gamma));
    }
    Tensor::new(x.shape.clone(), data)
}

/// Turns elements i and i + dim/2 at time t by the angle t · base^(-2i/dim).
pub(super) fn rotary(x: &Tensor, base: f64) -> Tensor {
    let dim = x.shape.last();
    let half = dim / 2;
    Tensor::from_fn(&x.shape, |index| {
        let (time, i) = (index[1], index[3]);
        let angle = time as f64 * base.powf(-2.0 * (i % half) as f64 / dim as f64);
        let partner = x.at(&[index[0], index[1], index[2], (i + half) % dim]);
        let sign = if i < half { -1.0 } else { 1.0 };
        x.at(index) * angle.cos() + sign * partner * angle.sin()
    })
}

/// The sum over rows of -log softmax(logits)\[label\].
pub(super) fn cross_entropy(logits: &Tensor, labels: &Tensor, ignore: i64) -> f64 {
    let classes = logits.shape.last();
    let mut sum = 0.0;
    for (row, &label) in logits.data.chunks(classes).zip(&labels.data) {
        if label == ignore as f64 {
            continue;
        }
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        assert!(integer(label) < classes, "label {label} is one of {classes} classes");
        sum += log_sum - row[integer(label)];
    }
    sum
}
