//! Random small models and random tensors to run them on. The same seed gives the same model and the same tensors.
//!
//! Models use every operator, extents are small and mostly odd, and the one output is a scalar loss that depends on
//! all values. They are well-behaved (see [`is_smooth`]) on their [`random_inputs`] of the same seed, so that finite
//! differences and single precision come close to them. Left out: dropout at a rate above zero, random numbers that differ
//! and casts to `bf16`, which the naive evaluator does not draw or round.

mod model;
mod smooth;

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_ir::graph::{Graph, Layer, LayerGraph, ValueId};
use phalanx_ir::{Binary, Op, Unary};
use phalanx_ops::{BinaryOp, Normalize, UnaryOp};

use crate::{Rng, Tensor};

pub use smooth::is_smooth;

/// How often a draw is repeated in search of one that is well-behaved.
const TRIES: u64 = 32;

/// What a dimension may be, the likelier ones more than once.
const EXTENTS: [usize; 6] = [1, 2, 3, 3, 5, 7];

/// A random model of a few layers.
///
/// # Panics
/// If no well-behaved model is found in many tries, which does not happen for any seed in practice.
pub fn random_graph(seed: u64) -> Graph {
    random_graph_of(seed, &EXTENTS)
}

/// The same with other extents to choose from; one listed twice is drawn twice as often.
///
/// # Panics
/// If no well-behaved model is found in many tries.
pub fn random_graph_of(seed: u64, extents: &[usize]) -> Graph {
    (0..100 * TRIES)
        .map(|attempt| model::build(Rng::new(seed.wrapping_add(attempt << 32)), extents))
        .find(|graph| is_smooth(graph, &random_inputs(graph, seed)))
        .expect("one of many random models is well-behaved")
}

/// Random tensors for every input, parameter and state of a model.
///
/// Floats lie between -1 and 1, or between 0.5 and 2 if a logarithm, root, power or division uses them directly.
/// Indices stay in the table they index and labels in their classes, some of them ignored. The first draw on which
/// the model is well-behaved is taken, or the last of a few dozen if none is.
pub fn random_inputs(graph: &Graph, seed: u64) -> BTreeMap<String, Tensor> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut inputs = draw(graph, &mut rng);
    for _ in 1..TRIES {
        if is_smooth(graph, &inputs) {
            break;
        }
        inputs = draw(graph, &mut rng);
    }
    inputs
}

/// Gives a model that was read from a text the tables of the one it was written from.
pub fn provide_tables<T, L>(model: &mut LayerGraph<T, L>, from: &Graph) {
    for (_, table) in from.tables() {
        model.provide_table(Arc::clone(table.bytes().expect("a drawn table has its bytes")));
    }
}

fn draw(graph: &Graph, rng: &mut Rng) -> BTreeMap<String, Tensor> {
    let leaves = graph.leaves(|op| matches!(op, Op::Input | Op::Param(_) | Op::State(_)));
    leaves.map(|id| (graph.values()[id].name.clone(), draw_leaf(graph, id, rng))).collect()
}

fn draw_leaf(graph: &Graph, leaf: ValueId, rng: &mut Rng) -> Tensor {
    let ty = graph.ty(leaf);
    if !ty.dtype.is_float() {
        let range = index_range(graph, leaf);
        return Tensor::from_fn(&ty.shape, |_| match range.ignore {
            Some(ignore) if rng.once_in(4) => ignore as f64,
            _ => rng.below(range.bound) as f64,
        });
    }
    let (low, high) = if needs_positive(graph, leaf) { (0.5, 2.0) } else { (-1.0, 1.0) };
    // Rounded, so that single precision starts from the same numbers.
    Tensor::from_fn(&ty.shape, |_| f64::from(rng.uniform(low, high) as f32))
}

/// What the integers of a tensor may be: below `bound`, or `ignore`.
#[derive(Clone, Copy)]
struct Range {
    bound: usize,
    ignore: Option<i64>,
}

/// The integers that every use of `value` takes; a truth value is 0 or 1.
fn index_range(graph: &Graph, value: ValueId) -> Range {
    let bound = if graph.ty(value).dtype.is_index() { 5 } else { 2 };
    let mut range = Range { bound, ignore: None };
    let mut narrow = |bound: usize| range.bound = range.bound.min(bound);
    let mut found = None;
    for (slot, layer) in uses(graph, value) {
        let shapes: Vec<_> = layer.operands.iter().map(|&operand| &graph.ty(operand).shape).collect();
        let bound = layer.op.operator().and_then(|operator| operator.index_bound(&shapes));
        if let Some(bound) = bound.filter(|bound| bound.slot == slot) {
            narrow(bound.below);
            found = bound.ignore.or(found);
        }
        for &result in layer.results.iter().filter(|&&result| graph.ty(result).dtype.is_index()) {
            let inner = index_range(graph, result);
            narrow(inner.bound);
            found = found.or(inner.ignore);
        }
    }
    range.ignore = found;
    range
}

/// Whether an operator that is defined for positive numbers only takes `value` directly.
fn needs_positive(graph: &Graph, value: ValueId) -> bool {
    uses(graph, value).any(|(slot, layer)| {
        let op = &layer.op;
        let unary = op.get().is_some_and(|UnaryOp(unary)| {
            matches!(unary, Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::PowScalar(_))
        });
        let divisor = op.get().is_some_and(|BinaryOp(binary)| *binary == Binary::Div) && slot == 1;
        unary || divisor || op.get::<Normalize>().is_some() && slot == 2
    })
}

fn uses(graph: &Graph, value: ValueId) -> impl Iterator<Item = (usize, &Layer<()>)> {
    graph.layers().iter().flat_map(move |(_, layer)| {
        let slots = layer.operands.iter().enumerate().filter(move |&(_, &operand)| operand == value);
        slots.map(move |(slot, _)| (slot, layer))
    })
}

#[cfg(test)]
mod tests;
