//! How a batch of products is dealt to the blocks of a launch.

use super::MatmulParams;
use super::blocking::Blocking;
use super::micro::MicroKernels;
use super::sweep::Share;
use crate::spmd::share;

/// Products of fewer multiply-adds than this are one block.
const WORTH_A_LAUNCH: usize = 1 << 20;
/// What packing an element costs, in multiply-adds.
const PACKING: usize = 16;

/// How many blocks a product wants.
pub(crate) fn blocks(params: &MatmulParams, cores: usize) -> i64 {
    let work = params.batch * params.m * params.n * params.k;
    if work < WORTH_A_LAUNCH { 1 } else { cores as i64 }
}

/// Blocks along each axis; all of them together are those of the launch.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    batch: usize,
    rows: usize,
    columns: usize,
}

impl Grid {
    /// The cheapest grid of so many blocks.
    pub fn new(params: &MatmulParams, kernels: &MicroKernels, blocks: usize) -> Grid {
        let divisors = |n: usize| (1..=n).filter(move |divisor| n.is_multiple_of(*divisor));
        divisors(blocks)
            .flat_map(|batch| divisors(blocks / batch).map(move |rows| (batch, rows)))
            .map(|(batch, rows)| Grid { batch, rows, columns: blocks / batch / rows })
            .min_by_key(|grid| grid.cost(params, kernels))
            .expect("one divides every number")
    }

    /// Rows and columns of the largest share.
    fn largest(&self, params: &MatmulParams, kernels: &MicroKernels) -> (usize, usize) {
        let panels = params.n.div_ceil(kernels.columns);
        (params.m.div_ceil(self.rows), panels.div_ceil(self.columns) * kernels.columns)
    }

    /// The work of the busiest block per step of the summed axis, in multiply-adds.
    fn cost(&self, params: &MatmulParams, kernels: &MicroKernels) -> usize {
        let (rows, columns) = self.largest(params, kernels);
        params.batch.div_ceil(self.batch) * (rows * columns + PACKING * (rows + columns))
    }

    /// The cuts that suit every share.
    pub fn blocking(&self, params: &MatmulParams, kernels: &MicroKernels) -> Blocking {
        let (rows, columns) = self.largest(params, kernels);
        Blocking::new(params, kernels, rows, columns)
    }

    /// The shares of one block.
    pub fn shares(
        &self,
        params: &MatmulParams,
        kernels: &MicroKernels,
        block: usize,
    ) -> impl Iterator<Item = Share> {
        let (width, n) = (kernels.columns, params.n);
        let rows = share(block / self.columns % self.rows, self.rows, params.m);
        let panels = share(block % self.columns, self.columns, n.div_ceil(width));
        let columns = n.min(panels.start * width)..n.min(panels.end * width);
        share(block / self.columns / self.rows, self.batch, params.batch).map(move |index| Share {
            index,
            rows: rows.clone(),
            columns: columns.clone(),
        })
    }
}
