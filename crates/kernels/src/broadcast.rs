//! Broadcast: repeats a tensor along some dimensions. Reads x, writes y.

use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, Grid, broadcast_strides, padded};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, params, signature};

params! {
/// The parameters of `broadcast`.
pub struct BroadcastParams {
    /// The output shape, padded with leading ones.
    pub dims: Dims,
    /// The element strides of x; 0 on broadcast dimensions.
    pub strides: Dims,
}}

impl BroadcastParams {
    /// The broadcast of a contiguous tensor of shape `from` to shape `to`, trailing dimensions aligned.
    pub fn new(from: &[usize], to: &[usize]) -> Self {
        let dims = padded(to);
        BroadcastParams { dims, strides: broadcast_strides(from, dims) }
    }
}

/// `y[i] = x[..]`.
pub fn broadcast_reference(y: &mut [f32], x: &[f32], params: BroadcastParams) {
    let grid = Grid::new(params.dims, [params.strides]);
    for (i, y) in y[..grid.len()].iter_mut().enumerate() {
        let [at] = grid.offsets(i);
        *y = x[at];
    }
}

/// The fast version of [`broadcast_reference`].
pub fn broadcast(y: &mut [f32], x: &[f32], params: BroadcastParams, launch: &mut Launch<'_>) {
    let grid = Grid::new(params.dims, [params.strides]);
    let [step] = grid.row_strides();
    launch.for_each_part(&mut y[..grid.len()], 16, |first, y| {
        let len = y.len();
        grid.for_each_piece(first, len, |part, [at]| {
            let y = &mut y[part];
            match step {
                0 => y.fill(x[at]),
                1 => y.copy_from_slice(&x[at..][..y.len()]),
                _ => y.iter_mut().enumerate().for_each(|(i, y)| *y = x[at + i * step]),
            }
        });
    });
}

impl Kernel for BroadcastParams {
    signature!("broadcast": x => y by broadcast_reference, broadcast);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(BroadcastParams::new(task.read(0)?.dims(), task.write(0)?.dims()))
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.dims.iter().product(), cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;
    use crate::Words;
    use crate::samples::{Case, values};

    fn case(from: &[usize], to: &[usize]) -> Case {
        let params = BroadcastParams::new(from, to);
        Case::new("broadcast", params.to_words()).read(values(from.iter().product(), 1)).write(vec![
            9.0;
            to.iter()
                .product(
                )
        ])
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        let shapes: [(&[usize], &[usize]); 8] = [
            (&[], &[17]),
            (&[5], &[3, 5]),
            (&[3, 1], &[3, 33]),
            (&[2, 1, 3], &[2, 7, 3]),
            (&[1, 15, 1, 2], &[16, 15, 3, 2]),
            (&[4, 4], &[4, 4]),
            (&[257], &[100, 257]),
            (&[1, 2, 1, 2, 1, 2], &[3, 2, 3, 2, 3, 2]),
        ];
        for (from, to) in shapes {
            case(from, to).check(0.0);
        }
        case(&[1, 15, 1, 2], &[160, 15, 30, 2]).check_bits();
    }

    #[test]
    fn strides_other_than_zero_and_one_are_followed() {
        let params = BroadcastParams { dims: padded(&[2, 3]), strides: padded(&[1, 2]) };
        let (mut y, mut want) = ([0.0; 6], [0.0; 6]);
        let x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        broadcast(&mut y, &x, params, &mut Launch::plain(&Team::new(1)));
        broadcast_reference(&mut want, &x, params);
        assert_eq!(y, want);
        assert_eq!(y, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    }
}
