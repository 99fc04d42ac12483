//! Functions of two elements with broadcasting: `binary` and its gradient.
//!
//! `binary` reads a and b, writes y. `binary_grad` reads a, b and dy, writes d: the gradient of one side in the OUTPUT
//! shape, before the sum over broadcast dimensions. Nothing accumulates. NaN propagates through `Max` and `Min`;
//! on a tie each side gets half of the gradient.

use phalanx_ir::names;

use crate::call::{Call, Kernel, Word, no_workspace};
use crate::grid::{Dims, Grid, broadcast_strides, dims_at, padded, words_of};
use crate::spmd::{Launch, by_work};
use crate::{dispatch, word_enum};

word_enum! {
    /// A function of two elements.
    pub enum BinaryKind {
        /// `a + b`.
        Add,
        /// `a - b`.
        Sub,
        /// `a · b`.
        Mul,
        /// `a / b`.
        Div,
        /// The larger one.
        Max,
        /// The smaller one.
        Min,
    }
}

/// How two operands of different shapes meet: the output shape and the element strides of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Broadcast {
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of a; 0 on broadcast dimensions.
    pub a: Dims,
    /// The element strides of b; 0 on broadcast dimensions.
    pub b: Dims,
}

/// The parameters of `binary`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BinaryParams {
    /// The function.
    pub kind: BinaryKind,
    /// The shapes.
    pub broadcast: Broadcast,
}

/// The parameters of `binary_grad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BinaryGradParams {
    /// The function.
    pub kind: BinaryKind,
    /// Whose gradient is wanted: 0 for a, 1 for b.
    pub side: usize,
    /// The shapes.
    pub broadcast: Broadcast,
}

impl Broadcast {
    /// The broadcast of two contiguous operands: trailing dimensions are aligned, ones stretch.
    pub fn new(a: &[usize], b: &[usize]) -> Self {
        let (wide_a, wide_b) = (padded(a), padded(b));
        let dims = std::array::from_fn(|i| if wide_a[i] == 1 { wide_b[i] } else { wide_a[i] });
        Broadcast { dims, a: broadcast_strides(a, dims), b: broadcast_strides(b, dims) }
    }

    fn from_words(words: &[u64]) -> Self {
        Broadcast { dims: dims_at(words, 0), a: dims_at(words, 6), b: dims_at(words, 12) }
    }

    fn grid(self) -> Grid<2> {
        Grid::new(self.dims, [self.a, self.b])
    }
}

impl BinaryParams {
    /// The parameter words of these settings.
    pub fn to_words(self) -> Vec<u64> {
        let Broadcast { dims, a, b } = self.broadcast;
        words_of(&[self.kind.to_word()], &[dims, a, b])
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        BinaryParams { kind: Word::from_word(words[0]), broadcast: Broadcast::from_words(&words[1..]) }
    }
}

impl BinaryGradParams {
    /// The parameter words of these settings.
    pub fn to_words(self) -> Vec<u64> {
        let Broadcast { dims, a, b } = self.broadcast;
        words_of(&[self.kind.to_word(), self.side as u64], &[dims, a, b])
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        let (kind, side) = (Word::from_word(words[0]), words[1] as usize);
        BinaryGradParams { kind, side, broadcast: Broadcast::from_words(&words[2..]) }
    }
}

/// `y[i] = f(a[..], b[..])`.
pub fn binary_reference(y: &mut [f32], a: &[f32], b: &[f32], params: BinaryParams) {
    let grid = params.broadcast.grid();
    for (i, y) in y[..grid.len()].iter_mut().enumerate() {
        let [at_a, at_b] = grid.offsets(i);
        let (a, b) = (a[at_a], b[at_b]);
        *y = match params.kind {
            BinaryKind::Add => a + b,
            BinaryKind::Sub => a - b,
            BinaryKind::Mul => a * b,
            BinaryKind::Div => a / b,
            BinaryKind::Max => larger(a, b),
            BinaryKind::Min => -larger(-a, -b),
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
            (BinaryKind::Add, _) | (BinaryKind::Sub, 0) => dy,
            (BinaryKind::Sub, _) => -dy,
            (BinaryKind::Mul, 0) => dy * b,
            (BinaryKind::Mul, _) => dy * a,
            (BinaryKind::Div, 0) => dy / b,
            (BinaryKind::Div, _) => -dy * (a / b) / b,
            (BinaryKind::Max, 0) | (BinaryKind::Min, 1) => dy * lead(a, b),
            (BinaryKind::Max, _) | (BinaryKind::Min, _) => dy * lead(b, a),
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
pub(crate) fn combine(kind: BinaryKind, y: &mut [f32], a: &[f32], b: &[f32]) {
    let row = Grid::row(y.len());
    apply(y, a, b, kind, &row, 0);
}

/// `d[i] = dy[i] · ∂f/∂side (a[i], b[i])` on the calling core.
pub(crate) fn combine_grad(which: (BinaryKind, usize), d: &mut [f32], ab: Operands<'_>, dy: &[f32]) {
    let row = Grid::row(d.len());
    apply_grad(d, dy, ab, which, (&row, 0));
}

dispatch! {
    fn apply(y: &mut [f32], a: &[f32], b: &[f32], kind: BinaryKind, grid: &Grid<2>, first: usize) {
        match kind {
            BinaryKind::Add => zip(y, None, (a, b), (grid, first), |_, a, b| a + b),
            BinaryKind::Sub => zip(y, None, (a, b), (grid, first), |_, a, b| a - b),
            BinaryKind::Mul => zip(y, None, (a, b), (grid, first), |_, a, b| a * b),
            BinaryKind::Div => zip(y, None, (a, b), (grid, first), |_, a, b| a / b),
            BinaryKind::Max => zip(y, None, (a, b), (grid, first), |_, a, b| larger(a, b)),
            BinaryKind::Min => zip(y, None, (a, b), (grid, first), |_, a, b| -larger(-a, -b)),
        }
    }
}

pub(crate) type Operands<'a> = (&'a [f32], &'a [f32]);
/// A grid and the output element at which a part starts.
type Place<'a> = (&'a Grid<2>, usize);

dispatch! {
    fn apply_grad(d: &mut [f32], dy: &[f32], ab: Operands<'_>, which: (BinaryKind, usize), place: Place<'_>) {
        match which {
            (BinaryKind::Add, _) | (BinaryKind::Sub, 0) => d.copy_from_slice(dy),
            (BinaryKind::Sub, _) => zip(d, Some(dy), ab, place, |dy, _, _| -dy),
            (BinaryKind::Mul, 0) => zip(d, Some(dy), ab, place, |dy, _, b| dy * b),
            (BinaryKind::Mul, _) => zip(d, Some(dy), ab, place, |dy, a, _| dy * a),
            (BinaryKind::Div, 0) => zip(d, Some(dy), ab, place, |dy, _, b| dy / b),
            (BinaryKind::Div, _) => zip(d, Some(dy), ab, place, |dy, a, b| -dy * (a / b) / b),
            (BinaryKind::Max, 0) | (BinaryKind::Min, 1) => zip(d, Some(dy), ab, place, |dy, a, b| dy * lead(a, b)),
            (BinaryKind::Max, _) | (BinaryKind::Min, _) => zip(d, Some(dy), ab, place, |dy, a, b| dy * lead(b, a)),
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

fn call_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    binary_reference(y, call.read(0), call.read(1), BinaryParams::from_words(call.params));
}

fn call_fast(call: &mut Call<'_>) {
    let y = call.write(0);
    binary(y, call.read(0), call.read(1), BinaryParams::from_words(call.params), &mut call.launch);
}

fn call_grad_reference(call: &mut Call<'_>) {
    let (d, params) = (call.write(0), BinaryGradParams::from_words(call.params));
    binary_grad_reference(d, call.read(0), call.read(1), call.read(2), params);
}

fn call_grad_fast(call: &mut Call<'_>) {
    let (d, params) = (call.write(0), BinaryGradParams::from_words(call.params));
    binary_grad(d, call.read(0), call.read(1), call.read(2), params, &mut call.launch);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: None,
        work: None,
        name: "binary",
        arguments: |_| names!(a, b => y),
        fast: call_fast,
        reference: call_reference,
        blocks: |params, cores| by_work(BinaryParams::from_words(params).broadcast.grid().len(), cores),
        workspace: no_workspace,
    },
    Kernel {
        task: None,
        work: None,
        name: "binary_grad",
        arguments: |_| names!(a, b, dy => d),
        fast: call_grad_fast,
        reference: call_grad_reference,
        blocks: |params, cores| by_work(BinaryGradParams::from_words(params).broadcast.grid().len(), cores),
        workspace: no_workspace,
    },
];

#[cfg(test)]
mod tests;
