//! Comparisons: reads a and b of one element type, stretched to the shape of y, or a alone and a number; writes y (bool).
//! Nothing accumulates. A comparison with NaN is false, except `ne`.

use bytemuck::Pod;
use phalanx_ir::tasks::TaskView;
use phalanx_ir::{CompareKind, DType, Names, names};

use crate::grid::{Dims, Grid, broadcast_strides, padded};
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, params};

params! {
/// The parameters of `compare`.
pub struct CompareParams {
    /// The comparison.
    pub kind: CompareKind,
    /// The element type of a and b.
    pub dtype: DType,
    /// Whether b is the number below instead of a tensor.
    pub against_scalar: bool,
    /// That number.
    pub scalar: f64,
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of a and b; 0 on stretched dimensions.
    pub strides: [Dims; 2],
}}

impl CompareParams {
    /// The comparison of contiguous tensors of these shapes, or of the first with a number.
    pub fn new(kind: CompareKind, dtype: DType, a: &[usize], b: Result<&[usize], f64>, y: &[usize]) -> Self {
        let (dims, against_scalar, scalar) = (padded(y), b.is_err(), b.err().unwrap_or(0.0));
        let b = b.unwrap_or_default();
        let strides = [a, b].map(|shape| broadcast_strides(shape, dims));
        CompareParams { kind, dtype, against_scalar, scalar, dims, strides }
    }

    /// The right side as elements, if it is the number.
    fn number(self) -> ([f32; 1], [i64; 1]) {
        ([self.scalar as f32], [self.scalar as i64])
    }
}

/// The operands of a comparison, by type.
#[derive(Clone, Copy)]
enum Sides<'a> {
    F32(&'a [f32], &'a [f32]),
    I32(&'a [i32], &'a [i32]),
    I64(&'a [i64], &'a [i64]),
    Bool(&'a [u8], &'a [u8]),
    /// Small integers against a number that may be larger.
    I32To(&'a [i32], i64),
    BoolTo(&'a [u8], i64),
}

/// `y[i] = kind(a[..], b[..])`.
fn compare_reference(y: &mut [u8], sides: Sides<'_>, params: CompareParams) {
    let grid = Grid::new(params.dims, params.strides);
    for (i, y) in y[..grid.len()].iter_mut().enumerate() {
        let [at_a, at_b] = grid.offsets(i);
        let holds = match sides {
            Sides::F32(a, b) => params.kind.holds(a[at_a], b[at_b]),
            Sides::I32(a, b) => params.kind.holds(a[at_a], b[at_b]),
            Sides::I64(a, b) => params.kind.holds(a[at_a], b[at_b]),
            Sides::Bool(a, b) => params.kind.holds(u8::from(a[at_a] != 0), u8::from(b[at_b] != 0)),
            Sides::I32To(a, b) => params.kind.holds(i64::from(a[at_a]), b),
            Sides::BoolTo(a, b) => params.kind.holds(i64::from(a[at_a] != 0), b),
        };
        *y = u8::from(holds);
    }
}

/// The fast version of [`compare_reference`].
fn compare(y: &mut [u8], sides: Sides<'_>, params: CompareParams, launch: &mut Launch<'_>) {
    let grid = Grid::new(params.dims, params.strides);
    launch.for_each_part(&mut y[..grid.len()], 64, |first, y| match sides {
        Sides::F32(a, b) => part(y, (a, b), (&grid, first), |a, b| params.kind.holds(a, b)),
        Sides::I32(a, b) => part(y, (a, b), (&grid, first), |a, b| params.kind.holds(a, b)),
        Sides::I64(a, b) => part(y, (a, b), (&grid, first), |a, b| params.kind.holds(a, b)),
        Sides::Bool(a, b) => {
            part(y, (a, b), (&grid, first), |a, b| params.kind.holds(u8::from(a != 0), u8::from(b != 0)))
        }
        Sides::I32To(a, b) => part(y, (a, &[b]), (&grid, first), |a, b| params.kind.holds(i64::from(a), b)),
        Sides::BoolTo(a, b) => {
            part(y, (a, &[b]), (&grid, first), |a, b| params.kind.holds(i64::from(a != 0), b))
        }
    });
}

/// One part of the output.
#[inline(always)]
fn part<T: Pod, U: Pod>(
    y: &mut [u8],
    (a, b): (&[T], &[U]),
    (grid, first): (&Grid<2>, usize),
    holds: impl Fn(T, U) -> bool,
) {
    let (len, [in_a, in_b]) = (y.len(), grid.row_strides());
    grid.for_each_piece(first, len, |part, [at_a, at_b]| {
        let (a, b) = (&a[at_a..], &b[at_b..]);
        for (i, y) in y[part].iter_mut().enumerate() {
            *y = u8::from(holds(a[i * in_a], b[i * in_b]));
        }
    });
}

impl CompareParams {
    /// The operands of a call; `number` is the right side as elements.
    fn sides<'a>(&self, call: &Call<'a>, number: &'a ([f32; 1], [i64; 1])) -> Sides<'a> {
        let (float, integer) = number;
        match (self.dtype, self.against_scalar) {
            (DType::I32, true) => Sides::I32To(call.read(0), integer[0]),
            (DType::I32, false) => Sides::I32(call.read(0), call.read(1)),
            (DType::I64, true) => Sides::I64(call.read(0), integer),
            (DType::I64, false) => Sides::I64(call.read(0), call.read(1)),
            (DType::Bool, true) => Sides::BoolTo(call.read(0), integer[0]),
            (DType::Bool, false) => Sides::Bool(call.read(0), call.read(1)),
            (_, true) => Sides::F32(call.read(0), float),
            (_, false) => Sides::F32(call.read(0), call.read(1)),
        }
    }
}

impl Kernel for CompareParams {
    const NAME: &'static str = "compare";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (a, y) = (task.source(0)?, task.write(0)?.dims());
        let b = match task.sources().count() {
            1 => Err(task.attr("scalar")?),
            _ => Ok(task.read(1)?.dims()),
        };
        Ok(CompareParams::new(task.attr("kind")?, a.ty.dtype, a.ty.shape.dims(), b, y))
    }

    fn arguments(&self) -> Names {
        names!(a, b if !self.against_scalar => y)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let number = self.number();
        compare_reference(call.write(0), self.sides(call, &number), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let number = self.number();
        compare(call.write(0), self.sides(call, &number), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.dims.iter().product::<usize>() as f64, false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.dims.iter().product(), cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Team, Words};

    /// Both versions on 1 to 4 cores.
    fn check(sides: Sides<'_>, params: CompareParams, want: &[u8]) {
        assert_eq!(CompareParams::from_words(&params.to_words()), params);
        let mut y = vec![9; want.len()];
        compare_reference(&mut y, sides, params);
        assert_eq!(y, want, "{params:?}");
        for cores in 1..=4 {
            let (team, mut y) = (Team::new(cores), vec![9; want.len()]);
            compare(&mut y, sides, params, &mut Launch::plain(&team));
            assert_eq!(y, want, "{params:?} on {cores} cores");
        }
    }

    #[test]
    fn every_comparison_of_floats() {
        let (a, b) = ([1.0, 2.0, 3.0, f32::NAN, -0.0], [2.0, 2.0, 2.0, 2.0, 0.0]);
        let expected = [
            (CompareKind::Eq, [0, 1, 0, 0, 1]),
            (CompareKind::Ne, [1, 0, 1, 1, 0]),
            (CompareKind::Lt, [1, 0, 0, 0, 0]),
            (CompareKind::Le, [1, 1, 0, 0, 1]),
            (CompareKind::Gt, [0, 0, 1, 0, 0]),
            (CompareKind::Ge, [0, 1, 1, 0, 1]),
        ];
        for (kind, want) in expected {
            let params = CompareParams::new(kind, DType::F32, &[5], Ok(&[5]), &[5]);
            check(Sides::F32(&a, &b), params, &want);
        }
    }

    #[test]
    fn numbers_and_stretched_sides() {
        let against =
            |dtype, scalar, y: &[usize]| CompareParams::new(CompareKind::Le, dtype, y, Err(scalar), y);
        check(Sides::F32(&[0.1, 0.2], &[0.1]), against(DType::F32, 0.1, &[2]), &[1, 0]);
        check(Sides::I64(&[1 << 40, -100], &[1 << 40]), against(DType::I64, 2f64.powi(40), &[2]), &[1, 1]);
        check(Sides::I32To(&[7, i32::MAX], 1 << 33), against(DType::I32, 2f64.powi(33), &[2]), &[1, 1]);
        check(Sides::BoolTo(&[0, 1], 0), against(DType::Bool, 0.0, &[2]), &[1, 0]);
        let params = CompareParams::new(CompareKind::Lt, DType::I32, &[2, 1], Ok(&[3]), &[2, 3]);
        check(Sides::I32(&[0, 1], &[0, 1, 2]), params, &[0, 1, 1, 0, 0, 1]);
        for (kind, want) in [(CompareKind::And, [0, 0, 0, 1]), (CompareKind::Or, [0, 1, 1, 1])] {
            let params = CompareParams::new(kind, DType::Bool, &[4], Ok(&[4]), &[4]);
            check(Sides::Bool(&[0, 0, 7, 1], &[0, 1, 0, 2]), params, &want);
        }
    }
}
