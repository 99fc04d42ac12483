//! Root-mean-square normalization of rows and its gradient.
//!
//! `rms_norm` reads x `[rows, cols]` and gamma `[cols]` and writes y, and per row the reciprocal root of the mean
//! square. `rms_norm_grad` reads x `[outer, time, heads, cols]`, gamma, rstd and dy and writes dx (accumulates on request)
//! and dgamma (overwritten: with `keep` the sums of each leaf `[leaves, heads, cols]`, else of all outer places and times
//! `[heads, cols]`, in the order of [`Blocks`]).

use std::ops::Range;

use phalanx_ir::tasks::TaskView;

use crate::rows::{Blocks, Rule, outer_and_time, sum, times, tree_rows};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

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
        /// Extent of the outermost dimension.
        pub outer: usize,
        /// Groups of rows for each of its places.
        pub time: usize,
        /// Rows of a group; the sums of each are kept apart, side by side.
        pub heads: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows along `outer` whose sums are added as a tree.
        pub leaves: usize,
        /// Blocks of each of those along `time`, also added as a tree.
        pub inner: usize,
        /// Whether the sums of the leaves are kept apart.
        pub keep: bool,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

impl RmsNormGrad {
    fn rows(self) -> usize {
        self.outer * self.time * self.heads
    }

    /// Elements of a group of rows.
    fn width(self) -> usize {
        self.heads * self.cols
    }

    fn row_blocks(self) -> Blocks {
        Blocks::new(self.outer, self.time, self.leaves, self.inner)
    }

    fn rule(self) -> Rule {
        Rule { keep: self.keep, accumulate: false }
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
pub fn rms_norm(
    [y, rstd]: [&mut [f32]; 2],
    [x, gamma]: [&[f32]; 2],
    params: RmsNorm,
    launch: &mut Launch<'_>,
) {
    let n = params.cols;
    let outs = [(y, n), (rstd, 1)];
    launch.split_rows(params.rows, outs, |range, outs, _| {
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
    for row in 0..params.rows() {
        let g = |col: usize| dy[row * n + col] * gamma[col];
        let c = (0..n).map(|col| g(col) * normal(row, col)).sum::<f32>() / n as f32;
        for col in 0..n {
            let value = rstd[row] * (g(col) - normal(row, col) * c);
            let dx = &mut dx[row * n + col];
            *dx = if params.accumulate { *dx + value } else { value };
        }
    }
    let width = params.width();
    for at in 0..width {
        let value = |group: usize| {
            let (row, col) = (group * params.heads + at / n, at % n);
            dy[row * n + col] * normal(row, col)
        };
        params.row_blocks().sum_reference(&mut dgamma[at..], width, params.rule(), &value);
    }
}

/// What [`rms_norm_grad`] works in: the sums of dgamma of every leaf, and of every inner block of the leaf at hand.
fn grad_workspace(params: RmsNormGrad) -> Workspace {
    let (RmsNormGrad { leaves, inner, .. }, width) = (params, params.width());
    Workspace::of::<f32>(leaves * width, if inner > 1 { inner * width } else { 0 })
}

/// The gradient in one pass over x and dy; arguments as for [`rms_norm_grad_reference`].
pub fn rms_norm_grad(
    [dx, dgamma]: [&mut [f32]; 2],
    [x, gamma, rstd, dy]: [&[f32]; 4],
    params: RmsNormGrad,
    launch: &mut Launch<'_>,
) {
    let (blocks, width) = (params.row_blocks(), params.width());
    let size = blocks.leaf(0).len() * width;
    let gammas: &mut [f32] = launch.common();
    let outs = [(dx, size), (&mut *gammas, width)];
    launch.split_rows(params.leaves, outs, |range, [dx, gammas], own| {
        for (i, leaf) in range.enumerate() {
            let outs = [&mut dx[i * size..][..size], &mut gammas[i * width..][..width]];
            let rstd = &rstd[times(blocks.leaf(leaf), params.heads)];
            let ins = [&x[leaf * size..][..size], gamma, rstd, &dy[leaf * size..][..size]];
            rms_norm_grad_leaf(outs, ins, own, params, &blocks);
        }
    });
    blocks.join([dgamma], gammas, [width, width], params.rule());
}

/// The gradient of one leaf: its rows of dx, and its sums of dgamma.
fn rms_norm_grad_leaf(
    [dx, dgamma]: [&mut [f32]; 2],
    ins: [&[f32]; 4],
    own: &mut [f32],
    params: RmsNormGrad,
    blocks: &Blocks,
) {
    if blocks.inner == 1 {
        return rms_norm_grad_block([dx, dgamma], ins, params, blocks.runs(0));
    }
    let width = params.width();
    let own = &mut own[..blocks.inner * width];
    for (block, sums) in own.chunks_exact_mut(width).enumerate() {
        rms_norm_grad_block([dx, sums], ins, params, blocks.runs(block));
    }
    tree_rows(own, blocks.inner, width);
    dgamma.copy_from_slice(&own[..width]);
}

/// The gradient of one inner block of a leaf, given as runs of its groups of rows.
fn rms_norm_grad_block(
    [dx, dgamma]: [&mut [f32]; 2],
    [x, gamma, rstd, dy]: [&[f32]; 4],
    params: RmsNormGrad,
    runs: impl Iterator<Item = Range<usize>>,
) {
    dgamma.fill(0.0);
    for groups in runs {
        let (rows, elements) = (times(groups.clone(), params.heads), times(groups, params.width()));
        let ins = [&x[elements.clone()], gamma, &rstd[rows], &dy[elements.clone()]];
        rms_norm_grad_rows([&mut dx[elements], dgamma], ins, params);
    }
}

dispatch! {
    /// The gradient of consecutive groups of rows; adds to dgamma.
    fn rms_norm_grad_rows(outs: [&mut [f32]; 2], ins: [&[f32]; 4], params: RmsNormGrad) {
        let ([dx, dgamma], [x, gamma, rstd, dy]) = (outs, ins);
        let n = params.cols;
        for (row, dx) in dx.chunks_exact_mut(n).enumerate() {
            let (x, dy, r) = (&x[row * n..][..n], &dy[row * n..][..n], rstd[row]);
            let total = sum([x, dy, gamma], |[x, dy, gamma]| dy * gamma * (x * r));
            let c = total / n as f32;
            let dgamma = &mut dgamma[row % params.heads * n..][..n];
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

impl Kernel for RmsNorm {
    signature!("rms_norm": x, gamma => y, rstd);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, cols) = task.rows_of(task.write(1)?)?;
        Ok(RmsNorm { rows, cols, eps: task.attr("eps")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        rms_norm_reference([0, 1].map(|i| call.write(i)), [0, 1].map(|i| call.read(i)), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        rms_norm([0, 1].map(|i| call.write(i)), [0, 1].map(|i| call.read(i)), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(4.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.cols, cores)
    }
}

impl Kernel for RmsNormGrad {
    signature!("rms_norm_grad": x, gamma, rstd, dy => dx, dgamma);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let statistics = task.read(2)?;
        let (rows, cols) = task.rows_of(statistics)?;
        let heads = task.attr_or("heads", 1)?;
        let (outer, time) = outer_and_time(statistics, rows / heads);
        let (leaves, inner) = (task.attr("leaves")?, task.attr("inner")?);
        let (keep, accumulate) = (task.is("keep"), task.is("accumulate"));
        Ok(RmsNormGrad { outer, time, heads, cols, leaves, inner, keep, accumulate })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ins = [0, 1, 2, 3].map(|i| call.read(i));
        rms_norm_grad_reference([0, 1].map(|i| call.write(i)), ins, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ins = [0, 1, 2, 3].map(|i| call.read(i));
        rms_norm_grad([0, 1].map(|i| call.write(i)), ins, *self, &mut call.launch);
    }

    /// Times gamma, a sum (2), dx (3), dgamma (3).
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(9.0 * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows() * self.cols, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        grad_workspace(*self)
    }
}

#[cfg(test)]
mod tests;
