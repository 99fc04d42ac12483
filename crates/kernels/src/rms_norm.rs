//! Root-mean-square normalization of rows and its gradient.
//!
//! `rms_norm` reads x `[rows, cols]` and gamma `[cols]` and writes y, and per row the reciprocal root of the mean
//! square. `rms_norm_grad` reads x, gamma, rstd and dy and writes dx (accumulates on request) and dgamma (overwritten:
//! a tree over `leaves` blocks of rows).

use crate::call::no_scratch;
use crate::rows::{sum, tree_reference, tree_rows};
use crate::{Kernel, Team, dispatch, params};

params! {
    /// Settings of `rms_norm`.
    pub struct RmsNorm {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Added to the mean square.
        pub eps: f32,
    }
}

params! {
    /// Settings of `rms_norm_grad`.
    pub struct RmsNormGrad {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows whose sums are added as a tree.
        pub leaves: usize,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

/// Normalizes every row: outputs y, rstd.
pub fn rms_norm_reference([y, rstd]: [&mut [f32]; 2], [x, gamma]: [&[f32]; 2], params: RmsNorm) {
    let n = params.cols;
    for (row, x) in x.chunks_exact(n).take(params.rows).enumerate() {
        let mean_square = x.iter().map(|x| x * x).sum::<f32>() / n as f32;
        rstd[row] = 1.0 / (mean_square + params.eps).sqrt();
        for col in 0..n {
            y[row * n + col] = x[col] * rstd[row] * gamma[col];
        }
    }
}

/// Normalizes every row, fast; arguments as for [`rms_norm_reference`].
pub fn rms_norm([y, rstd]: [&mut [f32]; 2], [x, gamma]: [&[f32]; 2], params: RmsNorm, team: &Team) {
    let n = params.cols;
    let outs = [(y, n), (rstd, 1)];
    team.split_rows(params.rows * n, params.rows, outs, &mut [], |range, outs, _| {
        rms_norm_rows(outs, [&x[range.start * n..range.end * n], gamma], params);
    });
}

dispatch! {
    fn rms_norm_rows(outs: [&mut [f32]; 2], ins: [&[f32]; 2], params: RmsNorm) {
        let ([y, rstd], [x, gamma]) = (outs, ins);
        let n = params.cols;
        for ((x, y), rstd) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)).zip(rstd) {
            let mean_square = sum([x], |[x]| x * x) / n as f32;
            let r = 1.0 / (mean_square + params.eps).sqrt();
            *rstd = r;
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * r * gamma;
            }
        }
    }
}

/// The gradient: outputs dx, dgamma; inputs x, gamma, rstd, dy.
pub fn rms_norm_grad_reference(
    [dx, dgamma]: [&mut [f32]; 2],
    [x, gamma, rstd, dy]: [&[f32]; 4],
    params: RmsNormGrad,
) {
    let n = params.cols;
    let normal = |row: usize, col: usize| x[row * n + col] * rstd[row];
    for row in 0..params.rows {
        let g = |col: usize| dy[row * n + col] * gamma[col];
        let c = (0..n).map(|col| g(col) * normal(row, col)).sum::<f32>() / n as f32;
        for col in 0..n {
            let value = rstd[row] * (g(col) - normal(row, col) * c);
            let dx = &mut dx[row * n + col];
            *dx = if params.accumulate { *dx + value } else { value };
        }
    }
    let per_leaf = params.rows / params.leaves;
    for col in 0..n {
        let chain = |leaf: usize| {
            let rows = leaf * per_leaf..(leaf + 1) * per_leaf;
            rows.fold(0.0, |sum, row| sum + dy[row * n + col] * normal(row, col))
        };
        dgamma[col] = tree_reference(params.leaves, &chain);
    }
}

/// The gradient in one pass over x and dy; arguments as for [`rms_norm_grad_reference`], `scratch` holds the leaf
/// sums of dgamma.
pub fn rms_norm_grad(
    [dx, dgamma]: [&mut [f32]; 2],
    [x, gamma, rstd, dy]: [&[f32]; 4],
    params: RmsNormGrad,
    scratch: &mut [f32],
    team: &Team,
) {
    let RmsNormGrad { rows, cols, leaves, .. } = params;
    let leaf_rows = rows / leaves;
    let size = leaf_rows * cols;
    let gammas = &mut scratch[..leaves * cols];
    let outs = [(dx, size), (&mut *gammas, cols)];
    team.split_rows(rows * cols, leaves, outs, &mut [], |range, [dx, gammas], _| {
        for (i, leaf) in range.enumerate() {
            let outs = [&mut dx[i * size..][..size], &mut gammas[i * cols..][..cols]];
            let ins =
                [&x[leaf * size..][..size], gamma, &rstd[leaf * leaf_rows..], &dy[leaf * size..][..size]];
            rms_norm_grad_rows(outs, ins, params);
        }
    });
    tree_rows(gammas, leaves, cols);
    dgamma.copy_from_slice(&gammas[..cols]);
}

dispatch! {
    fn rms_norm_grad_rows(outs: [&mut [f32]; 2], ins: [&[f32]; 4], params: RmsNormGrad) {
        let ([dx, dgamma], [x, gamma, rstd, dy]) = (outs, ins);
        let n = params.cols;
        dgamma.fill(0.0);
        for (row, dx) in dx.chunks_exact_mut(n).enumerate() {
            let (x, dy, r) = (&x[row * n..][..n], &dy[row * n..][..n], rstd[row]);
            let total = sum([x, dy, gamma], |[x, dy, gamma]| dy * gamma * (x * r));
            let c = total / n as f32;
            for ((((dx, dgamma), x), dy), gamma) in
                dx.iter_mut().zip(dgamma.iter_mut()).zip(x).zip(dy).zip(gamma)
            {
                let normal = x * r;
                let value = r * (-normal).mul_add(c, dy * gamma);
                *dx = if params.accumulate { *dx + value } else { value };
                *dgamma = dy.mul_add(normal, *dgamma);
            }
        }
    }
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "rms_norm",
        fast: |call| {
            let outs = [call.write(0), call.write(1)];
            rms_norm(outs, [call.read(0), call.read(1)], RmsNorm::from_words(call.params), call.team);
        },
        reference: |call| {
            let outs = [call.write(0), call.write(1)];
            rms_norm_reference(outs, [call.read(0), call.read(1)], RmsNorm::from_words(call.params));
        },
        scratch: no_scratch,
    },
    Kernel {
        name: "rms_norm_grad",
        fast: |call| {
            let outs = [call.write(0), call.write(1)];
            let ins = [0, 1, 2, 3].map(|index| call.read(index));
            rms_norm_grad(outs, ins, RmsNormGrad::from_words(call.params), call.scratch(), call.team);
        },
        reference: |call| {
            let outs = [call.write(0), call.write(1)];
            let ins = [0, 1, 2, 3].map(|index| call.read(index));
            rms_norm_grad_reference(outs, ins, RmsNormGrad::from_words(call.params));
        },
        scratch: |params, _| {
            let RmsNormGrad { cols, leaves, .. } = RmsNormGrad::from_words(params);
            4 * leaves * cols
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, assert_gradient, values, weighted};

    /// A few hundred additions of values near one, each rounded to 2^-24.
    const TOLERANCE: f32 = 2e-5;
    const EPS: f32 = 1e-5;

    fn forward(rows: usize, cols: usize) -> Case {
        Case::new(KERNELS, "rms_norm", RmsNorm { rows, cols, eps: EPS }.to_words())
            .read(values(rows * cols, 1))
            .read(values(cols, 2))
            .write(vec![0.0; rows * cols])
            .write(vec![0.0; rows])
    }

    fn backward(params: RmsNormGrad) -> Case {
        let RmsNormGrad { rows, cols, .. } = params;
        Case::new(KERNELS, "rms_norm_grad", params.to_words())
            .read(values(rows * cols, 1))
            .read(values(cols, 2))
            .read(forward(rows, cols).reference()[1].clone())
            .read(values(rows * cols, 4))
            .write(values(rows * cols, 5))
            .write(vec![0.0; cols])
    }

    #[test]
    fn fast_equals_reference() {
        for cols in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 384] {
            for (rows, leaves) in [(1, 1), (2, 2), (7, 1), (100, 4)] {
                forward(rows, cols).check(TOLERANCE);
                for accumulate in [false, true] {
                    backward(RmsNormGrad { rows, cols, leaves, accumulate }).check(TOLERANCE);
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        forward(130, 133).check_bits();
        backward(RmsNormGrad { rows: 136, cols: 133, leaves: 8, accumulate: true }).check_bits();
    }

    #[test]
    fn gradients_equal_finite_differences() {
        let (rows, cols) = (4, 5);
        let case = backward(RmsNormGrad { rows, cols, leaves: 2, accumulate: false });
        let grads = case.fast(&Team::new(2));
        let [x, gamma, dy] = [values(rows * cols, 1), values(cols, 2), values(rows * cols, 4)];
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let y = |x: &[f64], gamma: &[f64]| -> Vec<f64> {
            let row = |x: &[f64]| {
                let mean_square = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
                let r = 1.0 / (mean_square + f64::from(EPS)).sqrt();
                (0..cols).map(|i| x[i] * r * gamma[i]).collect::<Vec<_>>()
            };
            x.chunks(cols).flat_map(row).collect()
        };
        let tolerance = f64::from(TOLERANCE);
        assert_gradient(&grads[0], &x, tolerance, |x| weighted(&y(x, &wide(&gamma)), &dy));
        assert_gradient(&grads[1], &gamma, tolerance, |gamma| weighted(&y(&wide(&x), gamma), &dy));
    }
}
