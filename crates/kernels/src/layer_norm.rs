//! Layer normalization of rows and its gradient.
//!
//! `layer_norm` reads x `[rows, cols]`, gamma and beta `[cols]` and writes y, and per row the mean and the reciprocal
//! standard deviation. `layer_norm_grad` reads x `[outer, time, heads, cols]`, gamma, mean, rstd and dy and writes dx
//! (accumulates on request), dgamma and dbeta (overwritten: with `keep` the sums of each leaf `[leaves, heads, cols]`, else
//! of all outer places and times `[heads, cols]`, in the order of [`Blocks`]). [`Affine`] says which of gamma, beta, dgamma
//! and dbeta there are: the functions here take the others empty, the kernels do not take them at all.

use std::ops::Range;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Names, names};

use crate::rows::{Blocks, Rule, outer_and_time, sum, times, tree_rows};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Words, Work, dispatch, params};

/// Which weights take part in a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affine {
    /// None.
    None,
    /// Gamma and beta.
    Both,
    /// Gamma alone.
    Gamma,
}

impl Affine {
    const ALL: [Affine; 3] = [Affine::None, Affine::Both, Affine::Gamma];

    fn of(task: &TaskView<'_>) -> Affine {
        match (task.is("affine"), task.is("scaled")) {
            (true, _) => Affine::Both,
            (false, true) => Affine::Gamma,
            (false, false) => Affine::None,
        }
    }

    fn gamma(self) -> bool {
        self != Affine::None
    }

    fn beta(self) -> bool {
        self == Affine::Both
    }

    /// How many weights these are.
    fn count(self) -> usize {
        usize::from(self.gamma()) + usize::from(self.beta())
    }
}

impl Words for Affine {
    fn put(&self, words: &mut Vec<u64>) {
        words.push(*self as u64);
    }
    fn take(words: &mut &[u64]) -> Self {
        Affine::ALL.get(usize::take(words)).copied().unwrap_or(Affine::None)
    }
}

params! {
    /// Settings of `layer_norm`.
    pub struct LayerNorm {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Added to the variance.
        pub eps: f32,
        /// Which weights take part.
        pub affine: Affine,
    }
}

params! {
    /// Settings of `layer_norm_grad`.
    pub struct LayerNormGrad {
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
        /// Which weights take part.
        pub affine: Affine,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

impl LayerNormGrad {
    fn rows(self) -> usize {
        self.outer * self.time * self.heads
    }

    /// Elements of a group of rows.
    fn width(self) -> usize {
        self.heads * self.cols
    }

    /// The order of the sums over rows; without such sums every group of rows is a leaf of its own.
    fn row_blocks(self) -> Blocks {
        match self.affine.gamma() {
            true => Blocks::new(self.outer, self.time, self.leaves, self.inner),
            false => Blocks::new(self.outer * self.time, 1, self.outer * self.time, 1),
        }
    }

    fn rule(self) -> Rule {
        Rule { keep: self.keep, accumulate: false }
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
            y[row * n + col] = match params.affine {
                Affine::None => normal,
                Affine::Both => normal * gamma[col] + beta[col],
                Affine::Gamma => normal * gamma[col],
            };
        }
    }
}

/// Normalizes every row, fast; arguments as for [`layer_norm_reference`].
pub fn layer_norm(
    [y, mean, rstd]: [&mut [f32]; 3],
    [x, gamma, beta]: [&[f32]; 3],
    params: LayerNorm,
    launch: &mut Launch<'_>,
) {
    let n = params.cols;
    let outs = [(y, n), (mean, 1), (rstd, 1)];
    launch.split_rows(params.rows, outs, |range, outs, _| {
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
            match params.affine {
                Affine::Both => {
                    for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = ((x - mu) * r).mul_add(*gamma, *beta);
                    }
                }
                Affine::Gamma => {
                    for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                        *y = (x - mu) * r * gamma;
                    }
                }
                Affine::None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = (x - mu) * r;
                    }
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
    let g = |row: usize, col: usize| dy[row * n + col] * if params.affine.gamma() { gamma[col] } else { 1.0 };
    for row in 0..params.rows() {
        let c1 = (0..n).map(|col| g(row, col)).sum::<f32>() / n as f32;
        let c2 = (0..n).map(|col| g(row, col) * normal(row, col)).sum::<f32>() / n as f32;
        for col in 0..n {
            let value = rstd[row] * (g(row, col) - c1 - normal(row, col) * c2);
            let dx = &mut dx[row * n + col];
            *dx = if params.accumulate { *dx + value } else { value };
        }
    }
    let (blocks, rule) = (params.row_blocks(), params.rule());
    let width = params.width();
    for at in 0..if params.affine.gamma() { width } else { 0 } {
        let row = |group: usize| group * params.heads + at / n;
        let dy = |group: usize| dy[row(group) * n + at % n];
        let scaled = |group: usize| dy(group) * normal(row(group), at % n);
        blocks.sum_reference(&mut dgamma[at..], width, rule, &scaled);
        if params.affine.beta() {
            blocks.sum_reference(&mut dbeta[at..], width, rule, &dy);
        }
    }
}

/// What [`layer_norm_grad`] works in: the sums of dgamma and dbeta of every leaf, and of every inner block of the leaf at
/// hand.
fn grad_workspace(params: LayerNormGrad) -> Workspace {
    let LayerNormGrad { leaves, inner, affine, .. } = params;
    let width = affine.count() * params.width();
    Workspace::of::<f32>(leaves * width, if inner > 1 { inner * width } else { 0 })
}

/// The gradient in one pass over x and dy; arguments as for [`layer_norm_grad_reference`].
pub fn layer_norm_grad(
    [dx, dgamma, dbeta]: [&mut [f32]; 3],
    [x, gamma, mean, rstd, dy]: [&[f32]; 5],
    params: LayerNormGrad,
    launch: &mut Launch<'_>,
) {
    let (blocks, sum) = (params.row_blocks(), params.width());
    let width = params.affine.count() * sum;
    let size = blocks.leaf(0).len() * sum;
    let sums: &mut [f32] = launch.common();
    let outs = [(dx, size), (&mut *sums, width)];
    launch.split_rows(blocks.leaves, outs, |leaves, [dx, sums], own| {
        for (i, leaf) in leaves.enumerate() {
            let (rows, elements) = (times(blocks.leaf(leaf), params.heads), leaf * size..(leaf + 1) * size);
            let ins = [&x[elements.clone()], gamma, &mean[rows.clone()], &rstd[rows], &dy[elements]];
            let outs = [&mut dx[i * size..][..size], &mut sums[i * width..][..width]];
            layer_norm_grad_leaf(outs, ins, own, params, &blocks);
        }
    });
    match params.affine {
        Affine::None => {}
        Affine::Both => blocks.join([dgamma, dbeta], sums, [sum, width], params.rule()),
        Affine::Gamma => blocks.join([dgamma], sums, [sum, width], params.rule()),
    }
}

/// The gradient of one leaf: its rows of dx, and its sums of dgamma and dbeta side by side.
fn layer_norm_grad_leaf(
    [dx, sums]: [&mut [f32]; 2],
    ins: [&[f32]; 5],
    own: &mut [f32],
    params: LayerNormGrad,
    blocks: &Blocks,
) {
    let width = sums.len();
    if blocks.inner == 1 {
        return layer_norm_grad_block([dx, sums], ins, params, blocks.runs(0));
    }
    let own = &mut own[..blocks.inner * width];
    for (block, sums) in own.chunks_exact_mut(width).enumerate() {
        layer_norm_grad_block([dx, sums], ins, params, blocks.runs(block));
    }
    tree_rows(own, blocks.inner, width);
    sums.copy_from_slice(&own[..width]);
}

/// The gradient of one inner block of a leaf, given as runs of its groups of rows.
fn layer_norm_grad_block(
    [dx, sums]: [&mut [f32]; 2],
    [x, gamma, mean, rstd, dy]: [&[f32]; 5],
    params: LayerNormGrad,
    runs: impl Iterator<Item = Range<usize>>,
) {
    sums.fill(0.0);
    let (dgamma, dbeta) = sums.split_at_mut(params.width().min(sums.len()));
    for groups in runs {
        let (rows, elements) = (times(groups.clone(), params.heads), times(groups, params.width()));
        let statistics = [&mean[rows.clone()], &rstd[rows]];
        let rows = [&x[elements.clone()], &dy[elements.clone()]];
        layer_norm_grad_rows(&mut dx[elements], [dgamma, dbeta], rows, gamma, statistics, params);
    }
}

dispatch! {
    /// The gradient of consecutive groups of rows; adds to the sums.
    fn layer_norm_grad_rows(
        dx: &mut [f32],
        sums: [&mut [f32]; 2],
        rows: [&[f32]; 2],
        gamma: &[f32],
        statistics: [&[f32]; 2],
        params: LayerNormGrad,
    ) {
        let [dgamma, dbeta] = sums;
        let [x, dy] = rows;
        let n = params.cols;
        for (row, dx) in dx.chunks_exact_mut(n).enumerate() {
            let (x, dy) = (&x[row * n..][..n], &dy[row * n..][..n]);
            let (mu, r) = (statistics[0][row], statistics[1][row]);
            let normal = |x: f32| (x - mu) * r;
            let totals = if params.affine.gamma() {
                let second = sum([x, dy, gamma], |[x, dy, gamma]| dy * gamma * normal(x));
                [sum([dy, gamma], |[dy, gamma]| dy * gamma), second]
            } else {
                [sum([dy], |[dy]| dy), sum([x, dy], |[x, dy]| dy * normal(x))]
            };
            let [c1, c2] = totals.map(|total| total / n as f32);
            let value = |g: f32, x: f32| r * (-normal(x)).mul_add(c2, g - c1);
            if params.affine.gamma() {
                for (((dx, x), dy), gamma) in dx.iter_mut().zip(x).zip(dy).zip(gamma) {
                    let value = value(dy * gamma, *x);
                    *dx = if params.accumulate { *dx + value } else { value };
                }
                let own = row % params.heads * n..(row % params.heads + 1) * n;
                for ((dgamma, x), dy) in dgamma[own.clone()].iter_mut().zip(x).zip(dy) {
                    *dgamma = dy.mul_add(normal(*x), *dgamma);
                }
                // There is none where the norm has no beta.
                if let Some(dbeta) = dbeta.get_mut(own) {
                    dbeta.iter_mut().zip(dy).for_each(|(dbeta, dy)| *dbeta += dy);
                }
            } else {
                for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = if params.accumulate { *dx + value(*dy, *x) } else { value(*dy, *x) };
                }
            }
        }
    }
}

fn forward_args<'a>(call: &mut Call<'a>, affine: Affine) -> ([&'a mut [f32]; 3], [&'a [f32]; 3]) {
    let parameter = |index, is_there| if is_there { call.read(index) } else { &[] };
    let ins = [call.read(0), parameter(1, affine.gamma()), parameter(2, affine.beta())];
    ([0, 1, 2].map(|index| call.write(index)), ins)
}

fn grad_args<'a>(call: &mut Call<'a>, affine: Affine) -> ([&'a mut [f32]; 3], [&'a [f32]; 5]) {
    let mut slots = 0..;
    let mut read = |is_there| match is_there {
        true => call.read(slots.next().unwrap_or(0)),
        false => &[],
    };
    let ins = [true, affine.gamma(), true, true, true].map(&mut read);
    let mut write = |(slot, is_there): (usize, bool)| match is_there {
        true => call.write(slot),
        false => &mut [],
    };
    ([(0, true), (1, affine.gamma()), (2, affine.beta())].map(&mut write), ins)
}

impl Kernel for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, cols) = task.rows_of(task.write(1)?)?;
        Ok(LayerNorm { rows, cols, eps: task.attr("eps")?, affine: Affine::of(task) })
    }

    fn arguments(&self) -> Names {
        names!(x, gamma if self.affine.gamma(), beta if self.affine.beta() => y, mean, rstd)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (outs, ins) = forward_args(call, self.affine);
        layer_norm_reference(outs, ins, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (outs, ins) = forward_args(call, self.affine);
        layer_norm(outs, ins, *self, &mut call.launch);
    }

    /// The mean, the variance (3), the difference and the scale; gamma and beta.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work((6.0 + self.affine.count() as f64) * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.cols, cores)
    }
}

impl Kernel for LayerNormGrad {
    const NAME: &'static str = "layer_norm_grad";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let affine = Affine::of(task);
        let statistics = task.read(if affine.gamma() { 2 } else { 1 })?;
        let (rows, cols) = task.rows_of(statistics)?;
        let heads = task.attr_or("heads", 1)?;
        let (outer, time) = outer_and_time(statistics, rows / heads);
        let (leaves, inner) = (task.attr("leaves")?, task.attr("inner")?);
        let (keep, accumulate) = (task.is("keep"), task.is("accumulate"));
        Ok(LayerNormGrad { outer, time, heads, cols, leaves, inner, keep, affine, accumulate })
    }

    fn arguments(&self) -> Names {
        let affine = self.affine;
        names!(x, gamma if affine.gamma(), mean, rstd, dy => dx, dgamma if affine.gamma(), dbeta if affine.beta())
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (outs, ins) = grad_args(call, self.affine);
        layer_norm_grad_reference(outs, ins, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (outs, ins) = grad_args(call, self.affine);
        layer_norm_grad(outs, ins, *self, &mut call.launch);
    }

    /// The normalized row (2), two sums (3), dx (4); times gamma, dgamma (2), dbeta.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let weights = match self.affine {
            Affine::None => 0.0,
            Affine::Gamma => 3.0,
            Affine::Both => 4.0,
        };
        sizes.work((9.0 + weights) * sizes.operand(0), self.accumulate)
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
