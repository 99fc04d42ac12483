//! Elements chosen by an index along one axis, and the gradient.
//!
//! `gather` reads x and index and writes y, which has the shape of the index: along axis 1 of three,
//! `y[i, j, k] = x[i, index[i, j, k], k]`. `gather_grad` reads index and dy and writes dx (accumulates on request): elements
//! that were chosen several times get the sum, from zero, in the order of the index, whatever the other axes are cut into.

use phalanx_ir::Shape;
use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, RANK, contiguous, padded};
use crate::ids::Ids;
use crate::spmd::{Launch, Parts, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

params! {
/// The parameters of `gather`.
pub struct GatherParams {
    /// The axis, counted with the padding.
    pub axis: usize,
    /// Whether indices have 32 bits.
    pub narrow: bool,
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
        /// Whether dx is added to.
        pub accumulate: bool,
    }
}

/// The elements along the axis, at one place of all others.
struct Line {
    /// The first of them in x.
    first: usize,
    /// The first of those that choose from them in the index, if it has that place.
    chosen: Option<usize>,
}

impl GatherParams {
    /// A choice along `axis` of a tensor of shape `whole`.
    pub fn new(axis: usize, whole: &[usize], index: &[usize]) -> Self {
        let axis = axis + RANK - whole.len();
        GatherParams { axis, narrow: false, whole: padded(whole), index: padded(index) }
    }

    /// The parameters of a task on a whole tensor of this shape whose indices are read in `slot`.
    fn of(task: &TaskView<'_>, whole: &Shape, slot: usize) -> Result<Self, String> {
        let params = GatherParams::new(task.attr("axis")?, whole.dims(), task.read(slot)?.dims());
        Ok(GatherParams { narrow: task.is_i32(slot)?, ..params })
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

    /// How many lines x has.
    fn lines(self) -> usize {
        self.whole.iter().product::<usize>() / self.whole[self.axis]
    }

    fn line(self, number: usize) -> Line {
        let [whole, index] = [self.whole, self.index].map(contiguous);
        let (mut rest, mut line) = (number, Line { first: 0, chosen: Some(0) });
        for dim in (0..RANK).rev().filter(|&dim| dim != self.axis) {
            let own = rest % self.whole[dim];
            rest /= self.whole[dim];
            line.first += own * whole[dim];
            line.chosen =
                line.chosen.filter(|_| own < self.index[dim]).map(|chosen| chosen + own * index[dim]);
        }
        line
    }

    /// Adds to `sums`, one for each element of a line, what they gave.
    fn add_line(self, sums: &mut [f32], line: &Line, ids: Ids<'_>, dy: &[f32]) {
        let Some(first) = line.chosen else { return };
        let step = contiguous(self.index)[self.axis];
        for at in (0..self.index[self.axis]).map(|number| first + number * step) {
            sums[ids.row(at, sums.len())] += dy[at];
        }
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

/// Line by line.
pub fn gather_grad_reference(dx: &mut [f32], ids: Ids<'_>, dy: &[f32], params: GatherGradParams) {
    let GatherGradParams { forward, accumulate } = params;
    let step = contiguous(forward.whole)[forward.axis];
    for line in (0..forward.lines()).map(|number| forward.line(number)) {
        let mut sums = vec![0.0; forward.whole[forward.axis]];
        forward.add_line(&mut sums, &line, ids, dy);
        for (element, sum) in sums.into_iter().enumerate() {
            let dx = &mut dx[line.first + element * step];
            *dx = if accumulate { *dx + sum } else { sum };
        }
    }
}

/// The fast version of [`gather_grad_reference`].
pub fn gather_grad(
    dx: &mut [f32],
    ids: Ids<'_>,
    dy: &[f32],
    params: GatherGradParams,
    launch: &mut Launch<'_>,
) {
    let GatherGradParams { forward, accumulate } = params;
    let step = contiguous(forward.whole)[forward.axis];
    let dx = Parts::new(dx);
    launch.run(|mut block| {
        let sums = &mut block.own::<f32>()[..forward.whole[forward.axis]];
        for line in block.share(forward.lines()).map(|number| forward.line(number)) {
            sums.fill(0.0);
            forward.add_line(sums, &line, ids, dy);
            for (element, sum) in sums.iter().enumerate() {
                let at = line.first + element * step;
                // SAFETY: a line belongs to one block, and an element to one line.
                let dx = unsafe { dx.part(at..at + 1) };
                dx[0] = if accumulate { dx[0] + sum } else { *sum };
            }
        }
    });
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
        let forward = GatherParams::of(task, task.write(0)?, 0)?;
        Ok(GatherGradParams { forward, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.forward.narrow);
        gather_grad_reference(call.write(0), ids, call.read(1), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.forward.narrow);
        gather_grad(call.write(0), ids, call.read(1), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(1), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.forward.whole.iter().product(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::of::<f32>(0, self.forward.whole[self.forward.axis])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, Input, indices, values};
    use crate::{Team, Words};

    #[test]
    fn columns_are_chosen_row_by_row() {
        let (x, ids) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 2, 0, 1]);
        let params = GatherParams::new(1, &[2, 3], &[2, 2]);
        let mut y = [0.0; 4];
        gather_reference(&mut y, &x, Ids::I64(&ids), params);
        assert_eq!(y, [3.0, 3.0, 4.0, 5.0]);
        let grad = |accumulate| GatherGradParams { forward: params, accumulate };
        let mut dx = [10.0; 6];
        gather_grad_reference(&mut dx, Ids::I64(&ids), &[1.0, 2.0, 4.0, 8.0], grad(true));
        assert_eq!(dx, [10.0, 10.0, 13.0, 14.0, 18.0, 10.0]);
        gather_grad_reference(&mut dx, Ids::I32(&[2, 2, 0, 1]), &[1.0, 2.0, 4.0, 8.0], grad(false));
        assert_eq!(dx, [0.0, 0.0, 3.0, 4.0, 8.0, 0.0]);
    }

    /// What is added is the whole sum, so that the bits are those of a sum that is added later.
    #[test]
    fn a_sum_is_added_at_once() {
        let params = GatherParams::new(0, &[1], &[2]);
        let mut dx = [1.0];
        let small = f32::EPSILON / 2.0;
        let grad = GatherGradParams { forward: params, accumulate: true };
        gather_grad_reference(&mut dx, Ids::I64(&[0, 0]), &[small, small], grad);
        assert_eq!(dx, [1.0 + f32::EPSILON]);
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
            for accumulate in [false, true] {
                let params = GatherGradParams { forward: params, accumulate };
                let case = Case::new("gather_grad", params.to_words()).read(Input::ids(&ids, false));
                let case = case.read(values(ids.len(), 3)).write(values(x.len(), 4));
                case.check_reference_bits();
                case.check_bits();
            }
        }
    }
}
