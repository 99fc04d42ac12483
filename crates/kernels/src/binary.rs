//! Functions of two elements with broadcasting: `binary` and its gradient.
//!
//! `binary` reads a and b, writes y. `binary_grad` reads a, b and dy, writes d: the gradient of one side in the OUTPUT
//! shape, before the sum over broadcast dimensions. Nothing accumulates. NaN propagates through `Max` and `Min`;
//! on a tie each side gets half of the gradient.

use phalanx_ir::Binary;
use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, Grid, broadcast_strides, padded};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, Sizes, Work, dispatch, params, signature};

params! {
/// How two operands of different shapes meet: the output shape and the element strides of both.
pub struct Broadcast {
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of a; 0 on broadcast dimensions.
    pub a: Dims,
    /// The element strides of b; 0 on broadcast dimensions.
    pub b: Dims,
}}

params! {
/// The parameters of `binary`.
pub struct BinaryParams {
    /// The function.
    pub kind: Binary,
    /// The shapes.
    pub broadcast: Broadcast,
}}

params! {
/// The parameters of `binary_grad`.
pub struct BinaryGradParams {
    /// The function.
    pub kind: Binary,
    /// Whose gradient is wanted: 0 for a, 1 for b.
    pub side: usize,
    /// The shapes.
    pub broadcast: Broadcast,
}}

impl Broadcast {
    /// The broadcast of two contiguous operands: trailing dimensions are aligned, ones stretch.
    pub fn new(a: &[usize], b: &[usize]) -> Self {
        let (wide_a, wide_b) = (padded(a), padded(b));
        let dims = std::array::from_fn(|i| if wide_a[i] == 1 { wide_b[i] } else { wide_a[i] });
        Broadcast { dims, a: broadcast_strides(a, dims), b: broadcast_strides(b, dims) }
    }

    /// That of the first two tiles that a task reads.
    fn of(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(Broadcast::new(task.read(0)?.dims(), task.read(1)?.dims()))
    }

    fn grid(self) -> Grid<2> {
        Grid::new(self.dims, [self.a, self.b])
    }
}

/// `y[i] = f(a[..], b[..])`.
pub fn binary_reference(y: &mut [f32], a: &[f32], b: &[f32], params: BinaryParams) {
    let grid = params.broadcast.grid();
    for (i, y) in y[..grid.len()].iter_mut().enumerate() {
        let [at_a, at_b] = grid.offsets(i);
        let (a, b) = (a[at_a], b[at_b]);
        *y = match params.kind {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => larger(a, b),
            Binary::Min => -larger(-a, -b),
        };
    }
}

/// `d[i] = dy[i] · ∂f/∂side (a[..], b[..])`.
pub fn binary_grad_reference(d: &mut [f32], a: &[f32], b: &[f32], dy: &[f32], params: BinaryGradParams) {
    let grid = params.broadcast.grid();
    for i in 0..grid.len() {
        let [at_a, at_b] = grid.offsets(i);
        let (a, b, dy) = (a[at_a], b[at_b], dy[i]);
        d[i] = match (params.kind, params.side) {
            (Binary::Add, _) | (Binary::Sub, 0) => dy,
            (Binary::Sub, _) => -dy,
            (Binary::Mul, 0) => dy * b,
            (Binary::Mul, _) => dy * a,
            (Binary::Div, 0) => dy / b,
            (Binary::Div, _) => -dy * (a / b) / b,
            (Binary::Max, 0) | (Binary::Min, 1) => dy * lead(a, b),
            (Binary::Max, _) | (Binary::Min, _) => dy * lead(b, a),
        };
    }
}

/// The fast version of [`binary_reference`].
pub fn binary(y: &mut [f32], a: &[f32], b: &[f32], params: BinaryParams, launch: &mut Launch<'_>) {
    let grid = params.broadcast.grid();
    launch.for_each_part(&mut y[..grid.len()], 16, |first, y| apply(y, a, b, params.kind, &grid, first));
}

/// The fast version of [`binary_grad_reference`].
pub fn binary_grad(
    d: &mut [f32],
    a: &[f32],
    b: &[f32],
    dy: &[f32],
    params: BinaryGradParams,
    launch: &mut Launch<'_>,
) {
    let grid = params.broadcast.grid();
    launch.for_each_part(&mut d[..grid.len()], 16, |first, d| {
        let dy = &dy[first..first + d.len()];
        apply_grad(d, dy, (a, b), (params.kind, params.side), (&grid, first));
    });
}

/// `y[i] = f(a[i], b[i])` on the calling core.
pub(crate) fn combine(kind: Binary, y: &mut [f32], a: &[f32], b: &[f32]) {
    let row = Grid::row(y.len());
    apply(y, a, b, kind, &row, 0);
}

/// `d[i] = dy[i] · ∂f/∂side (a[i], b[i])` on the calling core.
pub(crate) fn combine_grad(which: (Binary, usize), d: &mut [f32], ab: Operands<'_>, dy: &[f32]) {
    let row = Grid::row(d.len());
    apply_grad(d, dy, ab, which, (&row, 0));
}

dispatch! {
    fn apply(y: &mut [f32], a: &[f32], b: &[f32], kind: Binary, grid: &Grid<2>, first: usize) {
        match kind {
            Binary::Add => zip(y, None, (a, b), (grid, first), |_, a, b| a + b),
            Binary::Sub => zip(y, None, (a, b), (grid, first), |_, a, b| a - b),
            Binary::Mul => zip(y, None, (a, b), (grid, first), |_, a, b| a * b),
            Binary::Div => zip(y, None, (a, b), (grid, first), |_, a, b| a / b),
            Binary::Max => zip(y, None, (a, b), (grid, first), |_, a, b| larger(a, b)),
            Binary::Min => zip(y, None, (a, b), (grid, first), |_, a, b| -larger(-a, -b)),
        }
    }
}

pub(crate) type Operands<'a> = (&'a [f32], &'a [f32]);
/// A grid and the output element at which a part starts.
type Place<'a> = (&'a Grid<2>, usize);

dispatch! {
    fn apply_grad(d: &mut [f32], dy: &[f32], ab: Operands<'_>, which: (Binary, usize), place: Place<'_>) {
        match which {
            (Binary::Add, _) | (Binary::Sub, 0) => d.copy_from_slice(dy),
            (Binary::Sub, _) => zip(d, Some(dy), ab, place, |dy, _, _| -dy),
            (Binary::Mul, 0) => zip(d, Some(dy), ab, place, |dy, _, b| dy * b),
            (Binary::Mul, _) => zip(d, Some(dy), ab, place, |dy, a, _| dy * a),
            (Binary::Div, 0) => zip(d, Some(dy), ab, place, |dy, _, b| dy / b),
            (Binary::Div, _) => zip(d, Some(dy), ab, place, |dy, a, b| -dy * (a / b) / b),
            (Binary::Max, 0) | (Binary::Min, 1) => zip(d, Some(dy), ab, place, |dy, a, b| dy * lead(a, b)),
            (Binary::Max, _) | (Binary::Min, _) => zip(d, Some(dy), ab, place, |dy, a, b| dy * lead(b, a)),
        }
    }
}

/// `y[i] = f(dy[i], a[..], b[..])` for one part of the output; without dy its value is arbitrary.
#[inline(always)]
fn zip(
    y: &mut [f32],
    dy: Option<&[f32]>,
    (a, b): Operands<'_>,
    (grid, first): Place<'_>,
    f: impl Fn(f32, f32, f32) -> f32 + Copy,
) {
    let len = y.len();
    grid.for_each_piece(first, len, |part, [at_a, at_b]| {
        let ab = (&a[at_a..], &b[at_b..]);
        match dy {
            Some(dy) => zip_piece(&mut y[part.clone()], &dy[part], ab, grid.row_strides(), f),
            None => zip_piece(&mut y[part], Repeat(0.0), ab, grid.row_strides(), f),
        }
    });
}

#[inline(always)]
fn zip_piece(
    y: &mut [f32],
    dy: impl Row,
    (a, b): Operands<'_>,
    steps: [usize; 2],
    f: impl Fn(f32, f32, f32) -> f32,
) {
    let n = y.len();
    match steps {
        [1, 1] => zip_rows(y, dy, &a[..n], &b[..n], f),
        [1, 0] => zip_rows(y, dy, &a[..n], Repeat(b[0]), f),
        [0, 1] => zip_rows(y, dy, Repeat(a[0]), &b[..n], f),
        [step_a, step_b] => zip_rows(y, dy, Strided(a, step_a), Strided(b, step_b), f),
    }
}

#[inline(always)]
fn zip_rows(y: &mut [f32], dy: impl Row, a: impl Row, b: impl Row, f: impl Fn(f32, f32, f32) -> f32) {
    for (i, y) in y.iter_mut().enumerate() {
        *y = f(dy.at(i), a.at(i), b.at(i));
    }
}

/// One row of an operand, by position in the output row.
trait Row {
    fn at(&self, i: usize) -> f32;
}

impl Row for &[f32] {
    #[inline(always)]
    fn at(&self, i: usize) -> f32 {
        self[i]
    }
}

/// The same value everywhere.
struct Repeat(f32);

impl Row for Repeat {
    #[inline(always)]
    fn at(&self, _: usize) -> f32 {
        self.0
    }
}

/// Every so-manieth element.
struct Strided<'a>(&'a [f32], usize);

impl Row for Strided<'_> {
    #[inline(always)]
    fn at(&self, i: usize) -> f32 {
        self.0[i * self.1]
    }
}

/// The larger number; NaN if one is.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// 1 if `a` leads, 1/2 on a tie, else 0.
#[inline(always)]
fn lead(a: f32, b: f32) -> f32 {
    let tie = if a == b { 0.5 } else { 0.0 };
    if a > b { 1.0 } else { tie }
}

impl Kernel for BinaryParams {
    signature!("binary": a, b => y by binary_reference, binary);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(BinaryParams { kind: task.attr("kind")?, broadcast: Broadcast::of(task)? })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.broadcast.grid().len(), cores)
    }
}

impl Kernel for BinaryGradParams {
    signature!("binary_grad": a, b, dy => d by binary_grad_reference, binary_grad);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (kind, side) = (task.attr("kind")?, task.attr("side")?);
        Ok(BinaryGradParams { kind, side, broadcast: Broadcast::of(task)? })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.broadcast.grid().len(), cores)
    }
}

#[cfg(test)]
mod tests;
