//! Whole rows chosen by an index, and rows added where an index says.
//!
//! `gather_rows` reads x `[outer, n, inner]` and an index `[m]` and writes y `[outer, m, inner]`: the rows of x that the index
//! names. x may be a tile, the rows `first..first + n` of the whole; of rows that it does not have y has -0, which added
//! changes no bit. `gather_rows_grad`, as a task also `scatter_add`, reads the index and dy `[outer, m, inner]` and writes every
//! row of dx `[outer, n, inner]` (accumulates on request): the sum of dy over the uses of that row, a chain in ascending
//! position inside each of `leaves` blocks of the index, a tree over the blocks.

use phalanx_ir::Shape;
use phalanx_ir::tasks::{Buffer, TaskView};

use crate::embedding::{EmbeddingGrad, sort_positions, write_row};
use crate::ids::Ids;
use crate::rows::tree_reference;
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

params! {
    /// Settings of `gather_rows`.
    pub struct GatherRows {
        /// Elements of x outside the axis.
        pub outer: usize,
        /// Rows of x.
        pub n: usize,
        /// Indices.
        pub m: usize,
        /// Elements of a row.
        pub inner: usize,
        /// Whether indices are 32-bit.
        pub ids_i32: bool,
        /// The number of the first row of x.
        pub first: usize,
    }
}

params! {
    /// Settings of `gather_rows_grad`.
    pub struct GatherRowsGrad {
        /// Those of the forward.
        pub forward: GatherRows,
        /// Blocks of the index whose sums are added as a tree.
        pub leaves: usize,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

impl GatherRows {
    /// The choice from `x` by the index in slot `ids` of a task.
    fn of(task: &TaskView<'_>, x: &Buffer, ids: usize) -> Result<Self, String> {
        let axis: usize = task.attr("axis")?;
        let dims = x.ty.shape.dims();
        let (Some(&n), index): (_, &Shape) = (dims.get(axis), task.read(ids)?) else {
            return Err(format!("{} has no axis {axis}", x.ty));
        };
        Ok(GatherRows {
            outer: dims[..axis].iter().product(),
            n,
            m: index.elements(),
            inner: dims[axis + 1..].iter().product(),
            ids_i32: task.is_i32(ids)?,
            first: x.origin(axis),
        })
    }
}

impl GatherRowsGrad {
    /// The same sums as those of the gradient of a table, which there is one of for each outer element.
    fn table(self) -> EmbeddingGrad {
        let GatherRows { n, m, inner, ids_i32, first, .. } = self.forward;
        let GatherRowsGrad { leaves, accumulate, .. } = self;
        EmbeddingGrad {
            n: m,
            cols: inner,
            vocab: n,
            bag: 1,
            ids_i32,
            leaves,
            accumulate,
            first,
            padding: None,
        }
    }
}

/// Row by row.
pub fn gather_rows_reference(y: &mut [f32], x: &[f32], ids: Ids<'_>, params: GatherRows) {
    let GatherRows { outer, n, m, inner, first, .. } = params;
    for o in 0..outer {
        for j in 0..m {
            for i in 0..inner {
                let row = ids.place(j, first, n);
                y[(o * m + j) * inner + i] = row.map_or(-0.0, |row| x[(o * n + row) * inner + i]);
            }
        }
    }
}

/// The fast version of [`gather_rows_reference`].
pub fn gather_rows(y: &mut [f32], x: &[f32], ids: Ids<'_>, params: GatherRows, launch: &mut Launch<'_>) {
    let GatherRows { outer, n, m, inner, first, .. } = params;
    launch.split_rows(outer * m, [(y, inner)], |range, [y], _| {
        for (at, y) in range.zip(y.chunks_exact_mut(inner)) {
            match ids.place(at % m, first, n) {
                Some(row) => y.copy_from_slice(&x[(at / m * n + row) * inner..][..inner]),
                None => y.fill(-0.0),
            }
        }
    });
}

/// Element by element: the sum over the uses of each row.
pub fn gather_rows_grad_reference(dx: &mut [f32], ids: Ids<'_>, dy: &[f32], params: GatherRowsGrad) {
    let GatherRows { outer, n, m, inner, first, .. } = params.forward;
    let per_leaf = m / params.leaves;
    for o in 0..outer {
        for row in 0..n {
            for i in 0..inner {
                let uses = |leaf: usize| {
                    let own = leaf * per_leaf..(leaf + 1) * per_leaf;
                    own.filter(|&at| ids.place(at, first, n) == Some(row))
                };
                let chain = |leaf| uses(leaf).fold(0.0, |sum, at| sum + dy[(o * m + at) * inner + i]);
                let value = tree_reference(params.leaves, &chain);
                let out = &mut dx[(o * n + row) * inner + i];
                *out = if params.accumulate { *out + value } else { value };
            }
        }
    }
}

/// The fast version of [`gather_rows_grad_reference`]: positions sorted by row, then every row by itself.
pub fn gather_rows_grad(
    dx: &mut [f32],
    ids: Ids<'_>,
    dy: &[f32],
    params: GatherRowsGrad,
    launch: &mut Launch<'_>,
) {
    let GatherRows { outer, n, m, inner, .. } = params.forward;
    let table = params.table();
    let (starts, positions) = launch.common().split_at_mut(n + 1);
    sort_positions(starts, positions, ids, table);
    let (starts, positions) = (&*starts, &*positions);
    launch.split_rows(outer * n, [(dx, inner)], |range, [dx], sums| {
        for (at, out) in range.zip(dx.chunks_exact_mut(inner)) {
            let (o, row) = (at / n, at % n);
            let uses = &positions[starts[row] as usize..starts[row + 1] as usize];
            write_row(out, uses, &dy[o * m * inner..][..m * inner], table, sums);
        }
    });
}

impl Kernel for GatherRows {
    signature!("gather_rows": x, index => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        GatherRows::of(task, task.source(0)?, 1)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.ids_i32);
        gather_rows_reference(call.write(0), call.read(0), ids, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.ids_i32);
        gather_rows(call.write(0), call.read(0), ids, *self, &mut call.launch);
    }

    /// Of x at most the rows that are chosen are read.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let Work { flops, bytes } = sizes.work(0.0, false);
        let unread = (sizes.operand(0) - sizes.result(0)).max(0.0);
        Work { flops, bytes: bytes - 4.0 * unread }
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.outer * self.m * self.inner, cores)
    }

    fn anywhere(self) -> Self {
        GatherRows { first: 0, ..self }
    }

    fn ids(&self) -> usize {
        self.n
    }
}

impl Kernel for GatherRowsGrad {
    signature!("gather_rows_grad": index, dy => dx);
    const TASKS: &'static [&'static str] = &["gather_rows_grad", "scatter_add"];

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let forward = GatherRows::of(task, task.target(0)?, 0)?;
        Ok(GatherRowsGrad { forward, leaves: task.attr("leaves")?, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.forward.ids_i32);
        gather_rows_grad_reference(call.write(0), ids, call.read(1), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.forward.ids_i32);
        gather_rows_grad(call.write(0), ids, call.read(1), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(1), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.forward.outer * self.forward.n * self.forward.inner, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        let GatherRows { n, m, inner, .. } = self.forward;
        Workspace::of::<u32>(n + 1 + m, self.leaves * inner)
    }

    fn anywhere(self) -> Self {
        GatherRowsGrad { forward: self.forward.anywhere(), ..self }
    }

    fn ids(&self) -> usize {
        self.forward.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use crate::samples::{Case, Input, indices, values};

    fn forward(params: GatherRows) -> Case {
        let GatherRows { outer, n, m, inner, ids_i32, .. } = params;
        Case::new("gather_rows", params.to_words())
            .read(values(outer * n * inner, 1))
            .read(Input::ids(&indices(m, n + 2, 2), ids_i32))
            .write(vec![f32::NAN; outer * m * inner])
    }

    fn backward(params: GatherRowsGrad) -> Case {
        let GatherRows { outer, n, m, inner, ids_i32, .. } = params.forward;
        Case::new("gather_rows_grad", params.to_words())
            .read(Input::ids(&indices(m, n + 2, 2), ids_i32))
            .read(values(outer * m * inner, 3))
            .write(values(outer * n * inner, 4))
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for (outer, n, m, inner) in [(1, 1, 1, 1), (3, 5, 8, 7), (1, 9, 16, 33), (5, 2, 4, 1), (2, 3, 24, 5)]
        {
            for (first, ids_i32) in [(0, true), (1, false)] {
                let forward_params = GatherRows { outer, n, m, inner, ids_i32, first };
                forward(forward_params).check_reference_bits();
                for leaves in [1, 2, 4].into_iter().filter(|&leaves| m.is_multiple_of(leaves)) {
                    for accumulate in [false, true] {
                        let params = GatherRowsGrad { forward: forward_params, leaves, accumulate };
                        backward(params).check_reference_bits();
                        backward(params).check(0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        let params = GatherRows { outer: 3, n: 50, m: 64, inner: 33, ids_i32: false, first: 0 };
        forward(params).check_bits();
        backward(GatherRowsGrad { forward: params, leaves: 8, accumulate: true }).check_bits();
    }
}
