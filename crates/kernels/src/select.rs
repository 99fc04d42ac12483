//! Elements chosen by a condition: `where` and its gradient.
//!
//! `where` reads c (bool), a and b, all stretched to the shape of y, and writes y: a where c holds, else b. `where_grad`
//! reads c and dy and writes d in the shape of dy, or adds to it if `accumulate`: the gradient of a (side 0) or b (side
//! 1), dy where that was chosen, else 0. It selects and never multiplies: what is not chosen does not show, infinite or not.

use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, Grid, broadcast_strides, padded};
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
/// The parameters of `where`.
pub struct WhereParams {
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of c, a and b; 0 on stretched dimensions.
    pub strides: [Dims; 3],
}}

params! {
/// The parameters of `where_grad`.
pub struct WhereGradParams {
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of c; 0 on stretched dimensions.
    pub strides: Dims,
    /// Whose gradient is wanted: 0 for a, 1 for b.
    pub side: usize,
    /// Whether d is added to.
    pub accumulate: bool,
}}

impl WhereParams {
    /// The choice between contiguous tensors of these shapes, into one of shape `y`.
    pub fn new(shapes: [&[usize]; 3], y: &[usize]) -> Self {
        let dims = padded(y);
        WhereParams { dims, strides: shapes.map(|shape| broadcast_strides(shape, dims)) }
    }
}

impl WhereGradParams {
    /// The gradient of `side` for a condition of this shape and a result of shape `y`.
    pub fn new(condition: &[usize], y: &[usize], side: usize) -> Self {
        let dims = padded(y);
        WhereGradParams { dims, strides: broadcast_strides(condition, dims), side, accumulate: false }
    }
}

/// `y[i] = if c[..] { a[..] } else { b[..] }`.
pub fn where_reference(y: &mut [f32], c: &[u8], a: &[f32], b: &[f32], params: WhereParams) {
    let grid = Grid::new(params.dims, params.strides);
    for (i, y) in y[..grid.len()].iter_mut().enumerate() {
        let [at_c, at_a, at_b] = grid.offsets(i);
        *y = if c[at_c] != 0 { a[at_a] } else { b[at_b] };
    }
}

/// The fast version of [`where_reference`].
pub fn select(y: &mut [f32], c: &[u8], a: &[f32], b: &[f32], params: WhereParams, launch: &mut Launch<'_>) {
    let grid = Grid::new(params.dims, params.strides);
    let steps = grid.row_strides();
    launch.for_each_part(&mut y[..grid.len()], 16, |first, y| {
        let len = y.len();
        grid.for_each_piece(first, len, |part, [at_c, at_a, at_b]| {
            select_row(&mut y[part], &c[at_c..], (&a[at_a..], &b[at_b..]), steps);
        });
    });
}

dispatch! {
    fn select_row(y: &mut [f32], c: &[u8], ab: (&[f32], &[f32]), steps: [usize; 3]) {
        let (n, (a, b)) = (y.len(), ab);
        match steps {
            [1, 1, 1] => {
                let rows = y.iter_mut().zip(&c[..n]).zip(&a[..n]).zip(&b[..n]);
                rows.for_each(|(((y, c), a), b)| *y = if *c != 0 { *a } else { *b });
            }
            [1, 1, 0] => {
                let (rows, b) = (y.iter_mut().zip(&c[..n]).zip(&a[..n]), b[0]);
                rows.for_each(|((y, c), a)| *y = if *c != 0 { *a } else { b });
            }
            [1, 0, 1] => {
                let (rows, a) = (y.iter_mut().zip(&c[..n]).zip(&b[..n]), a[0]);
                rows.for_each(|((y, c), b)| *y = if *c != 0 { a } else { *b });
            }
            [in_c, in_a, in_b] => {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = if c[i * in_c] != 0 { a[i * in_a] } else { b[i * in_b] };
                }
            }
        }
    }
}

/// `d[i] = if c[..] is the side's { dy[i] } else { 0 }`.
pub fn where_grad_reference(d: &mut [f32], c: &[u8], dy: &[f32], params: WhereGradParams) {
    let grid = Grid::new(params.dims, [params.strides]);
    for i in 0..grid.len() {
        let [at] = grid.offsets(i);
        let own = if (c[at] != 0) == (params.side == 0) { dy[i] } else { 0.0 };
        d[i] = if params.accumulate { d[i] + own } else { own };
    }
}

/// The fast version of [`where_grad_reference`].
pub fn where_grad(d: &mut [f32], c: &[u8], dy: &[f32], params: WhereGradParams, launch: &mut Launch<'_>) {
    let grid = Grid::new(params.dims, [params.strides]);
    let [step] = grid.row_strides();
    let which = (params.side == 0, params.accumulate);
    launch.for_each_part(&mut d[..grid.len()], 16, |first, d| {
        let (len, dy) = (d.len(), &dy[first..first + d.len()]);
        grid.for_each_piece(first, len, |part, [at]| {
            grad_row(&mut d[part.clone()], &c[at..], &dy[part], step, which);
        });
    });
}

dispatch! {
    fn grad_row(d: &mut [f32], c: &[u8], dy: &[f32], step: usize, which: (bool, bool)) {
        let (wanted, accumulate) = which;
        for (i, (d, &dy)) in d.iter_mut().zip(dy).enumerate() {
            let own = if (c[i * step] != 0) == wanted { dy } else { 0.0 };
            *d = if accumulate { *d + own } else { own };
        }
    }
}

impl Kernel for WhereParams {
    signature!("where": c, a, b => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let [c, a, b] = [task.read(0)?, task.read(1)?, task.read(2)?].map(|shape| shape.dims());
        Ok(WhereParams::new([c, a, b], task.write(0)?.dims()))
    }

    fn reference(&self, call: &mut Call<'_>) {
        where_reference(call.write(0), call.read(0), call.read(1), call.read(2), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        select(call.write(0), call.read(0), call.read(1), call.read(2), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.dims.iter().product(), cores)
    }
}

impl Kernel for WhereGradParams {
    signature!("where_grad": c, dy => d);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let params = WhereGradParams::new(task.read(0)?.dims(), task.write(0)?.dims(), task.attr("side")?);
        Ok(WhereGradParams { accumulate: task.is("accumulate"), ..params })
    }

    fn reference(&self, call: &mut Call<'_>) {
        where_grad_reference(call.write(0), call.read(0), call.read(1), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        where_grad(call.write(0), call.read(0), call.read(1), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.dims.iter().product(), cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::values;
    use crate::{Team, Words};

    const SHAPES: [([&[usize]; 3], &[usize]); 5] = [
        ([&[33], &[33], &[33]], &[33]),
        ([&[3, 1], &[5], &[3, 5]], &[3, 5]),
        ([&[5], &[], &[3, 5]], &[3, 5]),
        ([&[2, 3, 5], &[2, 3, 5], &[]], &[2, 3, 5]),
        ([&[], &[7, 1], &[1, 9]], &[7, 9]),
    ];

    fn condition(n: usize) -> Vec<u8> {
        (0..n).map(|i| u8::from(i * i % 7 < 3)).collect()
    }

    #[test]
    fn fast_equals_reference_for_every_stretch() {
        for (shapes, y) in SHAPES {
            let [n_c, n_a, n_b] = shapes.map(|shape| shape.iter().product::<usize>());
            let (c, a, b) = (condition(n_c), values(n_a, 1), values(n_b, 2));
            let params = WhereParams::new(shapes, y);
            assert_eq!(WhereParams::from_words(&params.to_words()), params);
            let n: usize = y.iter().product();
            let mut want = vec![f32::NAN; n];
            where_reference(&mut want, &c, &a, &b, params);
            let dy = values(n, 3);
            for cores in 1..=4 {
                let team = Team::new(cores);
                let mut got = vec![f32::NAN; n];
                select(&mut got, &c, &a, &b, params, &mut Launch::plain(&team));
                assert_eq!(got, want, "{shapes:?} on {cores} cores");
                for (side, accumulate) in [(0, false), (1, false), (0, true), (1, true)] {
                    let params = WhereGradParams { accumulate, ..WhereGradParams::new(shapes[0], y, side) };
                    let (mut got, mut want) = (vec![0.5; n], vec![0.5; n]);
                    where_grad(&mut got, &c, &dy, params, &mut Launch::plain(&team));
                    where_grad_reference(&mut want, &c, &dy, params);
                    assert_eq!(got, want, "gradient of {side} for {shapes:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_chosen_does_not_show() {
        let (a, b) = ([f32::NAN, 1.0], [2.0, f32::INFINITY]);
        let params = WhereParams::new([&[2]; 3], &[2]);
        let mut y = [0.0; 2];
        where_reference(&mut y, &[0, 1], &a, &b, params);
        assert_eq!(y, [2.0, 1.0]);
        where_grad_reference(&mut y, &[0, 1], &[f32::INFINITY, 3.0], WhereGradParams::new(&[2], &[2], 0));
        assert_eq!(y, [0.0, 3.0]);
    }
}
