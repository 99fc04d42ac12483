//! Rows looked up in a table by id, summed over bags, and the gradient of the table.
//!
//! `embedding` reads ids `[n * bag]` and table `[vocab, cols]` and writes y `[n, cols]`: row i is the sum of the rows
//! of its `bag` consecutive ids, in their order. `embedding_grad` reads ids and dy `[n, cols]` and writes every row of
//! dtable `[vocab, cols]` (accumulates on request): the sum of dy over the uses of that row, a chain in ascending
//! position inside each of `leaves` blocks of the n outputs, a tree over the blocks.

use crate::call::no_scratch;
use crate::ids::Ids;
use crate::rows::{add_to, store, tree_reference, tree_rows};
use crate::{Kernel, Team, params};

params! {
    /// Settings of `embedding`.
    pub struct Embedding {
        /// Output rows.
        pub n: usize,
        /// Elements per row.
        pub cols: usize,
        /// Rows of the table.
        pub vocab: usize,
        /// Ids per output row.
        pub bag: usize,
        /// Whether ids are 32-bit.
        pub ids_i32: bool,
    }
}

params! {
    /// Settings of `embedding_grad`.
    pub struct EmbeddingGrad {
        /// Output rows of the forward.
        pub n: usize,
        /// Elements per row.
        pub cols: usize,
        /// Rows of the table.
        pub vocab: usize,
        /// Ids per output row.
        pub bag: usize,
        /// Whether ids are 32-bit.
        pub ids_i32: bool,
        /// Blocks of output rows whose sums are added as a tree.
        pub leaves: usize,
        /// Whether dtable is added to what its slice holds.
        pub accumulate: bool,
    }
}

/// Looks up every id.
pub fn embedding_reference(y: &mut [f32], ids: Ids<'_>, table: &[f32], params: Embedding) {
    let Embedding { n, cols, vocab, bag, .. } = params;
    for i in 0..n {
        for col in 0..cols {
            let row = |k: usize| ids.row(i * bag + k, vocab);
            y[i * cols + col] = (0..bag).map(|k| table[row(k) * cols + col]).sum();
        }
    }
}

/// Looks up every id, fast.
pub fn embedding(y: &mut [f32], ids: Ids<'_>, table: &[f32], params: Embedding, team: &Team) {
    let Embedding { n, cols, vocab, bag, .. } = params;
    team.split_rows(n * bag * cols, n, [(y, cols)], &mut [], |range, [y], _| {
        for (i, y) in range.zip(y.chunks_exact_mut(cols)) {
            let row = |k: usize| &table[ids.row(i * bag + k, vocab) * cols..][..cols];
            y.copy_from_slice(row(0));
            (1..bag).for_each(|k| add_to(y, row(k)));
        }
    });
}

/// The gradient of the table.
pub fn embedding_grad_reference(dtable: &mut [f32], ids: Ids<'_>, dy: &[f32], params: EmbeddingGrad) {
    let EmbeddingGrad { n, cols, vocab, bag, leaves, .. } = params;
    let per_leaf = n * bag / leaves;
    for row in 0..vocab {
        for col in 0..cols {
            let uses = |leaf: usize| {
                (leaf * per_leaf..(leaf + 1) * per_leaf).filter(|&at| ids.row(at, vocab) == row)
            };
            let chain = |leaf| uses(leaf).fold(0.0, |sum, at| sum + dy[at / bag * cols + col]);
            let value = tree_reference(leaves, &chain);
            let out = &mut dtable[row * cols + col];
            *out = if params.accumulate { *out + value } else { value };
        }
    }
}

/// Bytes of scratch that [`embedding_grad`] wants: row starts, sorted positions, leaf sums per core.
pub fn embedding_grad_scratch(params: EmbeddingGrad, cores: usize) -> usize {
    let EmbeddingGrad { n, cols, vocab, bag, leaves, .. } = params;
    4 * (vocab + 1 + n * bag + cores * leaves * cols)
}

/// The gradient of the table, fast: positions sorted by id, then every table row by itself.
pub fn embedding_grad(
    dtable: &mut [f32],
    ids: Ids<'_>,
    dy: &[f32],
    params: EmbeddingGrad,
    scratch: &mut [u32],
    team: &Team,
) {
    let EmbeddingGrad { n, cols, vocab, bag, leaves, .. } = params;
    let (starts, scratch) = scratch.split_at_mut(vocab + 1);
    let (positions, sums) = scratch.split_at_mut(n * bag);
    sort_positions(starts, positions, ids);
    let (starts, positions) = (&*starts, &*positions);
    let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..team.cores() * leaves * cols]);
    team.split_rows(vocab * cols, vocab, [(dtable, cols)], sums, |range, [dtable], sums| {
        for (row, out) in range.zip(dtable.chunks_exact_mut(cols)) {
            let uses = &positions[starts[row] as usize..starts[row + 1] as usize];
            write_row(out, uses, dy, params, sums);
        }
    });
}

/// Sorts the positions of `ids` by id, keeping their order; row `r` has `positions[starts[r]..starts[r + 1]]`.
fn sort_positions(starts: &mut [u32], positions: &mut [u32], ids: Ids<'_>) {
    let vocab = starts.len() - 1;
    starts.fill(0);
    for at in 0..positions.len() {
        starts[ids.row(at, vocab)] += 1;
    }
    let mut total = 0;
    for start in starts.iter_mut() {
        total += *start;
        *start = total;
    }
    // Every start is the end of its row; filling from behind moves it to the beginning.
    for at in (0..positions.len()).rev() {
        let start = &mut starts[ids.row(at, vocab)];
        *start -= 1;
        positions[*start as usize] = at as u32;
    }
}

/// Writes one row of the gradient from the positions that use it; `sums` has room for one row per leaf.
fn write_row(out: &mut [f32], uses: &[u32], dy: &[f32], params: EmbeddingGrad, sums: &mut [f32]) {
    let EmbeddingGrad { n, cols, bag, leaves, accumulate, .. } = params;
    let per_leaf = n * bag / leaves;
    let leaf = |at: u32| at as usize / per_leaf;
    let grad = |at: u32| &dy[at as usize / bag * cols..][..cols];
    // A chain starts from +0.0, so a leaf without uses is +0.0 and adding it changes no bit.
    let (first, last) = match uses {
        [] if accumulate => return,
        [] => return out.fill(0.0),
        [first, .., last] => (leaf(*first), leaf(*last)),
        [only] => (leaf(*only), leaf(*only)),
    };
    let sums = &mut sums[..if first == last { cols } else { leaves * cols }];
    sums.fill(0.0);
    for &at in uses {
        let row = if first == last { 0 } else { leaf(at) };
        add_to(&mut sums[row * cols..][..cols], grad(at));
    }
    if first != last {
        tree_rows(sums, leaves, cols);
    }
    store(out, &sums[..cols], accumulate);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "embedding",
        fast: |call| {
            let params = Embedding::from_words(call.params);
            let ids = Ids::read(call, 0, params.ids_i32);
            embedding(call.write(0), ids, call.read(1), params, call.team);
        },
        reference: |call| {
            let params = Embedding::from_words(call.params);
            let ids = Ids::read(call, 0, params.ids_i32);
            embedding_reference(call.write(0), ids, call.read(1), params);
        },
        scratch: no_scratch,
    },
    Kernel {
        name: "embedding_grad",
        fast: |call| {
            let params = EmbeddingGrad::from_words(call.params);
            let ids = Ids::read(call, 0, params.ids_i32);
            embedding_grad(call.write(0), ids, call.read(1), params, call.scratch(), call.team);
        },
        reference: |call| {
            let params = EmbeddingGrad::from_words(call.params);
            let ids = Ids::read(call, 0, params.ids_i32);
            embedding_grad_reference(call.write(0), ids, call.read(1), params);
        },
        scratch: |params, cores| embedding_grad_scratch(EmbeddingGrad::from_words(params), cores),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, Input, indices, values};

    fn forward(params: Embedding) -> Case {
        let Embedding { n, cols, vocab, bag, ids_i32 } = params;
        Case::new(KERNELS, "embedding", params.to_words())
            .read(Input::ids(&indices(n * bag, vocab, 1), ids_i32))
            .read(values(vocab * cols, 2))
            .write(values(n * cols, 3))
    }

    fn backward(params: EmbeddingGrad) -> Case {
        let EmbeddingGrad { n, cols, vocab, bag, ids_i32, .. } = params;
        Case::new(KERNELS, "embedding_grad", params.to_words())
            .read(Input::ids(&indices(n * bag, vocab, 1), ids_i32))
            .read(values(n * cols, 2))
            .write(values(vocab * cols, 3))
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for cols in [1, 2, 3, 7, 16, 17, 33] {
            for (n, vocab, bag, leaves) in [(1, 1, 1, 1), (7, 5, 3, 1), (64, 100, 1, 8), (100, 3, 2, 4)] {
                for ids_i32 in [false, true] {
                    forward(Embedding { n, cols, vocab, bag, ids_i32 }).check(0.0);
                    for accumulate in [false, true] {
                        let params = EmbeddingGrad { n, cols, vocab, bag, ids_i32, leaves, accumulate };
                        backward(params).check(0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        forward(Embedding { n: 600, cols: 33, vocab: 50, bag: 2, ids_i32: true }).check_bits();
        for accumulate in [false, true] {
            let sizes =
                EmbeddingGrad { n: 640, cols: 33, vocab: 600, bag: 2, ids_i32: false, leaves: 8, accumulate };
            backward(sizes).check_bits();
        }
    }

    #[test]
    fn gradient_is_the_transpose_of_the_lookup() {
        // <dtable, table> = <dy, y> for every table: exact in integers, so all values here are small integers.
        let (n, cols, vocab, bag) = (12, 3, 5, 2);
        let whole = |count: usize, seed| -> Vec<f32> {
            values(count, seed).iter().map(|x| (x * 8.0).round()).collect()
        };
        let mut lookup = forward(Embedding { n, cols, vocab, bag, ids_i32: false });
        lookup.reads[1] = whole(vocab * cols, 2).into();
        let params = EmbeddingGrad { n, cols, vocab, bag, ids_i32: false, leaves: 4, accumulate: false };
        let mut gradient = backward(params);
        gradient.reads[1] = whole(n * cols, 3).into();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let team = Team::new(1);
        let left = dot(&gradient.fast(&team)[0], &whole(vocab * cols, 2));
        assert_eq!(left, dot(&lookup.fast(&team)[0], &whole(n * cols, 3)));
    }
}
