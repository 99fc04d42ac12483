//! What layers do with their parameters along each class of axes: which ones make it, which ones take it in.

use phalanx_ir::graph::{Graph, Layer, LayerId, ValueId};
use phalanx_ir::{Cuts, Op};

use crate::classes::{Class, Classes, shapes};

/// What a layer does along a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Its parameter gives the result this class: the outputs of a linear layer, the rows of a table.
    Makes,
    /// It is summed over in products with a parameter: the inputs of a linear layer.
    TakesIn,
    /// It ends here without such a sum: the ids of an embedding, the classes of a cross entropy.
    Ends,
}

/// One thing that a layer does along a class.
pub(super) struct WeightUse {
    pub(super) layer: LayerId,
    pub(super) class: Class,
    pub(super) role: Role,
    /// The parameter and its dimension along the class; none for the classes of a cross entropy.
    pub(super) weight: Option<(ValueId, usize)>,
}

/// What all layers do, in the order of the model.
pub(super) fn weight_uses(model: &Graph, classes: &Classes<'_>) -> Vec<WeightUse> {
    let mut uses = Vec::new();
    for (id, layer) in model.layers().iter() {
        let Some(operator) = layer.op.operator() else { continue };
        let cuts = operator.cuts(&shapes(model, &layer.operands), &shapes(model, &layer.results));
        for (slot, (&operand, dims)) in layer.operands.iter().zip(&cuts.operands).enumerate() {
            for (dim, axis) in dims.iter().enumerate() {
                let Some(axis) = *axis else { continue };
                let is_param = matches!(model.op_of(operand), Op::Param(_));
                let weight = is_param.then_some((operand, dim));
                let class = classes.of(operand, dim);
                for role in roles(&cuts, layer, slot, axis, is_param) {
                    uses.push(WeightUse { layer: id, class, role, weight });
                }
            }
        }
    }
    uses
}

/// What a layer does along an axis of operand `slot`.
fn roles(cuts: &Cuts, layer: &Layer<()>, slot: usize, axis: usize, is_param: bool) -> Vec<Role> {
    let has = |dims: &Vec<Option<usize>>| dims.contains(&Some(axis));
    let others = || (0..layer.operands.len()).filter(|&other| other != slot);
    let is_shared = others().any(|other| cuts.operands.get(other).is_some_and(has));
    let in_result = cuts.results.iter().any(has);
    let is_product = cuts.contracted > 0 && is_param && cuts.operands[slot].len() > 1;
    match () {
        () if is_product && axis < cuts.contracted && is_shared => vec![Role::TakesIn],
        // Ids choose along the axis: nothing else runs along it.
        () if is_product && axis < cuts.contracted => vec![Role::Makes, Role::Ends],
        () if is_product && in_result => vec![Role::Makes],
        () if !in_result && !cuts.sum.contains(&axis) => vec![Role::Ends],
        () => Vec::new(),
    }
}
