//! Rows times the matrix that an id chooses for each, and the gradients.
//!
//! `grouped_linear` reads x `[rows, in]`, ids `[rows]` and weights `[experts, out, in]` and writes y `[rows, out]`:
//! `y[r] = weights[ids[r]] x[r]`. `grouped_linear_grad` reads dy `[rows, out]`, ids and weights and writes dx `[rows, in]` (accumulates
//! on request). The weights may be a tile, the experts `first..first + experts` of the whole: rows of others are -0, which
//! added changes no bit. Each sum is that of a matrix product: a tree over `leaves` blocks of the summed axis.
//!
//! The gradient of the matrices is in `grouped/weight.rs`. The fast versions sort rows by expert and multiply them in pieces
//! of 64, packed one after the other.

mod sorted;
mod weight;

use phalanx_ir::Precision;
use phalanx_ir::tasks::TaskView;

use crate::bf16;
use crate::embedding::{EmbeddingGrad, sort_positions};
use crate::ids::Ids;
use crate::matmul::{MatmulParams, Operands, Outputs, alone_scratch, matmul_alone};
use crate::rows::tree_reference;
use crate::spmd::{Launch, Parts, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

pub use weight::GroupedWeightGrad;

params! {
    /// What all three know.
    pub struct Grouped {
        /// Rows.
        pub rows: usize,
        /// Input features.
        pub inner: usize,
        /// Output features.
        pub out: usize,
        /// Matrices of the tile.
        pub experts: usize,
        /// The number of the first of them.
        pub first: usize,
        /// Whether ids are 32-bit.
        pub ids_i32: bool,
        /// Leaves of the sum's tree.
        pub leaves: usize,
        /// How products read their operands and add.
        pub precision: Precision,
    }
}

params! {
    /// Settings of `grouped_linear`.
    pub struct GroupedForward {
        /// Those of all.
        pub sizes: Grouped,
    }
}

params! {
    /// Settings of `grouped_linear_grad`.
    pub struct GroupedLinearGrad {
        /// Those of all.
        pub sizes: Grouped,
        /// Whether dx is added to what its slice holds.
        pub accumulate: bool,
    }
}

/// Rows that are multiplied together.
const PIECE: usize = 64;
/// One of the two products of rows with matrices: `to[r] = matrix · from[r]`, or with the matrix transposed.
#[derive(Clone, Copy)]
struct Rows {
    sizes: Grouped,
    /// Whether the gradient is meant.
    transposed: bool,
    accumulate: bool,
}

impl Rows {
    /// Features of what is read and of what is written.
    fn widths(self) -> (usize, usize) {
        let Grouped { inner, out, .. } = self.sizes;
        if self.transposed { (out, inner) } else { (inner, out) }
    }

    /// The product of a piece.
    fn product(self, m: usize) -> MatmulParams {
        let (k, n) = self.widths();
        let Grouped { leaves, precision, .. } = self.sizes;
        MatmulParams { m, n, k, trans_b: !self.transposed, leaves, precision, ..MatmulParams::PLAIN }
    }

    /// Sorted rows, and of each block a piece of both sides and what a product works in.
    fn workspace(self) -> Workspace {
        let ((from, to), Grouped { rows, experts, .. }) = (self.widths(), self.sizes);
        Workspace::of::<u32>(experts + 1 + rows, PIECE * (from + to) + alone_scratch(&self.product(PIECE)))
    }
}

impl Grouped {
    fn of(task: &TaskView<'_>, rows: usize, ids: usize) -> Result<Grouped, String> {
        let precision = task.attr_or("precision", Precision::F32)?;
        let (ids_i32, leaves) = (task.is_i32(ids)?, task.attr("leaves")?);
        Ok(Grouped { rows, inner: 0, out: 0, experts: 0, first: 0, ids_i32, leaves, precision })
    }

    /// With matrices of this tile.
    fn with(self, weight: &phalanx_ir::tasks::Buffer) -> Result<Grouped, String> {
        let &[experts, out, inner] = weight.ty.shape.dims() else {
            return Err(format!("matrices of experts are [experts, out, in], not {}", weight.ty));
        };
        Ok(Grouped { experts, out, inner, first: weight.origin(0), ..self })
    }

    /// What sorts the rows by expert.
    fn sorting(self) -> EmbeddingGrad {
        let Grouped { rows, experts, first, ids_i32, .. } = self;
        EmbeddingGrad {
            n: rows,
            cols: 0,
            vocab: experts,
            bag: 1,
            ids_i32,
            leaves: 1,
            accumulate: false,
            first,
            padding: None,
        }
    }

    fn flops(self) -> f64 {
        2.0 * self.rows as f64 * self.inner as f64 * self.out as f64
    }
}

/// The meaning of both products of rows.
fn rows_reference(to: &mut [f32], from: &[f32], ids: Ids<'_>, weights: &[f32], params: Rows) {
    let ((k, n), Grouped { rows, inner, out, experts, first, leaves, precision, .. }) =
        (params.widths(), params.sizes);
    for (at, to) in to.iter_mut().enumerate().take(rows * n) {
        let (r, j) = (at / n, at % n);
        let own = ids.place(r, first, experts).map(|expert| {
            let weights = &weights[expert * out * inner..][..out * inner];
            let steps = k / leaves;
            let pair = |l: usize| {
                let weight = if params.transposed { weights[l * inner + j] } else { weights[j * inner + l] };
                (from[r * k + l], weight)
            };
            let leaf = |leaf| bf16::leaf(precision, steps, |step| pair(leaf * steps + step));
            tree_reference(leaves, &leaf)
        });
        *to = match (own, params.accumulate) {
            (Some(value), true) => *to + value,
            (Some(value), false) => value,
            (None, true) => *to,
            (None, false) => -0.0,
        };
    }
}

/// The fast version of [`rows_reference`].
fn rows_fast(
    to: &mut [f32],
    from: &[f32],
    ids: Ids<'_>,
    weights: &[f32],
    params: Rows,
    launch: &mut Launch<'_>,
) {
    let ((k, n), Grouped { rows, inner, out, experts, first, .. }) = (params.widths(), params.sizes);
    let (starts, positions) = launch.common::<u32>().split_at_mut(experts + 1);
    sort_positions(starts, positions, ids, params.sizes.sorting());
    let (starts, positions) = (&*starts, &*positions);
    if !params.accumulate {
        let others = (0..rows).filter(|&row| ids.place(row, first, experts).is_none());
        others.for_each(|row| to[row * n..][..n].fill(-0.0));
    }
    let to = Parts::new(to);
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        let (packed, own) = own.split_at_mut(PIECE * k);
        let (result, scratch) = own.split_at_mut(PIECE * n);
        for unit in block.share(sorted::pieces(starts)) {
            let (expert, range) = sorted::piece(starts, unit);
            let rows = &positions[range];
            for (packed, &row) in packed.chunks_exact_mut(k).zip(rows) {
                packed.copy_from_slice(&from[row as usize * k..][..k]);
            }
            let matrix = &weights[expert * out * inner..][..out * inner];
            let operands = Operands {
                a: &packed[..rows.len() * k],
                b: matrix,
                bias: None,
                residual: None,
                points: None,
            };
            let outputs = Outputs { out: &mut result[..rows.len() * n], pre: None };
            matmul_alone(outputs, operands, &params.product(rows.len()), scratch);
            for (result, &row) in result.chunks_exact(n).zip(rows) {
                let row = row as usize;
                // SAFETY: a row is in one piece of one expert, and a piece belongs to one block.
                let to = unsafe { to.part(row * n..(row + 1) * n) };
                crate::rows::store(to, result, params.accumulate);
            }
        }
    });
}

impl Kernel for GroupedForward {
    signature!("grouped_linear": x, ids, weights => y);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let sizes = Grouped::of(task, task.read(1)?.elements(), 1)?.with(task.source(2)?)?;
        Ok(GroupedForward { sizes })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        rows_reference(call.write(0), call.read(0), ids, call.read(2), self.rows());
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        rows_fast(call.write(0), call.read(0), ids, call.read(2), self.rows(), &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.sizes.flops(), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.sizes.rows * self.sizes.out, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        self.rows().workspace()
    }

    fn anywhere(self) -> Self {
        GroupedForward { sizes: Grouped { first: 0, ..self.sizes } }
    }

    fn ids(&self) -> usize {
        self.sizes.experts
    }
}

impl GroupedForward {
    fn rows(self) -> Rows {
        Rows { sizes: self.sizes, transposed: false, accumulate: false }
    }
}

impl Kernel for GroupedLinearGrad {
    signature!("grouped_linear_grad": dy, ids, weights => dx);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let sizes = Grouped::of(task, task.read(1)?.elements(), 1)?.with(task.source(2)?)?;
        Ok(GroupedLinearGrad { sizes, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        rows_reference(call.write(0), call.read(0), ids, call.read(2), self.rows());
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        rows_fast(call.write(0), call.read(0), ids, call.read(2), self.rows(), &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.sizes.flops(), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.sizes.rows * self.sizes.inner, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        self.rows().workspace()
    }

    fn anywhere(self) -> Self {
        GroupedLinearGrad { sizes: Grouped { first: 0, ..self.sizes }, ..self }
    }

    fn ids(&self) -> usize {
        self.sizes.experts
    }
}

impl GroupedLinearGrad {
    fn rows(self) -> Rows {
        Rows { sizes: self.sizes, transposed: true, accumulate: self.accumulate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use crate::samples::{Case, Input, indices, values};

    /// Sums of up to 200 products of numbers below one, each rounded to 2^-24.
    const TOLERANCE: f32 = 2e-5;

    fn sizes([rows, inner, out, experts]: [usize; 4], leaves: usize, first: usize) -> Grouped {
        let precision = Precision::F32;
        Grouped { rows, inner, out, experts, first, ids_i32: false, leaves, precision }
    }

    /// Ids with one expert more than the tile has on either side.
    fn ids(sizes: Grouped) -> Input {
        Input::ids(&indices(sizes.rows, sizes.first + sizes.experts + 1, 3), false)
    }

    fn forward(sizes: Grouped) -> Case {
        Case::new("grouped_linear", GroupedForward { sizes }.to_words())
            .read(values(sizes.rows * sizes.inner, 1))
            .read(ids(sizes))
            .read(values(sizes.experts * sizes.out * sizes.inner, 2))
            .write(vec![f32::NAN; sizes.rows * sizes.out])
    }

    fn backward(sizes: Grouped, accumulate: bool) -> Case {
        Case::new("grouped_linear_grad", GroupedLinearGrad { sizes, accumulate }.to_words())
            .read(values(sizes.rows * sizes.out, 4))
            .read(ids(sizes))
            .read(values(sizes.experts * sizes.out * sizes.inner, 2))
            .write(values(sizes.rows * sizes.inner, 5))
    }

    fn weights(sizes: Grouped, accumulate: bool) -> Case {
        Case::new("grouped_linear_weight_grad", GroupedWeightGrad { sizes, accumulate }.to_words())
            .read(values(sizes.rows * sizes.out, 4))
            .read(ids(sizes))
            .read(values(sizes.rows * sizes.inner, 1))
            .write(values(sizes.experts * sizes.out * sizes.inner, 6))
    }

    #[test]
    fn fast_equals_reference() {
        for of in [[1, 1, 1, 1], [7, 3, 5, 2], [40, 8, 33, 3], [200, 16, 40, 1], [9, 4, 2, 11]] {
            for first in [0, 1] {
                forward(sizes(of, 1, first)).check(TOLERANCE);
                backward(sizes(of, 1, first), false).check(TOLERANCE);
                backward(sizes(of, 1, first), true).check(TOLERANCE);
                weights(sizes(of, 1, first), false).check(TOLERANCE);
            }
        }
        for leaves in [2, 4, 8] {
            forward(sizes([40, 16, 33, 3], leaves, 0)).check(TOLERANCE);
            backward(sizes([40, 16, 40, 3], leaves, 0), true).check(TOLERANCE);
            weights(sizes([200, 5, 40, 2], leaves, 0), true).check(TOLERANCE);
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        let of = sizes([200, 24, 40, 5], 8, 0);
        for precision in Precision::ALL {
            let of = Grouped { precision: *precision, ..of };
            forward(of).check_bits();
            backward(of, true).check_bits();
            weights(of, false).check_bits();
        }
    }
}
