//! Rows normalized by given statistics of the columns, as batch norm does it, and the gradient.
//!
//! `normalize` reads x `[rows, cols]`, mean and variance, and if `affine` gamma and beta, all `[cols]`, and writes
//! y = (x - mean) · r · gamma + beta with r = 1 / √(variance + eps). `normalize_grad` reads the same but beta, and dy; it
//! writes dx, or adds to it if `accumulate`, and the gradients of the vectors: sums over rows in the order of [`Blocks`].

use std::ops::Range;

use phalanx_ir::tasks::TaskView;

use crate::rows::{Blocks, Rule, outer_and_time, tree_rows};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Names, Sizes, Work, dispatch, names, params};

params! {
    /// The parameters of `normalize`.
    pub struct Normalize {
        /// Number of rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Added to variances.
        pub eps: f32,
        /// Whether gamma and beta are there.
        pub affine: bool,
    }
}

params! {
    /// The parameters of `normalize_grad`.
    pub struct NormalizeGrad {
        /// Extent of the outermost dimension.
        pub outer: usize,
        /// Rows for each of its places.
        pub time: usize,
        /// Elements per row.
        pub cols: usize,
        /// Added to variances.
        pub eps: f32,
        /// Whether gamma is there.
        pub affine: bool,
        /// Blocks of rows along `outer` whose sums are added as a tree.
        pub leaves: usize,
        /// Blocks of each of those along `time`, also added as a tree.
        pub inner: usize,
        /// Whether the sums of the leaves are kept apart.
        pub keep: bool,
        /// Whether dx is added to.
        pub accumulate: bool,
    }
}

impl NormalizeGrad {
    fn row_blocks(self) -> Blocks {
        Blocks::new(self.outer, self.time, self.leaves, self.inner)
    }

    fn rule(self) -> Rule {
        Rule { keep: self.keep, accumulate: false }
    }

    /// How many vectors have a gradient.
    fn vectors(self) -> usize {
        if self.affine { 4 } else { 2 }
    }

    /// Elements of the sums of one leaf.
    fn width(self) -> usize {
        self.vectors() * self.cols
    }
}

/// 1 / √(variance + eps).
#[inline(always)]
fn scale(variance: f32, eps: f32) -> f32 {
    1.0 / (variance + eps).sqrt()
}

/// What the gradient needs of a column, from its variance and gamma: r, gamma · r, and -½ · gamma · r².
#[inline(always)]
fn factors(variance: f32, gamma: f32, eps: f32) -> [f32; 3] {
    let r = scale(variance, eps);
    [r, gamma * r, -0.5 * gamma * r * r]
}

/// Element by element; inputs x, mean, variance, gamma, beta.
pub fn normalize_reference(y: &mut [f32], [x, mean, variance, gamma, beta]: [&[f32]; 5], params: Normalize) {
    let n = params.cols;
    for at in 0..params.rows * n {
        let col = at % n;
        let normal = (x[at] - mean[col]) * scale(variance[col], params.eps);
        y[at] = if params.affine { normal.mul_add(gamma[col], beta[col]) } else { normal };
    }
}

/// The fast version of [`normalize_reference`].
pub fn normalize(
    y: &mut [f32],
    [x, mean, variance, gamma, beta]: [&[f32]; 5],
    params: Normalize,
    launch: &mut Launch<'_>,
) {
    let n = params.cols;
    launch.split_rows(params.rows, [(y, n)], |range, [y], own| {
        let scales = &mut own[..n];
        scales.iter_mut().zip(variance).for_each(|(r, &variance)| *r = scale(variance, params.eps));
        normalize_rows(y, [&x[range.start * n..range.end * n], mean, scales, gamma, beta], params.affine);
    });
}

dispatch! {
    fn normalize_rows(y: &mut [f32], ins: [&[f32]; 5], affine: bool) {
        let [x, mean, scales, gamma, beta] = ins;
        let n = scales.len();
        for (y, x) in y.chunks_exact_mut(n).zip(x.chunks_exact(n)) {
            let columns = y.iter_mut().zip(x).zip(mean).zip(scales);
            if affine {
                for (((((y, x), mean), r), gamma), beta) in columns.zip(gamma).zip(beta) {
                    *y = ((x - mean) * r).mul_add(*gamma, *beta);
                }
            } else {
                columns.for_each(|(((y, x), mean), r)| *y = (x - mean) * r);
            }
        }
    }
}

/// Outputs dx, and dmean, dvariance, dgamma, dbeta; inputs x, mean, variance, gamma, dy.
pub fn normalize_grad_reference(
    dx: &mut [f32],
    sums: [&mut [f32]; 4],
    [x, mean, variance, gamma, dy]: [&[f32]; 5],
    params: NormalizeGrad,
) {
    let (n, blocks, rule) = (params.cols, params.row_blocks(), params.rule());
    let [dmean, dvariance, dgamma, dbeta] = sums;
    for col in 0..n {
        let gamma = if params.affine { gamma[col] } else { 1.0 };
        let [r, s, q] = factors(variance[col], gamma, params.eps);
        let dy = |row: usize| dy[row * n + col];
        let product = |row: usize| dy(row) * ((x[row * n + col] - mean[col]) * r);
        for row in 0..params.outer * params.time {
            let dx = &mut dx[row * n + col];
            *dx = if params.accumulate { *dx + dy(row) * s } else { dy(row) * s };
        }
        blocks.sum_reference(&mut dmean[col..], n, rule, &|row| -(dy(row) * s));
        blocks.sum_reference(&mut dvariance[col..], n, rule, &|row| product(row) * q);
        if params.affine {
            blocks.sum_reference(&mut dgamma[col..], n, rule, &product);
            blocks.sum_reference(&mut dbeta[col..], n, rule, &dy);
        }
    }
}

/// The gradient in one pass over x and dy; arguments as for [`normalize_grad_reference`].
pub fn normalize_grad(
    dx: &mut [f32],
    [dmean, dvariance, dgamma, dbeta]: [&mut [f32]; 4],
    [x, mean, variance, gamma, dy]: [&[f32]; 5],
    params: NormalizeGrad,
    launch: &mut Launch<'_>,
) {
    let (blocks, cols, width) = (params.row_blocks(), params.cols, params.width());
    let size = blocks.leaf(0).len() * cols;
    let sums: &mut [f32] = launch.common();
    let outs = [(dx, size), (&mut *sums, width)];
    launch.split_rows(blocks.leaves, outs, |leaves, [dx, sums], own| {
        let (columns, own) = own.split_at_mut(3 * cols);
        for (col, &variance) in variance[..cols].iter().enumerate() {
            let gamma = if params.affine { gamma[col] } else { 1.0 };
            for (index, factor) in factors(variance, gamma, params.eps).into_iter().enumerate() {
                columns[index * cols + col] = factor;
            }
        }
        for (leaf, (dx, sums)) in leaves.zip(dx.chunks_exact_mut(size).zip(sums.chunks_exact_mut(width))) {
            let elements = leaf * size..(leaf + 1) * size;
            let ins = [&x[elements.clone()], mean, columns, &dy[elements]];
            grad_leaf([dx, sums], ins, own, params, &blocks);
        }
    });
    match params.affine {
        true => blocks.join([dmean, dvariance, dgamma, dbeta], sums, [cols, width], params.rule()),
        false => blocks.join([dmean, dvariance], sums, [cols, width], params.rule()),
    }
}

/// The gradient of one leaf: its rows of dx, and its sums side by side.
fn grad_leaf(
    [dx, sums]: [&mut [f32]; 2],
    ins: [&[f32]; 4],
    own: &mut [f32],
    params: NormalizeGrad,
    blocks: &Blocks,
) {
    if blocks.inner == 1 {
        return grad_block([dx, sums], ins, params, blocks.runs(0));
    }
    let width = sums.len();
    let own = &mut own[..blocks.inner * width];
    for (block, sums) in own.chunks_exact_mut(width).enumerate() {
        grad_block([dx, sums], ins, params, blocks.runs(block));
    }
    tree_rows(own, blocks.inner, width);
    sums.copy_from_slice(&own[..width]);
}

/// The gradient of one inner block of a leaf, given as runs of its rows.
fn grad_block(
    [dx, sums]: [&mut [f32]; 2],
    [x, mean, columns, dy]: [&[f32]; 4],
    params: NormalizeGrad,
    runs: impl Iterator<Item = Range<usize>>,
) {
    sums.fill(0.0);
    for rows in runs {
        let elements = rows.start * params.cols..rows.end * params.cols;
        let ins = [&x[elements.clone()], mean, columns, &dy[elements.clone()]];
        grad_rows([&mut dx[elements], sums], ins, params);
    }
}

dispatch! {
    /// The gradient of consecutive rows; adds to the sums.
    fn grad_rows(outs: [&mut [f32]; 2], ins: [&[f32]; 4], params: NormalizeGrad) {
        let ([dx, sums], [x, mean, columns, dy], n) = (outs, ins, params.cols);
        let (scales, rest) = columns.split_at(n);
        let (slopes, factors) = rest.split_at(n);
        let (dmean, rest) = sums.split_at_mut(n);
        let (dvariance, rest) = rest.split_at_mut(n);
        let (dgamma, dbeta) = rest.split_at_mut(if params.affine { n } else { 0 });
        for (dx, (x, dy)) in dx.chunks_exact_mut(n).zip(x.chunks_exact(n).zip(dy.chunks_exact(n))) {
            let given = x.iter().zip(dy).zip(mean).zip(scales).zip(slopes).zip(factors);
            let taken = dx.iter_mut().zip(dmean.iter_mut()).zip(dvariance.iter_mut());
            for (((dx, dmean), dvariance), (((((x, dy), mean), r), s), q)) in taken.zip(given) {
                let slope = dy * s;
                *dx = if params.accumulate { *dx + slope } else { slope };
                *dmean -= slope;
                *dvariance += dy * ((x - mean) * r) * q;
            }
            if params.affine {
                let given = x.iter().zip(dy).zip(mean).zip(scales);
                for ((dgamma, dbeta), (((x, dy), mean), r)) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(given) {
                    *dgamma += dy * ((x - mean) * r);
                    *dbeta += dy;
                }
            }
        }
    }
}

fn forward_args<'a>(call: &Call<'a>, affine: bool) -> [&'a [f32]; 5] {
    [0, 1, 2, 3, 4].map(|slot| if slot < 3 || affine { call.read(slot) } else { &[] })
}

type GradArgs<'a> = (&'a mut [f32], [&'a mut [f32]; 4], [&'a [f32]; 5]);

fn grad_args<'a>(call: &mut Call<'a>, affine: bool) -> GradArgs<'a> {
    let gamma: &[f32] = if affine { call.read(3) } else { &[] };
    let dy = call.read(if affine { 4 } else { 3 });
    let ins = [call.read(0), call.read(1), call.read(2), gamma, dy];
    let mut sum =
        |slot: usize| -> &'a mut [f32] { if slot < 3 || affine { call.write(slot) } else { &mut [] } };
    let (dx, sums) = (sum(0), [sum(1), sum(2), sum(3), sum(4)]);
    (dx, sums, ins)
}

impl Kernel for Normalize {
    const NAME: &'static str = "normalize";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let cols = task.read(1)?.elements();
        let rows = task.read(0)?.elements() / cols;
        Ok(Normalize { rows, cols, eps: task.attr("eps")?, affine: task.is("affine") })
    }

    fn arguments(&self) -> Names {
        names!(x, mean, variance, gamma if self.affine, beta if self.affine => y)
    }

    fn reference(&self, call: &mut Call<'_>) {
        normalize_reference(call.write(0), forward_args(call, self.affine), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        normalize(call.write(0), forward_args(call, self.affine), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(if self.affine { 4.0 } else { 2.0 } * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.cols, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::of::<f32>(0, self.cols)
    }
}

impl Kernel for NormalizeGrad {
    const NAME: &'static str = "normalize_grad";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (x, cols) = (task.read(0)?, task.read(1)?.elements());
        let (outer, time) = outer_and_time(x, x.elements() / cols);
        Ok(NormalizeGrad {
            outer,
            time,
            cols,
            eps: task.attr("eps")?,
            affine: task.is("affine"),
            leaves: task.attr("leaves")?,
            inner: task.attr("inner")?,
            keep: task.is("keep"),
            accumulate: task.is("accumulate"),
        })
    }

    fn arguments(&self) -> Names {
        let affine = self.affine;
        names!(x, mean, variance, gamma if affine, dy => dx, dmean, dvariance, dgamma if affine, dbeta if affine)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (dx, sums, ins) = grad_args(call, self.affine);
        normalize_grad_reference(dx, sums, ins, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (dx, sums, ins) = grad_args(call, self.affine);
        normalize_grad(dx, sums, ins, *self, &mut call.launch);
    }

    /// dx, its sum, the normalized element (2), two products and their sum; two more sums.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(if self.affine { 9.0 } else { 7.0 } * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.outer * self.time * self.cols, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        let inner = if self.inner > 1 { self.inner * self.width() } else { 0 };
        Workspace::of::<f32>(self.leaves * self.width(), 3 * self.cols + inner)
    }
}

#[cfg(test)]
mod tests;
