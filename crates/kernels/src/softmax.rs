//! Softmax along one axis and its gradient.
//!
//! `softmax` reads x and writes y, both [outer, axis, inner]. `softmax_grad` reads y (the OUTPUT of the forward) and dy,
//! writes dx and adds to it if `accumulate`. Sums over the axis keep 16 lanes (element a in lane a mod 16) and add them
//! as a tree, whatever `inner` is, so tiling the other axes changes no bit.

use std::array::from_fn;

use phalanx_ir::tasks::TaskView;

use crate::rows::{self, LANES};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, Sizes, Work, dispatch, math, params, signature};

/// Columns handled at once where the axis is not the innermost one.
const COLUMNS: usize = 16;

params! {
    /// The parameters of `softmax`.
    pub struct SoftmaxParams {
        /// Product of the sizes before the axis.
        pub outer: usize,
        /// Size of the axis.
        pub axis: usize,
        /// Product of the sizes after the axis.
        pub inner: usize,
    }
}

params! {
    /// The parameters of `softmax_grad`.
    pub struct SoftmaxGradParams {
        /// Product of the sizes before the axis.
        pub outer: usize,
        /// Size of the axis.
        pub axis: usize,
        /// Product of the sizes after the axis.
        pub inner: usize,
        /// Whether dx is added to instead of overwritten.
        pub accumulate: bool,
    }
}

/// `y[o, a, i] = e^(x[o, a, i] - max) / Σ_a e^(x[o, a, i] - max)`, computed in `f64`.
pub fn softmax_reference(y: &mut [f32], x: &[f32], params: SoftmaxParams) {
    for_each_line(params.outer, params.axis, params.inner, |at| {
        let line = || (0..params.axis).map(|a| f64::from(x[at(a)]));
        let max = line().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line().map(|x| (x - max).exp()).sum();
        for a in 0..params.axis {
            y[at(a)] = ((f64::from(x[at(a)]) - max).exp() / sum) as f32;
        }
    });
}

/// `dx[o, a, i] = y[o, a, i] (dy[o, a, i] - Σ_a y[o, a, i] dy[o, a, i])`, computed in `f64`.
pub fn softmax_grad_reference(dx: &mut [f32], y: &[f32], dy: &[f32], params: SoftmaxGradParams) {
    for_each_line(params.outer, params.axis, params.inner, |at| {
        let dot: f64 = (0..params.axis).map(|a| f64::from(y[at(a)]) * f64::from(dy[at(a)])).sum();
        for a in 0..params.axis {
            let before = if params.accumulate { f64::from(dx[at(a)]) } else { 0.0 };
            dx[at(a)] = (before + f64::from(y[at(a)]) * (f64::from(dy[at(a)]) - dot)) as f32;
        }
    });
}

/// Calls `body` for every line along the axis, with the position of its element a.
fn for_each_line(outer: usize, axis: usize, inner: usize, mut body: impl FnMut(&dyn Fn(usize) -> usize)) {
    for o in 0..outer {
        for i in 0..inner {
            body(&|a| (o * axis + a) * inner + i);
        }
    }
}

/// The fast version of [`softmax_reference`].
pub fn softmax(y: &mut [f32], x: &[f32], params: SoftmaxParams, launch: &mut Launch<'_>) {
    let block = params.axis * params.inner;
    if block == 0 {
        return;
    }
    launch.for_each_part(&mut y[..params.outer * block], block, |first, y| {
        let x = &x[first..first + y.len()];
        if params.inner == 1 { lines(y, x, params.axis) } else { columns(y, x, params.axis, params.inner) }
    });
}

/// The fast version of [`softmax_grad_reference`].
pub fn softmax_grad(
    dx: &mut [f32],
    y: &[f32],
    dy: &[f32],
    params: SoftmaxGradParams,
    launch: &mut Launch<'_>,
) {
    let block = params.axis * params.inner;
    if block == 0 {
        return;
    }
    launch.for_each_part(&mut dx[..params.outer * block], block, |first, dx| {
        let (y, dy) = (&y[first..first + dx.len()], &dy[first..first + dx.len()]);
        if params.inner == 1 { grad_lines(dx, y, dy, params) } else { grad_columns(dx, y, dy, params) }
    });
}

dispatch! {
    fn lines(y: &mut [f32], x: &[f32], axis: usize) {
        for (y, x) in y.chunks_exact_mut(axis).zip(x.chunks_exact(axis)) {
            let max = rows::max(x);
            for (y, &x) in y.iter_mut().zip(x) {
                *y = math::exp(x - max);
            }
            let sum = rows::sum([&*y], |[y]| y);
            let scale = 1.0 / sum;
            y.iter_mut().for_each(|y| *y *= scale);
        }
    }
}

dispatch! {
    fn columns(y: &mut [f32], x: &[f32], axis: usize, inner: usize) {
        for (y, x) in y.chunks_exact_mut(axis * inner).zip(x.chunks_exact(axis * inner)) {
            for first in (0..inner).step_by(COLUMNS) {
                let part = first..inner.min(first + COLUMNS);
                let mut max = [f32::NEG_INFINITY; COLUMNS];
                for x in x.chunks_exact(inner) {
                    let x = load(&x[part.clone()]);
                    max = from_fn(|c| if x[c] > max[c] { x[c] } else { max[c] });
                }
                let mut sums = [[0.0; COLUMNS]; LANES];
                for (a, (y, x)) in y.chunks_exact_mut(inner).zip(x.chunks_exact(inner)).enumerate() {
                    let (x, sum) = (load(&x[part.clone()]), &mut sums[a % LANES]);
                    let e: [f32; COLUMNS] = from_fn(|c| math::exp(x[c] - max[c]));
                    *sum = from_fn(|c| sum[c] + e[c]);
                    store(&mut y[part.clone()], e);
                }
                let scale = tree(sums).map(|sum| 1.0 / sum);
                for y in y.chunks_exact_mut(inner) {
                    let e = load(&y[part.clone()]);
                    store(&mut y[part.clone()], from_fn(|c| e[c] * scale[c]));
                }
            }
        }
    }
}

dispatch! {
    fn grad_lines(dx: &mut [f32], y: &[f32], dy: &[f32], params: SoftmaxGradParams) {
        let axis = params.axis;
        for ((dx, y), dy) in dx.chunks_exact_mut(axis).zip(y.chunks_exact(axis)).zip(dy.chunks_exact(axis)) {
            let dot = rows::sum([y, dy], |[y, dy]| y * dy);
            for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                let value = y * (dy - dot);
                *dx = if params.accumulate { *dx + value } else { value };
            }
        }
    }
}

dispatch! {
    fn grad_columns(dx: &mut [f32], y: &[f32], dy: &[f32], params: SoftmaxGradParams) {
        let (block, inner) = (params.axis * params.inner, params.inner);
        for ((dx, y), dy) in dx.chunks_exact_mut(block).zip(y.chunks_exact(block)).zip(dy.chunks_exact(block)) {
            for first in (0..inner).step_by(COLUMNS) {
                let part = first..inner.min(first + COLUMNS);
                let mut dots = [[0.0; COLUMNS]; LANES];
                for (a, (y, dy)) in y.chunks_exact(inner).zip(dy.chunks_exact(inner)).enumerate() {
                    let (y, dy, dot) = (load(&y[part.clone()]), load(&dy[part.clone()]), &mut dots[a % LANES]);
                    *dot = from_fn(|c| dot[c] + y[c] * dy[c]);
                }
                let dot = tree(dots);
                for ((dx, y), dy) in dx.chunks_exact_mut(inner).zip(y.chunks_exact(inner)).zip(dy.chunks_exact(inner)) {
                    let (y, dy, dx) = (load(&y[part.clone()]), load(&dy[part.clone()]), &mut dx[part.clone()]);
                    let before = load(dx);
                    let value: [f32; COLUMNS] = from_fn(|c| y[c] * (dy[c] - dot[c]));
                    store(dx, if params.accumulate { from_fn(|c| before[c] + value[c]) } else { value });
                }
            }
        }
    }
}

/// Up to 16 columns of a row, padded with zeros.
#[inline(always)]
fn load(row: &[f32]) -> [f32; COLUMNS] {
    if let Some(full) = row.first_chunk() {
        return *full;
    }
    let mut padded = [0.0; COLUMNS];
    padded[..row.len()].copy_from_slice(row);
    padded
}

/// Writes as many columns as `row` has.
#[inline(always)]
fn store(row: &mut [f32], columns: [f32; COLUMNS]) {
    match row.first_chunk_mut() {
        Some(full) => *full = columns,
        None => row.copy_from_slice(&columns[..row.len()]),
    }
}

/// The balanced tree over the lanes of every column, in the order of [`rows::sum_lanes`].
#[inline(always)]
fn tree(mut lanes: [[f32; COLUMNS]; LANES]) -> [f32; COLUMNS] {
    let mut width = LANES / 2;
    while width > 0 {
        let (lower, upper) = lanes.split_at_mut(width);
        for (lower, upper) in lower.iter_mut().zip(upper) {
            lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
        }
        width /= 2;
    }
    lanes[0]
}

impl Kernel for SoftmaxParams {
    signature!("softmax": x => y by softmax_reference, softmax);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (outer, axis, inner) = task.around(task.attr("axis")?)?;
        Ok(SoftmaxParams { outer, axis, inner })
    }

    /// Maximum, difference, exponential, sum, quotient.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(5.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.outer * self.axis * self.inner, cores)
    }
}

impl Kernel for SoftmaxGradParams {
    signature!("softmax_grad": y, dy => dx by softmax_grad_reference, softmax_grad);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (outer, axis, inner) = task.around(task.attr("axis")?)?;
        Ok(SoftmaxGradParams { outer, axis, inner, accumulate: task.is("accumulate") })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(4.0 * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.outer * self.axis * self.inner, cores)
    }
}

#[cfg(test)]
mod tests;
