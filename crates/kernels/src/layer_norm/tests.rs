use super::*;
use crate::samples::{Case, assert_gradient, values, weighted};

/// A few hundred additions of values near one, each rounded to 2^-24.
const TOLERANCE: f32 = 2e-5;
/// As `TOLERANCE`, for gradients that a small variance magnifies.
const GRADIENT: f64 = 2e-4;
const EPS: f32 = 1e-5;

fn forward(rows: usize, cols: usize, affine: bool) -> Case {
    let params = LayerNorm { rows, cols, eps: EPS, affine };
    let mut case = Case::new(KERNELS, "layer_norm", params.to_words()).read(values(rows * cols, 1));
    if affine {
        case = case.read(values(cols, 2)).read(values(cols, 3));
    }
    case.write(vec![0.0; rows * cols]).write(vec![0.0; rows]).write(vec![0.0; rows])
}

fn backward(params: LayerNormGrad) -> Case {
    let LayerNormGrad { rows, cols, affine, .. } = params;
    let statistics = forward(rows, cols, affine).reference();
    let mut case = Case::new(KERNELS, "layer_norm_grad", params.to_words()).read(values(rows * cols, 1));
    if affine {
        case = case.read(values(cols, 2));
    }
    case = case.read(statistics[1].clone()).read(statistics[2].clone()).read(values(rows * cols, 4));
    case = case.write(values(rows * cols, 5));
    if affine {
        case = case.write(vec![0.0; cols]).write(vec![0.0; cols]);
    }
    case
}

#[test]
fn fast_equals_reference() {
    for affine in [false, true] {
        for cols in [2, 3, 5, 7, 15, 16, 17, 33, 100, 384] {
            for (rows, leaves) in [(1, 1), (2, 2), (7, 1), (100, 4)] {
                forward(rows, cols, affine).check(TOLERANCE);
                for accumulate in [false, true] {
                    backward(LayerNormGrad { rows, cols, leaves, affine, accumulate }).check(GRADIENT as f32);
                }
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for affine in [false, true] {
        forward(130, 133, affine).check_bits();
        backward(LayerNormGrad { rows: 136, cols: 133, leaves: 8, affine, accumulate: true }).check_bits();
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let (rows, cols) = (4, 5);
    let params = LayerNormGrad { rows, cols, leaves: 2, affine: true, accumulate: false };
    let case = backward(params);
    let grads = case.fast(&Team::new(2));
    let dy = values(rows * cols, 4);
    let [x, gamma, beta] = [values(rows * cols, 1), values(cols, 2), values(cols, 3)];
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let y = |x: &[f64], gamma: &[f64], beta: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| {
            let mu = x.iter().sum::<f64>() / cols as f64;
            let variance = x.iter().map(|x| (x - mu).powi(2)).sum::<f64>() / cols as f64;
            let r = 1.0 / (variance + f64::from(EPS)).sqrt();
            (0..cols).map(|i| (x[i] - mu) * r * gamma[i] + beta[i]).collect::<Vec<_>>()
        };
        x.chunks(cols).flat_map(row).collect()
    };
    assert_gradient(&grads[0], &x, GRADIENT, |x| weighted(&y(x, &wide(&gamma), &wide(&beta)), &dy));
    assert_gradient(&grads[1], &gamma, GRADIENT, |gamma| weighted(&y(&wide(&x), gamma, &wide(&beta)), &dy));
    assert_gradient(&grads[2], &beta, GRADIENT, |beta| weighted(&y(&wide(&x), &wide(&gamma), beta), &dy));
}
