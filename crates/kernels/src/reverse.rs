//! Elements in reverse order along some axes. Reads x, writes y.

use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, RANK, padded};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, params, signature};

params! {
/// The parameters of `reverse`.
pub struct ReverseParams {
    /// The shape, padded with leading ones.
    pub dims: Dims,
    /// Which dimensions are reversed, by a one.
    pub turned: Dims,
}}

impl ReverseParams {
    /// The reversal of a tensor of `shape` along `axes`.
    pub fn new(shape: &[usize], axes: &[usize]) -> Self {
        let mut turned = [0; RANK];
        axes.iter().for_each(|axis| turned[axis + RANK - shape.len()] = 1);
        ReverseParams { dims: padded(shape), turned }
    }

    /// Where element `at` of one side lies on the other, if only dimensions before `inner` count.
    fn place(self, mut at: usize, inner: usize) -> usize {
        let (mut place, mut stride) = (0, self.dims[inner..].iter().product::<usize>());
        at /= stride;
        for dim in (0..inner).rev() {
            let index = at % self.dims[dim];
            at /= self.dims[dim];
            place += stride * if self.turned[dim] == 1 { self.dims[dim] - 1 - index } else { index };
            stride *= self.dims[dim];
        }
        place
    }
}

/// Element by element.
pub fn reverse_reference(y: &mut [f32], x: &[f32], params: ReverseParams) {
    for (at, y) in y.iter_mut().enumerate() {
        *y = x[params.place(at, RANK)];
    }
}

/// The fast version of [`reverse_reference`]: row by row.
pub fn reverse(y: &mut [f32], x: &[f32], params: ReverseParams, launch: &mut Launch<'_>) {
    let row = params.dims[RANK - 1];
    launch.for_each_part(y, row, |first, y| {
        for (number, y) in y.chunks_exact_mut(row).enumerate() {
            let x = &x[params.place(first + number * row, RANK - 1)..][..row];
            y.copy_from_slice(x);
            if params.turned[RANK - 1] == 1 {
                y.reverse();
            }
        }
    });
}

impl Kernel for ReverseParams {
    signature!("reverse": x => y by reverse_reference, reverse);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(ReverseParams::new(task.read(0)?.dims(), &task.attr::<Vec<usize>>("axes")?))
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

    #[test]
    fn a_matrix_is_turned_along_each_axis() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        for (axes, expected) in [
            (&[0][..], [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]),
            (&[1], [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]),
            (&[0, 1], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]),
            (&[], x),
        ] {
            let mut y = [0.0; 6];
            reverse_reference(&mut y, &x, ReverseParams::new(&[2, 3], axes));
            assert_eq!(y, expected, "{axes:?}");
        }
    }

    #[test]
    fn any_number_of_cores_gives_what_the_reference_gives() {
        let x = values(3 * 5 * 7, 1);
        for axes in [&[0][..], &[1], &[2], &[0, 2], &[0, 1, 2]] {
            let params = ReverseParams::new(&[3, 5, 7], axes);
            assert_eq!(ReverseParams::from_words(&params.to_words()), params);
            let mut expected = vec![0.0; x.len()];
            reverse_reference(&mut expected, &x, params);
            for cores in 1..=4 {
                let mut y = vec![0.0; x.len()];
                reverse(&mut y, &x, params, &mut Launch::plain(&Team::new(cores)));
                assert_eq!(y, expected, "{axes:?} on {cores} cores");
            }
        }
    }
}
