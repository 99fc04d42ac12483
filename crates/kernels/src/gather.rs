//! Elements chosen by an index along one axis, and the gradient.
//!
//! `gather` reads x and index and writes y, which has the shape of the index: along axis 1 of three,
//! `y[i, j, k] = x[i, index[i, j, k], k]`. `gather_grad` reads index and dy and writes dx, or adds to it if `accumulate`:
//! elements that were chosen several times get the sum in the order of the index, whatever the other axes are cut into.

use phalanx_ir::Shape;
use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, RANK, contiguous, padded};
use crate::ids::Ids;
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

params! {
/// The parameters of `gather`.
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
}}

params! {
    /// The parameters of `gather_grad`.
    pub struct GatherGradParams {
        /// Those of the forward.
        pub forward: GatherParams,
    }
}

impl GatherParams {
    /// A choice along `axis` of a tensor of shape `whole`.
    pub fn new(axis: usize, whole: &[usize], index: &[usize]) -> Self {
        let axis = axis + RANK - whole.len();
        GatherParams { axis, narrow: false, accumulate: false, whole: padded(whole), index: padded(index) }
    }

    /// The parameters of a task on a whole tensor of this shape whose indices are read in `slot`.
    fn of(task: &TaskView<'_>, whole: &Shape, slot: usize) -> Result<Self, String> {
        let params = GatherParams::new(task.attr("axis")?, whole.dims(), task.read(slot)?.dims());
        Ok(GatherParams { narrow: task.is_i32(slot)?, accumulate: task.is("accumulate"), ..params })
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

impl Kernel for GatherParams {
    signature!("gather": x, index => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        GatherParams::of(task, task.read(0)?, 1)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.narrow);
        gather_reference(call.write(0), call.read(0), ids, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.narrow);
        gather(call.write(0), call.read(0), ids, *self, &mut call.launch);
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.index.iter().product(), cores)
    }
}

impl Kernel for GatherGradParams {
    signature!("gather_grad": index, dy => dx);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(GatherGradParams { forward: GatherParams::of(task, task.write(0)?, 0)? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.forward.narrow);
        gather_grad(call.write(0), ids, call.read(1), self.forward);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(1), self.forward.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{indices, values};
    use crate::{Team, Words};

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
