//! Whether a model can be differentiated numerically at a point.

use std::collections::BTreeMap;

use phalanx_ir::Id;
use phalanx_ir::graph::{Graph, Layer, ValueId};

use crate::{Rng, Tensor, eval};

/// How far from a kink or a tie every operand stays.
const MARGIN: f64 = 1e-3;
/// How large values may grow.
const LARGEST: f64 = 100.0;
/// How much a result may be bent over twice the margin, relative to itself where it is above one. A second derivative of
/// twenty bends it so much; so does a kink whose slopes differ by a twenty-fifth, in the middle of the margin.
const BEND: f64 = 2e-5;
/// Directions in which the operands of a layer are moved: along one alone, sums may stay as they are.
const DIRECTIONS: u64 = 3;

/// Whether a model is well-behaved on these inputs: all values are finite and at most 100, and no layer is near a point
/// where its derivative jumps or changes fast (the kink of relu, a tie of a maximum, a division by almost zero).
pub fn is_smooth(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> bool {
    let values = eval::evaluate(graph, inputs);
    let tame = |x: &f64| x.is_finite() && x.abs() <= LARGEST;
    values.values().all(|tensor| tensor.data.iter().all(tame))
        && graph.layers().iter().all(|(id, layer)| {
            let seed = |direction| id.index() as u64 * DIRECTIONS + direction;
            let is_straight = |direction| is_straight(graph, layer, &values, seed(direction));
            layer.operands.is_empty() || (0..DIRECTIONS).all(is_straight)
        })
}

/// Whether the results of a layer are almost linear functions of its floats, moved in a random direction.
fn is_straight(graph: &Graph, layer: &Layer<()>, values: &BTreeMap<ValueId, Tensor>, direction: u64) -> bool {
    let shapes: Vec<_> = layer.results.iter().map(|&result| graph.ty(result).shape.clone()).collect();
    let moved = |distance: f64| {
        let mut rng = Rng::new(direction);
        let moved = |operand: &ValueId| match graph.ty(*operand).dtype.is_float() {
            true => values[operand].map(|x| x + distance * rng.choose(&[-1.0, 1.0]) * rng.uniform(0.5, 1.0)),
            false => values[operand].clone(),
        };
        let operands: Vec<_> = layer.operands.iter().map(moved).collect();
        eval::apply(&layer.op, &operands.iter().collect::<Vec<_>>(), &shapes)
    };
    let [low, high] = [-MARGIN, MARGIN].map(moved);
    layer.results.iter().zip(low.iter().zip(&high)).all(|(result, (low, high))| {
        let at = &values[result].data;
        at.iter().zip(low.data.iter().zip(&high.data)).all(|(at, (low, high))| {
            let bend = (low + high - 2.0 * at).abs();
            bend <= BEND * at.abs().max(1.0)
        })
    })
}
