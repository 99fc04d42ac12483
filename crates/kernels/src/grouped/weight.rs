//! The gradient of the matrices of experts.
//!
//! `grouped_linear_weight_grad` reads dy, ids and x and writes every matrix of dweights (accumulates on request): the rows of
//! an expert inside each of `leaves` blocks of the rows are taken 64 at a time, in order; each of these products is a chain,
//! chains are added in ascending order, blocks of rows as a tree.

use phalanx_ir::tasks::TaskView;

use super::{Grouped, PIECE, sorted};
use crate::bf16;
use crate::embedding::sort_positions;
use crate::ids::Ids;
use crate::matmul::{MatmulParams, Operands, Outputs, alone_scratch, matmul_alone};
use crate::rows::tree_reference;
use crate::spmd::{Launch, Parts, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

params! {
    /// Settings of `grouped_linear_weight_grad`.
    pub struct GroupedWeightGrad {
        /// Those of all.
        pub sizes: Grouped,
        /// Whether dweights is added to what its slice holds.
        pub accumulate: bool,
    }
}

/// Rows of a matrix whose gradient is computed together.
const TILE: usize = 32;

/// The gradient of the matrices, element by element.
pub fn grouped_weight_grad_reference(
    dweights: &mut [f32],
    dy: &[f32],
    ids: Ids<'_>,
    x: &[f32],
    params: GroupedWeightGrad,
) {
    let GroupedWeightGrad { sizes, accumulate } = params;
    let Grouped { rows, inner, out, experts, first, leaves, precision, .. } = sizes;
    let per_leaf = rows / leaves;
    for (at, dweight) in dweights.iter_mut().enumerate().take(experts * out * inner) {
        let (expert, o, i) = (at / (out * inner), at / inner % out, at % inner);
        let leaf = |leaf: usize| {
            let own = (leaf * per_leaf..(leaf + 1) * per_leaf)
                .filter(|&row| ids.place(row, first, experts) == Some(expert));
            let own: Vec<usize> = own.collect();
            let chain = |rows: &[usize]| {
                bf16::leaf(precision, rows.len(), |step| {
                    (dy[rows[step] * out + o], x[rows[step] * inner + i])
                })
            };
            own.chunks(PIECE).fold(0.0, |sum, rows| sum + chain(rows))
        };
        let value = tree_reference(leaves, &leaf);
        *dweight = if accumulate { *dweight + value } else { value };
    }
}

/// The product of a piece of a tile of a matrix's rows.
fn tile_product(sizes: Grouped, m: usize, k: usize) -> MatmulParams {
    let Grouped { inner: n, precision, .. } = sizes;
    MatmulParams { m, n, k, trans_a: true, precision, accumulate: true, ..MatmulParams::PLAIN }
}

/// Sorted rows, and of each block a piece of both sides, the sums of a tile at each level of the tree and what a product
/// works in.
fn weight_workspace(sizes: Grouped) -> Workspace {
    let Grouped { rows, inner, experts, .. } = sizes;
    let levels = sorted::levels(sizes.leaves);
    let own = PIECE * (TILE + inner) + levels * TILE * inner;
    let scratch = alone_scratch(&tile_product(sizes, TILE, PIECE));
    Workspace::of::<u32>(experts + 1 + rows, own + scratch)
}

/// The fast version of [`grouped_weight_grad_reference`].
pub fn grouped_weight_grad(
    dweights: &mut [f32],
    dy: &[f32],
    ids: Ids<'_>,
    x: &[f32],
    params: GroupedWeightGrad,
    launch: &mut Launch<'_>,
) {
    let GroupedWeightGrad { sizes, accumulate } = params;
    let Grouped { inner, out, experts, leaves, .. } = sizes;
    let (starts, positions) = launch.common::<u32>().split_at_mut(experts + 1);
    sort_positions(starts, positions, ids, sizes.sorting());
    let (starts, positions) = (&*starts, &*positions);
    let (tiles, dweights) = (out.div_ceil(TILE), Parts::new(dweights));
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        let (pieces, own) = own.split_at_mut(PIECE * (TILE + inner));
        let (sums, scratch) = own.split_at_mut(sorted::levels(leaves) * TILE * inner);
        for unit in block.share(experts * tiles) {
            let (expert, tile) = (unit / tiles, unit % tiles * TILE);
            let rows = &positions[starts[expert] as usize..starts[expert + 1] as usize];
            let columns = tile..out.min(tile + TILE);
            let size = columns.len() * inner;
            let mut tree = sorted::Levels::new(sums, size);
            for leaf in 0..leaves {
                let sum = tree.next();
                sum.fill(0.0);
                let own = sorted::leaf(rows, sizes, leaf);
                for rows in own.chunks(PIECE) {
                    add_piece(sum, rows, [dy, x], columns.clone(), sizes, (&mut *pieces, &mut *scratch));
                }
                tree.push();
            }
            let start = (expert * out + tile) * inner;
            // SAFETY: a tile of rows of one matrix belongs to one unit.
            let to = unsafe { dweights.part(start..start + size) };
            crate::rows::store(to, tree.sum(), accumulate);
        }
    });
}

/// Adds the product of some rows to a tile of a matrix.
fn add_piece(
    sum: &mut [f32],
    rows: &[u32],
    [dy, x]: [&[f32]; 2],
    columns: std::ops::Range<usize>,
    sizes: Grouped,
    (pieces, scratch): (&mut [f32], &mut [f32]),
) {
    let Grouped { inner, out, .. } = sizes;
    let (left, right) = pieces.split_at_mut(PIECE * TILE);
    let width = columns.len();
    for (at, &row) in rows.iter().enumerate() {
        let row = row as usize;
        left[at * width..][..width].copy_from_slice(&dy[row * out..][columns.clone()]);
        right[at * inner..][..inner].copy_from_slice(&x[row * inner..][..inner]);
    }
    let (a, b) = (&left[..rows.len() * width], &right[..rows.len() * inner]);
    let operands = Operands { a, b, bias: None, residual: None, points: None };
    matmul_alone(Outputs { out: sum, pre: None }, operands, &tile_product(sizes, width, rows.len()), scratch);
}

impl Kernel for GroupedWeightGrad {
    signature!("grouped_linear_weight_grad": dy, ids, x => dweights);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let sizes = Grouped::of(task, task.read(1)?.elements(), 1)?.with(task.target(0)?)?;
        Ok(GroupedWeightGrad { sizes, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        grouped_weight_grad_reference(call.write(0), call.read(0), ids, call.read(2), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 1, self.sizes.ids_i32);
        grouped_weight_grad(call.write(0), call.read(0), ids, call.read(2), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.sizes.flops(), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.sizes.experts * self.sizes.out * self.sizes.inner, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        weight_workspace(self.sizes)
    }

    fn anywhere(self) -> Self {
        GroupedWeightGrad { sizes: Grouped { first: 0, ..self.sizes }, ..self }
    }

    fn ids(&self) -> usize {
        self.sizes.experts
    }
}
