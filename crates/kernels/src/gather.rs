//! Elements chosen by an index along one axis, and the gradient.
//!
//! `gather` reads x and index and writes y, which has the shape of the index: along axis 1 of three,
//! `y[i, j, k] = x[i, index[i, j, k], k]`. `gather_grad` reads index and dy and writes dx, or adds to it if `accumulate`:
//! elements that were chosen several times get the sum in the order of the index, whatever the other axes are cut into.

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{DType, Shape, names};

use crate::call::{Call, Kernel, no_workspace, one_block};
use crate::grid::{Dims, RANK, contiguous, dims_at, padded, words_of};
use crate::ids::Ids;
use crate::spmd::{Launch, by_work};

/// The parameters of `gather` and `gather_grad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherParams {
    /// The axis, counted with the padding.
    pub axis: usize,
    /// Whether indices have 32 bits.
    pub narrow: bool,
    /// Whether dx is added to.
    pub accumulate: bool,
    /// The shape of x, padded with leading ones.
    pub whole: Dims,
    /// The shape of the index.
    pub index: Dims,
}

impl GatherParams {
    /// A choice along `axis` of a tensor of shape `whole`.
    pub fn new(axis: usize, whole: &[usize], index: &[usize]) -> Self {
        let axis = axis + RANK - whole.len();
        GatherParams { axis, narrow: false, accumulate: false, whole: padded(whole), index: padded(index) }
    }

    /// The parameters of a task on a whole tensor of this shape whose indices are read in `slot`.
    fn of(task: &TaskView<'_>, whole: &Shape, slot: usize) -> Result<Vec<u64>, String> {
        let params = GatherParams::new(task.attr("axis")?, whole.dims(), task.read(slot).dims());
        let (narrow, accumulate) = (task.dtype(slot) == DType::I32, task.is("accumulate"));
        Ok(GatherParams { narrow, accumulate, ..params }.to_words())
    }

    /// The parameter words of these settings.
    pub fn to_words(self) -> Vec<u64> {
        let flags = [self.axis as u64, u64::from(self.narrow), u64::from(self.accumulate)];
        words_of(&flags, &[self.whole, self.index])
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        GatherParams {
            axis: words[0] as usize,
            narrow: words[1] != 0,
            accumulate: words[2] != 0,
            whole: dims_at(words, 3),
            index: dims_at(words, 3 + RANK),
        }
    }

    /// Which element of x the index at position `at` chooses.
    fn place(self, ids: Ids<'_>, at: usize) -> usize {
        let (mut rest, mut place) = (at, 0);
        let strides = contiguous(self.whole);
        for dim in (0..RANK).rev() {
            let own = rest % self.index[dim];
            rest /= self.index[dim];
            place += strides[dim] * if dim == self.axis { ids.row(at, self.whole[dim]) } else { own };
        }
        place
    }
}

/// Element by element.
pub fn gather_reference(y: &mut [f32], x: &[f32], ids: Ids<'_>, params: GatherParams) {
    for (at, y) in y.iter_mut().enumerate() {
        *y = x[params.place(ids, at)];
    }
}

/// The fast version of [`gather_reference`].
pub fn gather(y: &mut [f32], x: &[f32], ids: Ids<'_>, params: GatherParams, launch: &mut Launch<'_>) {
    launch.for_each_part(y, 1, |first, y| {
        for (at, y) in y.iter_mut().enumerate() {
            *y = x[params.place(ids, first + at)];
        }
    });
}

/// Element by element, in the order of the index.
pub fn gather_grad(dx: &mut [f32], ids: Ids<'_>, dy: &[f32], params: GatherParams) {
    if !params.accumulate {
        dx.fill(0.0);
    }
    for (at, dy) in dy.iter().enumerate() {
        dx[params.place(ids, at)] += dy;
    }
}

fn call_grad(call: &mut Call<'_>) {
    let params = GatherParams::from_words(call.params);
    let (dx, ids) = (call.write(0), Ids::read(call, 0, params.narrow));
    gather_grad(dx, ids, call.read(1), params);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: Some(|task| GatherParams::of(task, task.read(0), 1)),
        work: Some(|sizes| sizes.work(0.0, false)),
        name: "gather",
        arguments: |_| names!(x, index => y),
        fast: |call: &mut Call<'_>| {
            let params = GatherParams::from_words(call.params);
            let (y, ids) = (call.write(0), Ids::read(call, 1, params.narrow));
            gather(y, call.read(0), ids, params, &mut call.launch);
        },
        reference: |call: &mut Call<'_>| {
            let params = GatherParams::from_words(call.params);
            let (y, ids) = (call.write(0), Ids::read(call, 1, params.narrow));
            gather_reference(y, call.read(0), ids, params);
        },
        blocks: |params, cores| by_work(GatherParams::from_words(params).index.iter().product(), cores),
        workspace: no_workspace,
    },
    Kernel {
        task: Some(|task| GatherParams::of(task, task.write(0), 0)),
        work: Some(|sizes| sizes.work(sizes.operand(1), sizes.is(2))),
        name: "gather_grad",
        arguments: |_| names!(index, dy => dx),
        fast: call_grad,
        reference: call_grad,
        blocks: one_block,
        workspace: no_workspace,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;
    use crate::samples::{indices, values};

    #[test]
    fn columns_are_chosen_row_by_row() {
        let (x, ids) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 2, 0, 1]);
        let params = GatherParams::new(1, &[2, 3], &[2, 2]);
        let mut y = [0.0; 4];
        gather_reference(&mut y, &x, Ids::I64(&ids), params);
        assert_eq!(y, [3.0, 3.0, 4.0, 5.0]);
        let mut dx = [10.0; 6];
        gather_grad(
            &mut dx,
            Ids::I64(&ids),
            &[1.0, 2.0, 4.0, 8.0],
            GatherParams { accumulate: true, ..params },
        );
        assert_eq!(dx, [10.0, 10.0, 13.0, 14.0, 18.0, 10.0]);
        gather_grad(&mut dx, Ids::I32(&[2, 2, 0, 1]), &[1.0, 2.0, 4.0, 8.0], params);
        assert_eq!(dx, [0.0, 0.0, 3.0, 4.0, 8.0, 0.0]);
    }

    #[test]
    fn any_number_of_cores_gives_what_the_reference_gives() {
        let x = values(3 * 5 * 7, 1);
        for (axis, index) in [(0, [9, 5, 7]), (1, [3, 2, 7]), (2, [2, 4, 6])] {
            let params = GatherParams::new(axis, &[3, 5, 7], &index);
            assert_eq!(GatherParams::from_words(&params.to_words()), params);
            let ids = indices(index.iter().product(), [3, 5, 7][axis], 2);
            let mut expected = vec![0.0; ids.len()];
            gather_reference(&mut expected, &x, Ids::I64(&ids), params);
            for cores in 1..=4 {
                let mut y = vec![0.0; ids.len()];
                let team = Team::new(cores);
                gather(&mut y, &x, Ids::I64(&ids), params, &mut Launch::plain(&team));
                assert_eq!(y, expected, "axis {axis} on {cores} cores");
            }
        }
    }
}
