//! Layer normalization of rows and its gradient.
//!
//! `layer_norm` reads x `[rows, cols]`, gamma and beta `[cols]` and writes y, and per row the mean and the reciprocal
//! standard deviation. `layer_norm_grad` reads x, gamma, mean, rstd and dy and writes dx (accumulates on request),
//! dgamma and dbeta (overwritten: trees over `leaves` blocks of rows). Without `affine` there are no gamma, beta,
//! dgamma and dbeta: the functions here take them empty, the kernels do not take them at all.

use crate::call::no_scratch;
use crate::rows::{sum, tree_reference, tree_rows};
use crate::{Call, Kernel, Team, dispatch, params};

params! {
    /// Settings of `layer_norm`.
    pub struct LayerNorm {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Added to the variance.
        pub eps: f32,
        /// Whether gamma and beta take part.
        pub affine: bool,
    }
}

params! {
    /// Settings of `layer_norm_grad`.
    pub struct LayerNormGrad {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows whose sums are added as a tree.
        pub leaves: usize,
        /// Whether gamma and beta take part.
        pub affine: bool,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

/// Normalizes every row: outputs y, mean, rstd; inputs x, gamma, beta.
pub fn layer_norm_reference(
    [y, mean, rstd]: [&mut [f32]; 3],
    [x, gamma, beta]: [&[f32]; 3],
    params: LayerNorm,
) {
    let n = params.cols;
    for row in 0..params.rows {
        let x = &x[row * n..][..n];
        let mu = x.iter().sum::<f32>() / n as f32;
        let variance = x.iter().map(|x| (x - mu) * (x - mu)).sum::<f32>() / n as f32;
        let r = 1.0 / (variance + params.eps).sqrt();
        (mean[row], rstd[row]) = (mu, r);
        for col in 0..n {
            let normal = (x[col] - mu) * r;
            y[row * n + col] = if params.affine { normal * gamma[col] + beta[col] } else { normal };
        }
    }
}

/// Normalizes every row, fast; arguments as for [`layer_norm_reference`].
pub fn layer_norm(
    [y, mean, rstd]: [&mut [f32]; 3],
    [x, gamma, beta]: [&[f32]; 3],
    params: LayerNorm,
    team: &Team,
) {
    let n = params.cols;
    let outs = [(y, n), (mean, 1), (rstd, 1)];
    team.split_rows(params.rows * n, params.rows, outs, &mut [], |range, outs, _| {
        layer_norm_rows(outs, [&x[range.start * n..range.end * n], gamma, beta], params);
    });
}

dispatch! {
    fn layer_norm_rows(outs: [&mut [f32]; 3], ins: [&[f32]; 3], params: LayerNorm) {
        let ([y, mean, rstd], [x, gamma, beta]) = (outs, ins);
        let n = params.cols;
        for (row, (x, y)) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)).enumerate() {
            let mu = sum([x], |[x]| x) / n as f32;
            let variance = sum([x], |[x]| (x - mu) * (x - mu)) / n as f32;
            let r = 1.0 / (variance + params.eps).sqrt();
            (mean[row], rstd[row]) = (mu, r);
            if params.affine {
                for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                    *y = ((x - mu) * r).mul_add(*gamma, *beta);
                }
            } else {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mu) * r;
                }
            }
        }
    }
}

/// The gradient: outputs dx, dgamma, dbeta; inputs x, gamma, mean, rstd, dy.
pub fn layer_norm_grad_reference(
    [dx, dgamma, dbeta]: [&mut [f32]; 3],
    [x, gamma, mean, rstd, dy]: [&[f32]; 5],
    params: LayerNormGrad,
) {
    let n = params.cols;
    let normal = |row: usize, col: usize| (x[row * n + col] - mean[row]) * rstd[row];
    let g = |row: usize, col: usize| dy[row * n + col] * if params.affine { gamma[col] } else { 1.0 };
    for row in 0..params.rows {
        let c1 = (0..n).map(|col| g(row, col)).sum::<f32>() / n as f32;
        let c2 = (0..n).map(|col| g(row, col) * normal(row, col)).sum::<f32>() / n as f32;
        for col in 0..n {
            let value = rstd[row] * (g(row, col) - c1 - normal(row, col) * c2);
            let dx = &mut dx[row * n + col];
            *dx = if params.accumulate { *dx + value } else { value };
        }
    }
    let per_leaf = params.rows / params.leaves;
    for col in 0..dgamma.len() {
        let rows = |leaf: usize| leaf * per_leaf..(leaf + 1) * per_leaf;
        let gamma_leaf = |leaf| rows(leaf).fold(0.0, |sum, row| sum + dy[row * n + col] * normal(row, col));
        let beta_leaf = |leaf| rows(leaf).fold(0.0, |sum, row| sum + dy[row * n + col]);
        dgamma[col] = tree_reference(params.leaves, &gamma_leaf);
        dbeta[col] = tree_reference(params.leaves, &beta_leaf);
    }
}

/// Elements of scratch that [`layer_norm_grad`] wants: the leaf sums of dgamma and dbeta.
pub fn layer_norm_grad_scratch(params: LayerNormGrad) -> usize {
    if params.affine { 2 * params.leaves * params.cols } else { 0 }
}

/// The gradient in one pass over x and dy; arguments as for [`layer_norm_grad_reference`].
pub fn layer_norm_grad(
    [dx, dgamma, dbeta]: [&mut [f32]; 3],
    [x, gamma, mean, rstd, dy]: [&[f32]; 5],
    params: LayerNormGrad,
    scratch: &mut [f32],
    team: &Team,
) {
    let LayerNormGrad { rows, cols, leaves, .. } = params;
    // Without sums over rows every row is a unit of its own.
    let units = if params.affine { leaves } else { rows };
    let unit_rows = rows / units;
    let width = if params.affine { cols } else { 0 };
    let (gammas, betas) = scratch[..layer_norm_grad_scratch(params)].split_at_mut(leaves * width);
    let outs = [(dx, unit_rows * cols), (&mut *gammas, width), (&mut *betas, width)];
    team.split_rows(rows * cols, units, outs, &mut [], |units, [dx, gammas, betas], _| {
        for (i, unit) in units.enumerate() {
            let (first, end) = (unit * unit_rows, (unit + 1) * unit_rows);
            let elements = first * cols..end * cols;
            let dx = &mut dx[i * unit_rows * cols..][..unit_rows * cols];
            let sums = [&mut gammas[i * width..][..width], &mut betas[i * width..][..width]];
            let rows = [&x[elements.clone()], &dy[elements]];
            layer_norm_grad_rows(dx, sums, rows, gamma, [&mean[first..end], &rstd[first..end]], params);
        }
    });
    if params.affine {
        tree_rows(gammas, leaves, cols);
        tree_rows(betas, leaves, cols);
        dgamma.copy_from_slice(&gammas[..cols]);
        dbeta.copy_from_slice(&betas[..cols]);
    }
}

dispatch! {
    fn layer_norm_grad_rows(
        dx: &mut [f32],
        sums_out: [&mut [f32]; 2],
        rows: [&[f32]; 2],
        gamma: &[f32],
        statistics: [&[f32]; 2],
        params: LayerNormGrad,
    ) {
        let [dgamma, dbeta] = sums_out;
        let [x, dy] = rows;
        let n = params.cols;
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for (row, dx) in dx.chunks_exact_mut(n).enumerate() {
            let (x, dy) = (&x[row * n..][..n], &dy[row * n..][..n]);
            let (mu, r) = (statistics[0][row], statistics[1][row]);
            let normal = |x: f32| (x - mu) * r;
            let totals = if params.affine {
                let second = sum([x, dy, gamma], |[x, dy, gamma]| dy * gamma * normal(x));
                [sum([dy, gamma], |[dy, gamma]| dy * gamma), second]
            } else {
                [sum([dy], |[dy]| dy), sum([x, dy], |[x, dy]| dy * normal(x))]
            };
            let [c1, c2] = totals.map(|total| total / n as f32);
            let value = |g: f32, x: f32| r * (-normal(x)).mul_add(c2, g - c1);
            if params.affine {
                for (((dx, x), dy), gamma) in dx.iter_mut().zip(x).zip(dy).zip(gamma) {
                    let value = value(dy * gamma, *x);
                    *dx = if params.accumulate { *dx + value } else { value };
                }
                for (((dgamma, dbeta), x), dy) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(x).zip(dy) {
                    *dgamma = dy.mul_add(normal(*x), *dgamma);
                    *dbeta += dy;
                }
            } else {
                for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = if params.accumulate { *dx + value(*dy, *x) } else { value(*dy, *x) };
                }
            }
        }
    }
}

fn forward_args<'a>(call: &mut Call<'a>, affine: bool) -> ([&'a mut [f32]; 3], [&'a [f32]; 3]) {
    let parameter = |index| if affine { call.read(index) } else { &[] };
    let ins = [call.read(0), parameter(1), parameter(2)];
    ([0, 1, 2].map(|index| call.write(index)), ins)
}

fn grad_args<'a>(call: &mut Call<'a>, affine: bool) -> ([&'a mut [f32]; 3], [&'a [f32]; 5]) {
    if affine {
        let ins = [0, 1, 2, 3, 4].map(|index| call.read(index));
        return ([0, 1, 2].map(|index| call.write(index)), ins);
    }
    ([call.write(0), &mut [], &mut []], [call.read(0), &[], call.read(1), call.read(2), call.read(3)])
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "layer_norm",
        fast: |call| {
            let params = LayerNorm::from_words(call.params);
            let (outs, ins) = forward_args(call, params.affine);
            layer_norm(outs, ins, params, call.team);
        },
        reference: |call| {
            let params = LayerNorm::from_words(call.params);
            let (outs, ins) = forward_args(call, params.affine);
            layer_norm_reference(outs, ins, params);
        },
        scratch: no_scratch,
    },
    Kernel {
        name: "layer_norm_grad",
        fast: |call| {
            let params = LayerNormGrad::from_words(call.params);
            let (outs, ins) = grad_args(call, params.affine);
            layer_norm_grad(outs, ins, params, call.scratch(), call.team);
        },
        reference: |call| {
            let params = LayerNormGrad::from_words(call.params);
            let (outs, ins) = grad_args(call, params.affine);
            layer_norm_grad_reference(outs, ins, params);
        },
        scratch: |params, _| 4 * layer_norm_grad_scratch(LayerNormGrad::from_words(params)),
    },
];

#[cfg(test)]
mod tests;
