//! Rows looked up in a table by id, summed over bags, and the gradient of the table.
//!
//! The table may be a tile: `[vocab, cols]`, the rows `first..first + vocab` of the whole. `embedding` reads ids
//! `[n * bag]` and the table and writes y `[n, cols]`: row i is the sum of the rows of its `bag` consecutive ids, in their
//! order, without those the tile does not have and without `padding`. The sum starts from -0, which added to anything changes no bit: results
//! of tiles add up to the whole, for bags of up to two ids exactly. `embedding_grad` reads ids and dy `[n, cols]` and
//! writes every row of dtable `[vocab, cols]` (accumulates on request): the sum of dy over the uses of that row, a chain
//! in ascending position inside each of `leaves` blocks of the n outputs, a tree over the blocks; the row of `padding` is 0.

use phalanx_ir::tasks::TaskView;

use crate::ids::Ids;
use crate::rows::{add_to, store, tree_reference, tree_rows};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, params, signature};

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
        /// The id of the table's first row.
        pub first: usize,
        /// The id that is left out.
        pub padding: Option<i64>,
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
        /// The id of the table's first row.
        pub first: usize,
        /// The id that is left out.
        pub padding: Option<i64>,
    }
}

/// Looks up every id.
pub fn embedding_reference(y: &mut [f32], ids: Ids<'_>, table: &[f32], params: Embedding) {
    let Embedding { n, cols, vocab, bag, first, padding, .. } = params;
    for i in 0..n {
        for col in 0..cols {
            let rows = (0..bag).filter_map(|k| ids.place_unless(i * bag + k, first, vocab, padding));
            y[i * cols + col] = rows.fold(-0.0, |sum, row| sum + table[row * cols + col]);
        }
    }
}

/// Looks up every id, fast.
pub fn embedding(y: &mut [f32], ids: Ids<'_>, table: &[f32], params: Embedding, launch: &mut Launch<'_>) {
    let Embedding { n, cols, vocab, bag, first, padding, .. } = params;
    launch.split_rows(n, [(y, cols)], |range, [y], _| {
        for (i, y) in range.zip(y.chunks_exact_mut(cols)) {
            let places = (0..bag).filter_map(|k| ids.place_unless(i * bag + k, first, vocab, padding));
            let mut rows = places.map(|row| &table[row * cols..][..cols]);
            match rows.next() {
                Some(row) => y.copy_from_slice(row),
                None => y.fill(-0.0),
            }
            rows.for_each(|row| add_to(y, row));
        }
    });
}

/// The gradient of the table.
pub fn embedding_grad_reference(dtable: &mut [f32], ids: Ids<'_>, dy: &[f32], params: EmbeddingGrad) {
    let EmbeddingGrad { n, cols, vocab, bag, leaves, first, padding, .. } = params;
    let per_leaf = n * bag / leaves;
    for row in 0..vocab {
        for col in 0..cols {
            let uses = |leaf: usize| {
                (leaf * per_leaf..(leaf + 1) * per_leaf)
                    .filter(|&at| ids.place_unless(at, first, vocab, padding) == Some(row))
            };
            let chain = |leaf| uses(leaf).fold(0.0, |sum, at| sum + dy[at / bag * cols + col]);
            let value = tree_reference(leaves, &chain);
            let out = &mut dtable[row * cols + col];
            *out = if params.accumulate { *out + value } else { value };
        }
    }
}

/// What [`embedding_grad`] works in: row starts and sorted positions, and for every block leaf sums.
fn grad_workspace(params: EmbeddingGrad) -> Workspace {
    let EmbeddingGrad { n, cols, vocab, bag, leaves, .. } = params;
    Workspace::of::<u32>(vocab + 1 + n * bag, leaves * cols)
}

/// The gradient of the table, fast: positions sorted by id, then every table row by itself.
pub fn embedding_grad(
    dtable: &mut [f32],
    ids: Ids<'_>,
    dy: &[f32],
    params: EmbeddingGrad,
    launch: &mut Launch<'_>,
) {
    let EmbeddingGrad { cols, vocab, .. } = params;
    let (starts, positions) = launch.common().split_at_mut(vocab + 1);
    sort_positions(starts, positions, ids, params);
    let (starts, positions) = (&*starts, &*positions);
    launch.split_rows(vocab, [(dtable, cols)], |range, [dtable], sums| {
        for (row, out) in range.zip(dtable.chunks_exact_mut(cols)) {
            let uses = &positions[starts[row] as usize..starts[row + 1] as usize];
            write_row(out, uses, dy, params, sums);
        }
    });
}

/// Sorts the positions of `ids` by row, keeping their order; row `r` has `positions[starts[r]..starts[r + 1]]`. Ids that
/// the tile does not have are left out, and so is `padding`.
pub(crate) fn sort_positions(starts: &mut [u32], positions: &mut [u32], ids: Ids<'_>, params: EmbeddingGrad) {
    let EmbeddingGrad { first, vocab, padding, .. } = params;
    let row = |at: usize| ids.place_unless(at, first, vocab, padding);
    starts.fill(0);
    for row in (0..positions.len()).filter_map(row) {
        starts[row] += 1;
    }
    let mut total = 0;
    for start in starts.iter_mut() {
        total += *start;
        *start = total;
    }
    // Every start is the end of its row; filling from behind moves it to the beginning.
    for at in (0..positions.len()).rev() {
        let Some(row) = row(at) else { continue };
        starts[row] -= 1;
        positions[starts[row] as usize] = at as u32;
    }
}

/// Writes one row of the gradient from the positions that use it; `sums` has room for one row per leaf.
pub(crate) fn write_row(out: &mut [f32], uses: &[u32], dy: &[f32], params: EmbeddingGrad, sums: &mut [f32]) {
    let EmbeddingGrad { n, cols, bag, leaves, accumulate, .. } = params;
    let per_leaf = n * bag / leaves;
    let leaf = |at: u32| at as usize / per_leaf;
    let grad = |at: u32| &dy[at as usize / bag * cols..][..cols];
    // A chain starts from +0.0, so a leaf without uses is +0.0 and adding it changes no bit.
    let (first, last) = match uses {
        // Adding +0.0 is not nothing: it turns -0.0 into +0.0.
        [] if accumulate => return out.iter_mut().for_each(|out| *out += 0.0),
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

impl Kernel for Embedding {
    signature!("embedding": ids, table => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (y, table, n) = (task.write(0)?, task.source(1)?, task.write(0)?.rows());
        let (bag, ids_i32) = (task.read(0)?.elements() / n, task.is_i32(0)?);
        let vocab = table.ty.shape.dims()[0];
        // The row of the padding id is a row like others, unless rows are summed.
        let padding = if task.is("bag") { task.attr_or("padding", None)? } else { None };
        Ok(Embedding { n, cols: y.last(), vocab, bag, ids_i32, first: table.origin(0), padding })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.ids_i32);
        embedding_reference(call.write(0), ids, call.read(1), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.ids_i32);
        embedding(call.write(0), ids, call.read(1), *self, &mut call.launch);
    }

    /// Of the table at most the rows that are looked up are read.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let (bag, table) = (self.bag as f64, sizes.operand(1));
        let looked_up = table.min(bag * sizes.result(0));
        let Work { flops, bytes } = sizes.work((bag - 1.0).max(0.0) * sizes.result(0), false);
        Work { flops, bytes: bytes - 4.0 * table + 4.0 * looked_up }
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n * self.bag * self.cols, cores)
    }

    fn anywhere(self) -> Self {
        Embedding { first: 0, ..self }
    }

    fn ids(&self) -> usize {
        self.vocab
    }
}

impl Kernel for EmbeddingGrad {
    signature!("embedding_grad": ids, dy => dtable);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (dy, table) = (task.read(1)?, task.target(0)?);
        let (n, ids) = (dy.rows(), task.read(0)?);
        Ok(EmbeddingGrad {
            n,
            cols: dy.last(),
            vocab: table.ty.shape.dims()[0],
            bag: ids.elements() / n,
            ids_i32: task.is_i32(0)?,
            leaves: task.attr("leaves")?,
            accumulate: task.is("accumulate"),
            first: table.origin(0),
            padding: task.attr_or("padding", None)?,
        })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.ids_i32);
        embedding_grad_reference(call.write(0), ids, call.read(1), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let ids = Ids::read(call, 0, self.ids_i32);
        embedding_grad(call.write(0), ids, call.read(1), *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.bag as f64 * sizes.operand(1), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.vocab * self.cols, cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        grad_workspace(*self)
    }

    fn anywhere(self) -> Self {
        EmbeddingGrad { first: 0, ..self }
    }

    fn ids(&self) -> usize {
        self.vocab
    }
}

#[cfg(test)]
mod tests;
