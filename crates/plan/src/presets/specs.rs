//! What a preset says about every tensor of a model, before it is written as rules.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{IdVec, Op};

use crate::PlanError;
use crate::classes::Classes;

/// For some dimensions the axes that cut them.
type Dims = BTreeMap<usize, Vec<String>>;

/// What is said about one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Spec {
    pub(super) shard: Dims,
    pub(super) store: Dims,
    pub(super) regather: bool,
}

/// What is said about every tensor of a model.
pub(super) struct Specs<'a> {
    model: &'a Graph,
    pub(super) of: IdVec<ValueId, Spec>,
    /// By how many each dimension is cut so far.
    degrees: IdVec<ValueId, BTreeMap<usize, usize>>,
}

impl<'a> Specs<'a> {
    pub(super) fn new(model: &'a Graph) -> Self {
        let of = model.values().iter().map(|_| Spec { regather: true, ..Spec::default() }).collect();
        Specs { model, of, degrees: model.values().iter().map(|_| BTreeMap::new()).collect() }
    }

    /// Whether a dimension can be cut into `size` times as many blocks.
    pub(super) fn divides(&self, value: ValueId, dim: usize, size: usize) -> bool {
        let degree = self.degrees[value].get(&dim).copied().unwrap_or(1);
        self.model.ty(value).shape.dims().get(dim).is_some_and(|extent| extent.is_multiple_of(degree * size))
    }

    /// Cuts a dimension.
    pub(super) fn shard(
        &mut self,
        value: ValueId,
        dim: usize,
        axis: &str,
        size: usize,
    ) -> Result<(), PlanError> {
        if !self.divides(value, dim, size) {
            let ty = self.model.ty(value);
            let (tensor, extent) = (self.model.values()[value].name.clone(), ty.shape.dims()[dim]);
            let (ty, axes) = (ty.to_string(), format!("{axis}={size}"));
            return Err(PlanError::Indivisible { tensor, ty, dim, extent, degree: size, axes });
        }
        self.of[value].shard.entry(dim).or_default().push(axis.into());
        *self.degrees[value].entry(dim).or_insert(1) *= size;
        Ok(())
    }

    /// Cuts the batch of every input that has one. Whether it divides is seen when the plan is applied.
    pub(super) fn cut_batch(&mut self, classes: &Classes<'_>, axis: &str) {
        for input in self.model.leaves(|op| matches!(op, Op::Input)) {
            if self.model.ty(input).shape.rank() > 0 {
                self.of[input].shard.entry(classes.batch_dim(input)).or_default().push(axis.into());
            }
        }
    }

    /// Stores every parameter cut along the first dimension that divides.
    pub(super) fn store_parameters(&mut self, axis: &str, size: usize, regather: bool) {
        for parameter in self.model.leaves(|op| matches!(op, Op::Param(_))) {
            let mut dims = 0..self.model.ty(parameter).shape.rank();
            if let Some(dim) = dims.find(|&dim| self.divides(parameter, dim, size)) {
                self.of[parameter].store.insert(dim, vec![axis.into()]);
                self.of[parameter].regather = regather;
            }
        }
    }
}
