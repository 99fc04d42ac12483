//! Sequence parallelism: beside the cuts of tensor parallelism, the residual stream is cut along the sequence.

use phalanx_ir::graph::{Graph, LayerId, ValueId};
use phalanx_ir::{Binary, Op};
use phalanx_ops::BinaryOp;

use super::features::Features;
use super::specs::Specs;
use super::weights::{Role, WeightUse};
use crate::PlanError;

/// Two products whose result is added to that of a layer with the same input: a low-rank adapter of the layer.
struct AdapterPair {
    /// The first product, from the inputs to the rank.
    down: LayerId,
    /// The second one, from the rank to the outputs.
    up: LayerId,
    /// The layer beside it.
    base: LayerId,
    /// The sum of both.
    sum: ValueId,
}

/// Cuts the residual stream along the sequence, where embeddings begin it and after every sum over cut features: the
/// layers between follow. Products that would be whole, and adapters, have their outputs cut, adapters their inputs if
/// those do not divide: like all others they see whole sequences, and the gradients of their weights are sums over whole
/// rows.
pub(super) fn cut_sequence(
    features: &Features<'_>,
    specs: &mut Specs<'_>,
    axis: &str,
    size: usize,
) -> Result<(), PlanError> {
    let model = features.model;
    let sequence = features.classes.sequence();
    let adapters: Vec<AdapterPair> = model.layers().ids().filter_map(|layer| adapter(model, layer)).collect();
    let mut is_cut = false;
    for stream in streams(features, specs, &adapters) {
        let rank = model.ty(stream).shape.rank();
        let mut dims = 0..rank.saturating_sub(1);
        if let Some(dim) = dims.find(|&dim| sequence.contains(&features.classes.of(stream, dim))) {
            specs.shard(stream, dim, axis, size)?;
            is_cut = true;
        }
    }
    let whole = whole_products(features, specs);
    let adapted = adapters.iter().map(|adapter| (adapter.down, true));
    let whole = whole.into_iter().filter(|layer| adapters.iter().all(|adapter| adapter.up != *layer));
    for (down, is_adapter) in adapted.chain(whole.map(|layer| (layer, false))) {
        let operands = &model.layers()[down].operands;
        let made = features.uses.iter().find(|used| used.layer == down && used.role == Role::Makes);
        let Some((weight, outputs)) = made.and_then(|used| used.weight) else { continue };
        if !specs.of[weight].shard.is_empty() {
            continue;
        }
        let by_outputs = specs.divides(weight, outputs, size);
        // A head whose vocabulary does not divide stays whole.
        if !by_outputs && !is_adapter {
            continue;
        }
        specs.shard(weight, if by_outputs { outputs } else { 1 - outputs }, axis, size)?;
        if let Some(&bias) = operands.get(2).filter(|_| by_outputs) {
            specs.shard(bias, 0, axis, size)?;
        }
    }
    match is_cut {
        true => Ok(()),
        false => Err(PlanError::NoSequence { model: model.name().into(), size }),
    }
}

/// Products by whole parameters over the sequence, of heads that do not divide, say.
fn whole_products(features: &Features<'_>, specs: &Specs<'_>) -> Vec<LayerId> {
    let (model, sequence) = (features.model, features.classes.sequence());
    let has_sequence = |input: ValueId| {
        let dims = 0..model.ty(input).shape.rank().saturating_sub(1);
        dims.into_iter().any(|dim| sequence.contains(&features.classes.of(input, dim)))
    };
    let is_whole = |layer: &LayerId| {
        let operands = &model.layers()[*layer].operands;
        product(model, model.layers()[*layer].results[0]).is_some()
            && specs.of[operands[1]].shard.is_empty()
            && has_sequence(operands[0])
    };
    model.layers().ids().filter(is_whole).collect()
}

/// The values that the residual stream is added from, in the order of the model.
fn streams(features: &Features<'_>, specs: &Specs<'_>, adapters: &[AdapterPair]) -> Vec<ValueId> {
    let model = features.model;
    let is_cut =
        |used: &WeightUse| used.weight.is_some_and(|(weight, dim)| specs.of[weight].shard.contains_key(&dim));
    let mut streams = Vec::new();
    for used in &features.uses {
        let result = model.layers()[used.layer].results[0];
        let is_stream = match used.role {
            Role::TakesIn => is_cut(used) && adapters.iter().all(|adapter| adapter.down != used.layer),
            Role::Ends => used.weight.is_some(),
            Role::Makes => false,
        };
        if is_stream {
            streams.push(result);
            let beside = adapters.iter().filter(|adapter| adapter.base == used.layer);
            streams.extend(beside.map(|adapter| adapter.sum));
        }
    }
    streams
}

/// The adapter whose sum `layer` is.
fn adapter(model: &Graph, layer: LayerId) -> Option<AdapterPair> {
    let layer = &model.layers()[layer];
    layer.op.get::<BinaryOp>().filter(|op| op.0 == Binary::Add)?;
    let [base, share] = layer.operands[..] else { return None };
    let base = product(model, base)?;
    let up = product(model, share).or_else(|| product(model, only_operand(model, share)?))?;
    let input = |product: LayerId| model.layers()[product].operands[0];
    let down = product(model, input(up))?;
    let is_beside = input(down) == input(base) && [base, up].iter().all(|&other| other != down);
    is_beside.then_some(AdapterPair { down, up, base, sum: layer.results[0] })
}

/// The layer that gives `value`, if it multiplies by a parameter.
fn product(model: &Graph, value: ValueId) -> Option<LayerId> {
    let id = model.values()[value].layer;
    let layer = &model.layers()[id];
    let weight = layer.operands.get(1).filter(|_| layer.op.get::<phalanx_ops::Linear>().is_some())?;
    matches!(model.op_of(*weight), Op::Param(_)).then_some(id)
}

/// The operand of the layer that gives `value`, if it has but one.
fn only_operand(model: &Graph, value: ValueId) -> Option<ValueId> {
    match model.layers()[model.values()[value].layer].operands[..] {
        [operand] => Some(operand),
        _ => None,
    }
}
