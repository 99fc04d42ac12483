//! Sums of squared deviations from a center, column by column, and the gradient.
//!
//! `squared_deviations` reads x `[rows, cols]` and center `[cols]` and writes the sums over all rows of
//! `(x - center)²`, `[cols]`. `squared_deviations_grad` reads x, center and d `[cols]` and writes dx, or adds to it if
//! `accumulate`, and dcenter `[cols]`. Sums over rows are trees over `leaves`; inside a leaf rows are added in order.

use phalanx_ir::tasks::TaskView;

use crate::rows::{Blocks, Rule};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// The parameters of `squared_deviations`.
    pub struct SquaredDeviations {
        /// Number of rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// Blocks of rows whose sums are added as a tree.
        pub leaves: usize,
    }
}

params! {
    /// The parameters of `squared_deviations_grad`.
    pub struct SquaredDeviationsGrad {
        /// Those of the forward.
        pub forward: SquaredDeviations,
        /// Whether dx is added to.
        pub accumulate: bool,
    }
}

impl SquaredDeviations {
    fn row_blocks(self) -> Blocks {
        Blocks::new(self.rows, 1, self.leaves, 1)
    }
}

/// What becomes of the sums of leaves.
const RULE: Rule = Rule { keep: false, accumulate: false };

/// Column by column.
pub fn squared_deviations_reference(out: &mut [f32], x: &[f32], center: &[f32], params: SquaredDeviations) {
    let cols = params.cols;
    for col in 0..cols {
        let square = |row: usize| (x[row * cols + col] - center[col]) * (x[row * cols + col] - center[col]);
        params.row_blocks().sum_reference(&mut out[col..], cols, RULE, &square);
    }
}

/// The fast version of [`squared_deviations_reference`].
pub fn squared_deviations(
    out: &mut [f32],
    x: &[f32],
    center: &[f32],
    params: SquaredDeviations,
    launch: &mut Launch<'_>,
) {
    let (blocks, cols) = (params.row_blocks(), params.cols);
    let size = blocks.leaf(0).len() * cols;
    let sums: &mut [f32] = launch.common();
    launch.split_rows(params.leaves, [(&mut *sums, cols)], |leaves, [sums], _| {
        for (leaf, sums) in leaves.zip(sums.chunks_exact_mut(cols)) {
            sum_leaf(sums, &x[leaf * size..][..size], center);
        }
    });
    blocks.join([out], sums, [cols, cols], RULE);
}

dispatch! {
    /// The sums of one leaf.
    fn sum_leaf(sums: &mut [f32], x: &[f32], center: &[f32]) {
        sums.fill(0.0);
        for row in x.chunks_exact(sums.len()) {
            for ((sum, &x), &center) in sums.iter_mut().zip(row).zip(center) {
                *sum += (x - center) * (x - center);
            }
        }
    }
}

/// Outputs dx, dcenter; inputs x, center, d.
pub fn squared_deviations_grad_reference(
    [dx, dcenter]: [&mut [f32]; 2],
    [x, center, d]: [&[f32]; 3],
    params: SquaredDeviationsGrad,
) {
    let SquaredDeviationsGrad { forward, accumulate } = params;
    let cols = forward.cols;
    let slope = |row: usize, col: usize| (d[col] + d[col]) * (x[row * cols + col] - center[col]);
    for col in 0..cols {
        for row in 0..forward.rows {
            let dx = &mut dx[row * cols + col];
            *dx = if accumulate { *dx + slope(row, col) } else { slope(row, col) };
        }
        let blocks = forward.row_blocks();
        blocks.sum_reference(&mut dcenter[col..], cols, RULE, &|row| -slope(row, col));
    }
}

/// The fast version of [`squared_deviations_grad_reference`].
pub fn squared_deviations_grad(
    [dx, dcenter]: [&mut [f32]; 2],
    [x, center, d]: [&[f32]; 3],
    params: SquaredDeviationsGrad,
    launch: &mut Launch<'_>,
) {
    let SquaredDeviationsGrad { forward, accumulate } = params;
    let (blocks, cols) = (forward.row_blocks(), forward.cols);
    let size = blocks.leaf(0).len() * cols;
    let sums: &mut [f32] = launch.common();
    let outs = [(dx, size), (&mut *sums, cols)];
    launch.split_rows(forward.leaves, outs, |leaves, [dx, sums], _| {
        let parts = dx.chunks_exact_mut(size).zip(sums.chunks_exact_mut(cols));
        for (leaf, (dx, sums)) in leaves.zip(parts) {
            grad_leaf([dx, sums], [&x[leaf * size..][..size], center, d], accumulate);
        }
    });
    blocks.join([dcenter], sums, [cols, cols], RULE);
}

dispatch! {
    /// The gradient of one leaf.
    fn grad_leaf(outs: [&mut [f32]; 2], ins: [&[f32]; 3], accumulate: bool) {
        let ([dx, sums], [x, center, d]) = (outs, ins);
        let cols = sums.len();
        sums.fill(0.0);
        for (dx, x) in dx.chunks_exact_mut(cols).zip(x.chunks_exact(cols)) {
            for ((((dx, sum), &x), &center), &d) in dx.iter_mut().zip(sums.iter_mut()).zip(x).zip(center).zip(d) {
                let slope = (d + d) * (x - center);
                *dx = if accumulate { *dx + slope } else { slope };
                *sum -= slope;
            }
        }
    }
}

impl Kernel for SquaredDeviations {
    signature!("squared_deviations": x, center => sums by squared_deviations_reference, squared_deviations);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let cols = task.read(1)?.elements();
        Ok(SquaredDeviations { rows: task.read(0)?.elements() / cols, cols, leaves: task.attr("leaves")? })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(3.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.cols, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::of::<f32>(self.leaves * self.cols, 0)
    }
}

impl Kernel for SquaredDeviationsGrad {
    signature!("squared_deviations_grad": x, center, d => dx, dcenter);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let forward = SquaredDeviations::from_task(task)?;
        Ok(SquaredDeviationsGrad { forward, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (outs, ins) = ([0, 1].map(|slot| call.write(slot)), [0, 1, 2].map(|slot| call.read(slot)));
        squared_deviations_grad_reference(outs, ins, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (outs, ins) = ([0, 1].map(|slot| call.write(slot)), [0, 1, 2].map(|slot| call.read(slot)));
        squared_deviations_grad(outs, ins, *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(4.0 * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        self.forward.blocks(cores)
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        self.forward.workspace(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use crate::samples::{Case, values};

    fn cases(rows: usize, cols: usize, leaves: usize) -> [Case; 3] {
        let forward = SquaredDeviations { rows, cols, leaves };
        let first = Case::new("squared_deviations", forward.to_words());
        let first = first.read(values(rows * cols, 1)).read(values(cols, 2)).write(vec![0.0; cols]);
        let grad = |accumulate| {
            let params = SquaredDeviationsGrad { forward, accumulate };
            let case = Case::new("squared_deviations_grad", params.to_words());
            let case = case.read(values(rows * cols, 1)).read(values(cols, 2)).read(values(cols, 3));
            case.write(values(rows * cols, 4)).write(vec![0.0; cols])
        };
        [first, grad(false), grad(true)]
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for (rows, cols, leaves) in [(1, 1, 1), (2, 3, 2), (12, 17, 4), (40, 33, 8), (24, 1, 8), (8, 100, 1)]
        {
            cases(rows, cols, leaves).into_iter().for_each(|case| case.check(0.0));
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        cases(800, 67, 8).into_iter().for_each(|case| case.check_bits());
    }
}
