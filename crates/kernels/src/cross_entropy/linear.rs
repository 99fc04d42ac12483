//! The last linear layer of a model, its cross entropy and the gradient by the logits, as one kernel.
//!
//! Reads x `[rows, features]`, weight, bias if the parameters say so, labels `[rows]` and dloss `[1]`; writes dlogits
//! `[rows, classes]` and per row the negative log-likelihood. Every bit is that of `matmul`, `cross_entropy` and
//! `cross_entropy_grad` one after the other, but there are never more logits than a few tiles of rows.
//!
//! A block owns some rows. Its matrix half computes the logits of one tile of them after another into a pipe; its vector
//! half takes each tile as it comes, and turns it into losses and gradients. Where every core has a block its halves run
//! in turn, so that a tile is read by the core that has just written it; otherwise two cores share a block.

use std::ops::Range;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Names, Precision, names};

use crate::ids::Ids;
use crate::matmul::{MatmulParams, Operands, Outputs, alone_scratch, matmul_alone, matmul_reference};
use crate::spmd::extent::Extent;
use crate::spmd::halves::{Halves, Mode, Side};
use crate::spmd::layout::{Alignment, BlockLayout, Direction, PipeSpec, Scratch};
use crate::spmd::pipe::PipeError;
use crate::spmd::{Launch, Parts, Workspace, share};
use crate::{Call, Kernel, Sizes, Work, params};

use super::{
    CrossEntropy, CrossEntropyGrad, cross_entropy_grad_reference, cross_entropy_reference, gradient, loss,
};

/// The pipe of logits.
const LOGITS: u16 = 0;
/// The most rows of a tile: so many share a packed weight, which is packed again for the next tile.
const TILE_ROWS: usize = 128;
/// The fewest rows that are worth a block.
const BLOCK_ROWS: usize = 16;

params! {
    /// Settings of `linear_cross_entropy`.
    pub struct LinearCrossEntropy {
        /// How many rows.
        pub rows: usize,
        /// Logits per row.
        pub classes: usize,
        /// Elements per row of x.
        pub features: usize,
        /// Whether the weight is stored as `[features, classes]`.
        pub transposed: bool,
        /// Whether a bias `[classes]` is added.
        pub bias: bool,
        /// Leaves of the sum over features: a power of two that divides them.
        pub leaves: usize,
        /// Leaves of the sum over classes: a power of two that divides them.
        pub class_leaves: usize,
        /// The label of rows that do not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
        /// How operands are read and sums added.
        pub precision: Precision,
    }
}

impl LinearCrossEntropy {
    /// The product that gives the logits of so many rows.
    fn product(&self, rows: usize) -> MatmulParams {
        MatmulParams {
            m: rows,
            n: self.classes,
            k: self.features,
            trans_b: !self.transposed,
            leaves: self.leaves,
            bias: self.bias,
            precision: self.precision,
            ..MatmulParams::PLAIN
        }
    }

    fn losses(&self) -> CrossEntropy {
        let &LinearCrossEntropy { rows, classes, ignore_index, labels_i32, class_leaves: leaves, .. } = self;
        CrossEntropy { rows, classes, ignore_index, labels_i32, leaves }
    }

    fn gradients(&self) -> CrossEntropyGrad {
        let &LinearCrossEntropy { rows, classes, ignore_index, labels_i32, .. } = self;
        CrossEntropyGrad { rows, classes, ignore_index, labels_i32, accumulate: false, first: 0 }
    }

    /// Blocks of the fewest rows.
    fn most_blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS).max(1)
    }

    /// Tiles in flight: two where rows are so few that there may be a second core for every block, else one.
    fn depth(&self, blocks: usize) -> u32 {
        if blocks < self.most_blocks() { 1 } else { 2 }
    }

    /// Rows of a full tile on so many blocks.
    fn tile_rows(&self, blocks: usize) -> usize {
        self.rows.div_ceil(blocks).clamp(1, TILE_ROWS)
    }

    /// A block's part of the workspace: tiles of logits, and what the product works in.
    fn layout(&self, blocks: usize) -> BlockLayout {
        let rows = self.tile_rows(blocks);
        let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<f32>() as u64);
        let slot = bytes(rows.saturating_mul(self.classes));
        let scratch = Scratch { bytes: bytes(alone_scratch(&self.product(rows))), align: 64 };
        let pipe = PipeSpec {
            id: LOGITS,
            direction: Direction::Forward,
            slot_bytes: slot.max(1),
            depth: self.depth(blocks),
        };
        BlockLayout::plan(&[pipe], &[scratch], Alignment::CPU, 0).expect("a tile of rows can be addressed")
    }
}

/// What `linear_cross_entropy` reads.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The rows that the layer is applied to.
    pub x: &'a [f32],
    /// The weight, `[classes, features]` or transposed.
    pub weight: &'a [f32],
    /// One value per class.
    pub bias: Option<&'a [f32]>,
    /// One label per row.
    pub labels: Ids<'a>,
    /// The gradient of the sum of all losses.
    pub dloss: f32,
}

impl<'a> Inputs<'a> {
    /// The same for some of the rows alone.
    fn rows(&self, rows: Range<usize>, features: usize) -> Inputs<'a> {
        let x = &self.x[rows.start * features..rows.end * features];
        Inputs { x, labels: self.labels.slice(rows), ..*self }
    }

    /// What gives the logits of `rows` rows from row `first`.
    fn operands(&self, first: usize, rows: usize, features: usize) -> Operands<'a> {
        let a = &self.x[first * features..][..rows * features];
        Operands { a, b: self.weight, bias: self.bias, residual: None, points: None }
    }
}

/// Gradients by the logits and losses, row after row; `logits` holds one row.
pub fn linear_cross_entropy_reference(
    [dlogits, nll]: [&mut [f32]; 2],
    inputs: Inputs<'_>,
    logits: &mut [f32],
    params: LinearCrossEntropy,
) {
    let LinearCrossEntropy { rows, classes, features, .. } = params;
    let (losses, gradients) = (params.losses(), params.gradients());
    for (row, dlogits) in (0..rows).zip(dlogits.chunks_exact_mut(classes)) {
        let outputs = Outputs { out: logits, pre: None };
        matmul_reference(outputs, inputs.operands(row, 1, features), &params.product(1));
        let (label, mut lse) = (inputs.labels.slice(row..row + 1), [0.0]);
        let losses = CrossEntropy { rows: 1, ..losses };
        cross_entropy_reference([&mut nll[row..row + 1], &mut lse], logits, label, losses);
        let gradients = CrossEntropyGrad { rows: 1, ..gradients };
        cross_entropy_grad_reference(dlogits, [logits, &lse, &[inputs.dloss]], label, gradients);
    }
}

/// Gradients by the logits and losses, fast; the workspace is that of the kernel.
pub fn linear_cross_entropy(
    [dlogits, nll]: [&mut [f32]; 2],
    inputs: Inputs<'_>,
    params: LinearCrossEntropy,
    launch: &mut Launch<'_>,
) {
    let (blocks, cores) = (launch.blocks(), launch.team().cores());
    let layout = params.layout(blocks);
    let mode = if blocks < cores { Mode::Apart } else { Mode::Together };
    let halves = Halves { layout: &layout, matrix_scratch: 1, mode };
    let head = Head { params, inputs, dlogits: Parts::new(dlogits), nll: Parts::new(nll) };
    let done = halves.run(
        launch,
        async |side: Side<'_>| head.matrix(side).await,
        async |side: Side<'_>| head.vector(side).await,
    );
    if let Err(error) = done {
        panic!("linear_cross_entropy: {error}");
    }
}

/// One launch of the kernel.
struct Head<'a> {
    params: LinearCrossEntropy,
    inputs: Inputs<'a>,
    dlogits: Parts<'a, f32>,
    nll: Parts<'a, f32>,
}

impl Head<'_> {
    /// The matrix half of a block: the logits of its rows, tile after tile.
    async fn matrix(&self, mut side: Side<'_>) -> Result<(), PipeError> {
        let LinearCrossEntropy { rows, classes, features, .. } = self.params;
        let (index, count) = (side.index as usize, side.count as usize);
        let scratch: &mut [f32] = bytemuck::cast_slice_mut(&mut *side.scratch[0]);
        let mut logits = side.ends.producer(LOGITS)?;
        let (own, step) = (share(index, count, rows), self.params.tile_rows(count));
        for first in own.clone().step_by(step) {
            let rows = step.min(own.end - first);
            let fill = |slot: &mut [f32]| {
                let outputs = Outputs { out: &mut slot[..rows * classes], pre: None };
                let operands = self.inputs.operands(first, rows, features);
                matmul_alone(outputs, operands, &self.params.product(rows), scratch);
                Extent::new(rows, classes)
            };
            logits.push(fill).await?;
        }
        Ok(())
    }

    /// The vector half of a block: losses and gradients of the tiles that come.
    async fn vector(&self, mut side: Side<'_>) -> Result<(), PipeError> {
        let LinearCrossEntropy { rows, classes, .. } = self.params;
        let mut logits = side.ends.consumer(LOGITS)?;
        let mut first = share(side.index as usize, side.count as usize, rows).start;
        while let Some(tile) = logits.pop().await? {
            let end = first + tile.extent.rows;
            // SAFETY: these rows are the block's own, and only this half writes them.
            let dlogits = unsafe { self.dlogits.part(first * classes..end * classes) };
            // SAFETY: as above.
            let nll = unsafe { self.nll.part(first..end) };
            for (i, (x, out)) in tile.chunks_exact(classes).zip(dlogits.chunks_exact_mut(classes)).enumerate()
            {
                nll[i] = self.row(first + i, x, out);
            }
            first = end;
        }
        Ok(())
    }

    /// The loss of row `row`, whose logits are `x`; their gradient goes into `out`.
    fn row(&self, row: usize, x: &[f32], out: &mut [f32]) -> f32 {
        let Inputs { labels, dloss, .. } = self.inputs;
        let (nll, lse) = loss(x, labels, row, self.params.losses());
        gradient(out, x, [lse, dloss], labels, row, self.params.gradients());
        nll
    }
}

impl LinearCrossEntropy {
    fn slices<'a>(&self, call: &mut Call<'a>) -> ([&'a mut [f32]; 2], Inputs<'a>) {
        let labels = 2 + usize::from(self.bias);
        let inputs = Inputs {
            x: call.read(0),
            weight: call.read(1),
            bias: self.bias.then(|| call.read(2)),
            labels: Ids::read(call, labels, self.labels_i32),
            dloss: call.read::<f32>(labels + 1)[0],
        };
        ([call.write(0), call.write(1)], inputs)
    }
}

impl Kernel for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let bias = task.is("bias");
        let labels = 2 + usize::from(bias);
        Ok(LinearCrossEntropy {
            rows: task.read(labels)?.elements(),
            classes: task.write(0)?.last(),
            features: task.read(0)?.last(),
            transposed: task.is("transposed"),
            bias,
            leaves: task.attr("leaves")?,
            class_leaves: task.attr("class_leaves")?,
            ignore_index: task.attr("ignore")?,
            labels_i32: task.is_i32(labels)?,
            precision: task.attr_or("precision", Precision::F32)?,
        })
    }

    fn arguments(&self) -> Names {
        names!(x, weight, bias if self.bias, labels, dloss => dlogits, nll)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let ([dlogits, nll], inputs) = self.slices(call);
        let outputs = [(dlogits, self.classes), (nll, 1)];
        call.launch.split_rows(self.rows, outputs, |rows, outputs, own| {
            let params = LinearCrossEntropy { rows: rows.len(), ..*self };
            let logits = &mut own[..params.classes];
            linear_cross_entropy_reference(outputs, inputs.rows(rows, params.features), logits, params);
        });
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (outputs, inputs) = self.slices(call);
        linear_cross_entropy(outputs, inputs, *self, &mut call.launch);
    }

    /// The product, cross entropy (4) and its gradient (3).
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work((2.0 * self.features as f64 + 7.0) * sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        self.most_blocks().min(cores.max(1)) as i64
    }

    fn workspace(&self, blocks: usize) -> Workspace {
        self.layout(blocks).workspace()
    }

    fn ids(&self) -> usize {
        self.classes
    }
}

#[cfg(test)]
mod tests;
