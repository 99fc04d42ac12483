//! Reductions over some dimensions: `reduce` and its gradient.
//!
//! `reduce` reads x and writes y, which keeps the dimensions not reduced. `reduce_grad` reads x, y and dy, writes dx and
//! adds to it if `accumulate`. A sum is a balanced tree over `leaves` equal blocks of the first reduced dimension. Inside
//! a leaf, where the innermost dimension is reduced, neighboring reduced dimensions at the end form runs: element i of
//! every run goes to lane i mod 16, and the lanes are added as a tree; elsewhere each output is one ascending chain.
//! `Mean` is `Sum` times 1/count. `Max` keeps NaN, never gives -0, and its gradient is split evenly over ties.

use phalanx_ir::Reduce;
use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, Grid, RANK, contiguous, padded};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Kernel, Sizes, Work, dispatch, params, rows, signature};

mod fold;

use fold::Folding;

params! {
/// The parameters of `reduce`.
pub struct ReduceParams {
    /// What is computed.
    pub kind: Reduce,
    /// Leaves of the tree along the first reduced dimension: a power of two that divides it.
    pub leaves: usize,
    /// The shape of x, padded with leading ones.
    pub dims: Dims,
    /// Which dimensions are reduced.
    pub reduced: [bool; RANK],
}}

params! {
/// The parameters of `reduce_grad`.
pub struct ReduceGradParams {
    /// Those of the forward.
    pub forward: ReduceParams,
    /// Whether dx is added to instead of overwritten.
    pub accumulate: bool,
}}

impl ReduceParams {
    /// The reduction of a tensor of `shape` over the dimensions `over`.
    pub fn new(kind: Reduce, leaves: usize, shape: &[usize], over: &[usize]) -> Self {
        let lead = RANK - shape.len();
        let reduced = std::array::from_fn(|i| i >= lead && over.contains(&(i - lead)));
        ReduceParams { kind, leaves, dims: padded(shape), reduced }
    }

    /// How many elements x has.
    fn n_inputs(self) -> usize {
        self.dims.iter().product()
    }

    /// How many elements y has.
    fn n_outputs(self) -> usize {
        self.kept().iter().product()
    }

    /// The dimensions of y: ones where x is reduced.
    fn kept(self) -> Dims {
        std::array::from_fn(|i| if self.reduced[i] { 1 } else { self.dims[i] })
    }

    /// The strides with which y is read in the shape of x.
    fn strides(self) -> Dims {
        let strides = contiguous(self.kept());
        std::array::from_fn(|i| if self.reduced[i] { 0 } else { strides[i] })
    }

    /// `1 / count` for a mean, 1 for a sum.
    fn scale(self) -> f32 {
        let count: usize = (0..RANK).filter(|&i| self.reduced[i]).map(|i| self.dims[i]).product();
        if self.kind == Reduce::Mean { 1.0 / count as f32 } else { 1.0 }
    }
}

/// Every output is the tree over leaves of the chains of its elements.
pub fn reduce_reference(y: &mut [f32], x: &[f32], params: ReduceParams) {
    let grid = Grid::new(params.dims, [params.strides(), leaf_strides(params)]);
    let axis = (0..RANK).find(|&i| params.reduced[i]).map_or(1, |i| params.dims[i]);
    let n = params.n_outputs();
    let start = if params.kind == Reduce::Max { f32::NEG_INFINITY } else { 0.0 };
    let mut partials = vec![start; params.leaves * n];
    for (i, &x) in x[..params.n_inputs()].iter().enumerate() {
        let [to, place] = grid.offsets(i);
        let partial = &mut partials[place * params.leaves / axis * n + to];
        *partial = if params.kind == Reduce::Max { larger(*partial, x) } else { *partial + x };
    }
    for to in 0..n {
        let leaf = |leaf: usize| partials[leaf * n + to];
        y[to] = match params.kind {
            Reduce::Max => (0..params.leaves).map(leaf).fold(f32::NEG_INFINITY, larger) + 0.0,
            _ => rows::tree_reference(params.leaves, &leaf) * params.scale(),
        };
    }
}

/// Strides that give an element's place along the first reduced dimension.
fn leaf_strides(params: ReduceParams) -> Dims {
    let first = (0..RANK).find(|&i| params.reduced[i]);
    std::array::from_fn(|i| usize::from(Some(i) == first))
}

/// `dx = dy` spread over the elements of each output: all of them, or those that equal the maximum. Only `Max` looks
/// at x and y.
pub fn reduce_grad_reference(dx: &mut [f32], x: &[f32], y: &[f32], dy: &[f32], params: ReduceGradParams) {
    let forward = params.forward;
    let grid = Grid::new(forward.dims, [forward.strides()]);
    let mut ties = vec![0.0; forward.n_outputs()];
    if forward.kind == Reduce::Max {
        for (i, &x) in x[..forward.n_inputs()].iter().enumerate() {
            let [from] = grid.offsets(i);
            ties[from] += f32::from(x == y[from]);
        }
    }
    for i in 0..forward.n_inputs() {
        let [from] = grid.offsets(i);
        let value = match forward.kind {
            Reduce::Max => {
                if x[i] == y[from] {
                    dy[from] / ties[from]
                } else {
                    0.0
                }
            }
            _ => dy[from] * forward.scale(),
        };
        dx[i] = if params.accumulate { dx[i] + value } else { value };
    }
}

/// The fast version of [`reduce_reference`].
pub fn reduce(y: &mut [f32], x: &[f32], params: ReduceParams, launch: &mut Launch<'_>) {
    let folding = Folding::new(params.leaves, params.dims, params.reduced);
    let n = params.n_outputs();
    launch.split_rows(n, [(&mut y[..n], 1)], |range, [y], _| {
        reduce_part(y, x, (params.kind, params.scale()), &folding, range.start);
    });
}

dispatch! {
    fn reduce_part(y: &mut [f32], x: &[f32], what: (Reduce, f32), folding: &Folding, first: usize) {
        let (kind, scale) = what;
        match kind {
            Reduce::Sum => folding.run(y, x, first, 0.0, |_, x| x, |a, b| a + b, |_, sum| sum),
            Reduce::Mean => folding.run(y, x, first, 0.0, |_, x| x, |a, b| a + b, |_, sum| sum * scale),
            Reduce::Max => folding.run(y, x, first, f32::NEG_INFINITY, |_, x| x, larger, |_, max| max + 0.0),
        }
    }
}

/// The fast version of [`reduce_grad_reference`]; of a `Max` the workspace has one value per output.
pub fn reduce_grad(
    dx: &mut [f32],
    x: &[f32],
    y: &[f32],
    dy: &[f32],
    params: ReduceGradParams,
    launch: &mut Launch<'_>,
) {
    let forward = params.forward;
    let grid = Grid::new(forward.dims, [forward.strides()]);
    let dx = &mut dx[..grid.len()];
    if forward.kind != Reduce::Max {
        let spread = Spread { from: dy, scale: forward.scale(), maxima: None, accumulate: params.accumulate };
        return launch.for_each_part(dx, 16, |first, dx| spread_part(dx, &spread, &grid, first));
    }
    let folding = Folding::new(forward.leaves, forward.dims, forward.reduced);
    let n = forward.n_outputs();
    let shares: &mut [f32] = launch.common();
    launch.split_rows(n, [(&mut *shares, 1)], |range, [shares], _| {
        share_part(shares, x, (y, dy), &folding, range.start);
    });
    let spread = Spread { from: shares, scale: 1.0, maxima: Some((x, y)), accumulate: params.accumulate };
    launch.for_each_part(dx, 16, |first, dx| spread_part(dx, &spread, &grid, first));
}

dispatch! {
    /// What each maximum of an output receives: its gradient over its ties.
    fn share_part(shares: &mut [f32], x: &[f32], outputs: (&[f32], &[f32]), folding: &Folding, first: usize) {
        let (y, dy) = outputs;
        let tie = |at: usize, x: f32| if x == y[at] { 1.0 } else { 0.0 };
        folding.run(shares, x, first, 0.0, tie, |a, b| a + b, |at, ties| dy[at] / ties);
    }
}

/// What [`spread_part`] writes: `from` times `scale`, only where x equals y if `maxima` holds them.
struct Spread<'a> {
    from: &'a [f32],
    scale: f32,
    maxima: Option<(&'a [f32], &'a [f32])>,
    accumulate: bool,
}

dispatch! {
    fn spread_part(dx: &mut [f32], spread: &Spread<'_>, grid: &Grid<1>, first: usize) {
        let len = dx.len();
        let [step] = grid.row_strides();
        let row = |at: usize, n: usize| at..at + if step == 0 { 1 } else { n };
        grid.for_each_piece(first, len, |part, [at]| {
            let n = part.len();
            let begin = first + part.start;
            let (dx, from) = (&mut dx[part], &spread.from[row(at, n)]);
            match spread.maxima {
                None => write(dx, |i| pick(from, step, i) * spread.scale, spread.accumulate),
                Some((x, y)) => {
                    let (x, y) = (&x[begin..begin + n], &y[row(at, n)]);
                    let value = |i: usize| if x[i] == pick(y, step, i) { pick(from, step, i) } else { 0.0 };
                    write(dx, value, spread.accumulate);
                }
            }
        });
    }
}

/// Element i of a row that is either repeated (`step` 0) or contiguous (`step` 1).
#[inline(always)]
fn pick(row: &[f32], step: usize, i: usize) -> f32 {
    if step == 0 { row[0] } else { row[i] }
}

#[inline(always)]
fn write(dx: &mut [f32], value: impl Fn(usize) -> f32, accumulate: bool) {
    if accumulate {
        dx.iter_mut().enumerate().for_each(|(i, dx)| *dx += value(i));
    } else {
        dx.iter_mut().enumerate().for_each(|(i, dx)| *dx = value(i));
    }
}

/// The larger number; NaN if one is.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

impl Kernel for ReduceParams {
    signature!("reduce": x => y by reduce_reference, reduce);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let axes: Vec<usize> = task.attr("axes")?;
        Ok(ReduceParams::new(task.attr("kind")?, task.attr("leaves")?, task.read(0)?.dims(), &axes))
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n_inputs(), cores)
    }
}

impl Kernel for ReduceGradParams {
    signature!("reduce_grad": x, y, dy => dx by reduce_grad_reference, reduce_grad);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let axes: Vec<usize> = task.attr("axes")?;
        let forward = ReduceParams::new(task.attr("kind")?, 1, task.write(0)?.dims(), &axes);
        Ok(ReduceGradParams { forward, accumulate: task.is("accumulate") })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.forward.n_inputs(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        let shares = if self.forward.kind == Reduce::Max { self.forward.n_outputs() } else { 0 };
        Workspace::of::<f32>(shares, 0)
    }
}

#[cfg(test)]
mod tests;
