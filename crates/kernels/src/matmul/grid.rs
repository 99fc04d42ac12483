//! How a batch of products is dealt to the members of a team.

use super::MatmulParams;
use super::blocking::Blocking;
use super::micro::MicroKernels;
use super::sweep::Share;
use crate::spmd::Block;

/// Products of fewer multiply-adds than this run on one core.
const WORTH_A_LAUNCH: usize = 1 << 20;
/// What packing an element costs, in multiply-adds.
const PACKING: usize = 16;

/// Members along each axis; all of them together are the team, or one member alone.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    batch: usize,
    rows: usize,
    columns: usize,
}

impl Grid {
    /// The cheapest grid for `cores`.
    pub fn new(params: &MatmulParams, kernels: &MicroKernels, cores: usize) -> Grid {
        let alone = Grid { batch: 1, rows: 1, columns: 1 };
        if params.batch * params.m * params.n * params.k < WORTH_A_LAUNCH {
            return alone;
        }
        let divisors = |n: usize| (1..=n).filter(move |divisor| n.is_multiple_of(*divisor));
        divisors(cores)
            .flat_map(|batch| divisors(cores / batch).map(move |rows| (batch, rows)))
            .map(|(batch, rows)| Grid { batch, rows, columns: cores / batch / rows })
            .min_by_key(|grid| grid.cost(params, kernels))
            .unwrap_or(alone)
    }

    /// How many members take part.
    pub fn members(&self) -> usize {
        self.batch * self.rows * self.columns
    }

    /// Rows and columns of the largest share.
    fn largest(&self, params: &MatmulParams, kernels: &MicroKernels) -> (usize, usize) {
        let panels = params.n.div_ceil(kernels.columns);
        (params.m.div_ceil(self.rows), panels.div_ceil(self.columns) * kernels.columns)
    }

    /// The work of the busiest member per step of the summed axis, in multiply-adds.
    fn cost(&self, params: &MatmulParams, kernels: &MicroKernels) -> usize {
        let (rows, columns) = self.largest(params, kernels);
        params.batch.div_ceil(self.batch) * (rows * columns + PACKING * (rows + columns))
    }

    /// The cuts that suit every share.
    pub fn blocking(&self, params: &MatmulParams, kernels: &MicroKernels) -> Blocking {
        let (rows, columns) = self.largest(params, kernels);
        Blocking::new(params, kernels, rows, columns)
    }

    /// The shares of one member.
    pub fn shares(
        &self,
        params: &MatmulParams,
        kernels: &MicroKernels,
        member: usize,
    ) -> impl Iterator<Item = Share> {
        let (width, n) = (kernels.columns, params.n);
        let row = member / self.columns % self.rows;
        let batch = Block { index: member / self.columns / self.rows, count: self.batch };
        let rows = Block { index: row, count: self.rows }.share(params.m);
        let panels = Block { index: member % self.columns, count: self.columns }.share(n.div_ceil(width));
        let columns = n.min(panels.start * width)..n.min(panels.end * width);
        batch.share(params.batch).map(move |index| Share {
            index,
            rows: rows.clone(),
            columns: columns.clone(),
        })
    }
}
