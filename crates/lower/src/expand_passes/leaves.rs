//! Into how many leaves a tile's part of a sum is cut.
//!
//! The whole sum has a number of leaves that depends on the model alone. A microbatch owns an aligned part of the batch's
//! leaves, a tile an aligned part of that; where the cut does not follow the leaves, the bits would depend on the plan.

use phalanx_ir::graph::{LayerId, ValueId};
use phalanx_ir::parallel::{Dim, ParallelType};
use phalanx_ir::{Binary, Op, RowLeaves, leaves_of};

use super::Expander;
use super::sums::Contribution;
use crate::LowerError;

impl Expander<'_> {
    /// The leaves of an axis cut `degree` ways; reports the layer if they are too few. There are `leaves` of them over
    /// `extent` elements.
    fn cut(&mut self, extent: usize, leaves: usize, degree: usize, what: &str) -> usize {
        if leaves.is_multiple_of(degree) {
            return leaves / degree;
        }
        let layer = self.graph.layer_name(self.layer).to_string();
        let what = what.to_string();
        self.unaligned.get_or_insert(LowerError::Unaligned { layer, what, extent, leaves, degree });
        1
    }

    /// Reports the layer at hand: what it sums cannot be cut at all.
    fn refuse(&mut self, what: &str) {
        self.cut(0, 1, 2, what);
    }

    /// How many microbatches the batch of the layer at hand is cut into.
    fn parts(&self) -> usize {
        self.label().microbatch.map_or(1, |part| part.count as usize)
    }

    /// How many ways a batch cut into `degree` tiles is cut, microbatches counted. The parts of a tile are neighbours only if
    /// the batch was cut into as many blocks before it was cut into microbatches; else the layer is reported.
    fn batch_cuts(&mut self, degree: usize) -> usize {
        let blocks = self.label().microbatch.filter(|part| part.count > 1).map(|part| part.blocks as usize);
        if blocks.is_some_and(|blocks| blocks != degree) {
            self.refuse("microbatches that are not parts of its own tiles");
        }
        self.parts() * degree
    }

    /// Leaves of a sum over all elements of some outermost dimensions, as one list.
    pub(super) fn leaves_of_rows(&mut self, rows: &[Dim]) -> usize {
        let count: usize = rows.iter().map(|dim| dim.size).product();
        let whole = leaves_of(count * self.parts(), self.options.leaves.batch);
        let inner: usize = rows.iter().skip(1).map(|dim| dim.degree).product();
        let outer = rows.first().map_or(1, |dim| dim.degree);
        if inner > 1 {
            return self.cut(0, 1, inner, "rows inside the batch");
        }
        let cuts = self.batch_cuts(outer);
        let extent = rows.first().map_or(1, |batch| batch.size * self.parts());
        self.cut(extent, whole, cuts, "the batch")
    }

    /// Leaves of a sum over `rows`, the outermost dimensions of a tensor: of batch, time and heads all may be cut.
    pub(super) fn leaves_of_batch_and_time(&mut self, rows: &[Dim]) -> RowLeaves {
        let flat = |this: &mut Self| {
            let batch = this.leaves_of_rows(rows);
            let whole = batch * rows.first().map_or(1, |batch| batch.degree);
            RowLeaves { batch, time: 1, heads: None, whole }
        };
        let (batch, time, heads) = match *rows {
            [batch, time] => (batch, time, None),
            [batch, time, heads] => (batch, time, Some(heads)),
            _ => return flat(self),
        };
        let most = self.options.leaves;
        let extent = batch.size * self.parts();
        let whole = leaves_of(extent, most.batch);
        if heads.is_none() && whole != leaves_of(batch.size * time.size * self.parts(), most.batch) {
            return flat(self);
        }
        let cuts = self.batch_cuts(batch.degree);
        let in_tile = self.cut(extent, whole, cuts, "the batch");
        let time = self.cut(time.size, leaves_of(time.size, most.sequence), time.degree, "time");
        let heads = heads.map(|heads| {
            self.cut(heads.size, leaves_of(heads.size, most.feature), heads.degree, "rows inside the batch")
        });
        RowLeaves { batch: in_tile, time, heads, whole: in_tile * batch.degree }
    }

    /// Leaves of a sum over one feature dimension.
    pub(super) fn leaves_of_features(&mut self, dim: Dim) -> usize {
        self.cut(dim.size, leaves_of(dim.size, self.options.leaves.feature), dim.degree, "features")
    }

    /// Leaves of a sum over some dimensions, along the first of them; the others must be whole. Without a batch the
    /// outermost dimension counts as one.
    pub(super) fn leaves_of_axes(
        &mut self,
        ty: &ParallelType,
        axes: &[usize],
        batch: Option<usize>,
    ) -> usize {
        let others: usize = axes.iter().skip(1).map(|&axis| ty.degree(axis)).product();
        if others > 1 {
            return self.cut(0, 1, others, "an inner dimension of the sum");
        }
        match axes.first() {
            None => 1,
            Some(&axis) if axis == batch.unwrap_or(0) => self.leaves_of_rows(&ty.dims()[axis..=axis]),
            Some(&axis) => self.leaves_of_features(ty.dims()[axis]),
        }
    }

    /// Whether a layer adds what microbatches computed. Each device then adds inside its own block of the batch, which is
    /// the lower part of the tree over the batch.
    fn adds_microbatches(&self, layer: LayerId) -> bool {
        let layer = &self.graph.layers()[layer];
        let from_one = |&value: &ValueId| {
            let producer = self.graph.values()[value].layer;
            self.graph.layers()[producer].label.microbatch.is_some() || self.adds_microbatches(producer)
        };
        layer.op.to_text().0 == Binary::Add.word()
            && layer.label.microbatch.is_none()
            && layer.operands.iter().all(from_one)
    }

    /// Reports the layer at hand unless all microbatches are in every one of the uses of its result: those that come by
    /// other ways are not added as a tree.
    pub(super) fn check_microbatches(&mut self, uses: &[Vec<Contribution>]) {
        let is_short = |parts: &Vec<Contribution>| {
            parts[0].microbatch.is_some_and(|part| parts.len() < part.count as usize)
        };
        if self.label().microbatch.is_none() && uses.iter().any(is_short) {
            self.refuse("only some of the microbatches");
        }
    }

    /// Reports the layer at hand if it adds over devices what one microbatch gives to a value of all: all microbatches of a
    /// block of the batch are added before its blocks are.
    pub(super) fn check_blocks(&mut self) {
        let of_all = |value: &ValueId| {
            let producer = self.graph.values()[*value].layer;
            self.graph.layers()[producer].label.microbatch.is_none()
        };
        let is_cut = self.label().microbatch.is_some_and(|part| part.count > 1 && part.blocks > 1);
        let layer = &self.graph.layers()[self.layer];
        if is_cut && matches!(layer.op, Op::Replicate { .. }) && of_all(&layer.operands[0]) {
            self.refuse("the blocks of one microbatch");
        }
    }

    /// Reports the layer at hand unless its rule keeps the bits.
    pub(super) fn check_exact(&mut self) {
        if !self.rule.exact && !self.adds_microbatches(self.layer) {
            self.refuse("values that are partial sums or have partial gradients");
        }
    }
}
