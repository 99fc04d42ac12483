//! Mixtures of experts as a composition: each row goes through the matrices of the experts that its routes name.
//!
//! With a capacity, an expert takes so many routes of each sample, in the order of rows and, in a row, of its routes; the
//! others are left out, and count as zeros. Samples are the outermost dimension of ids `[samples, rows…, k]`; ids
//! `[rows, k]` are one sample. The place of a route among those of its expert is a product with a triangle of ones, whose
//! sums of whole numbers no plan changes.

use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ir::{Activation, Binary, CompareKind, DType, Reduce, Shape, Table, Unary};

use crate::{Broadcast, Cast, Compare, GroupedLinear, Layers, ReduceOp};

/// The matrices of experts, each `[experts, out, in]`, and what stands between them.
#[derive(Clone, Copy, Debug)]
pub struct MoeLayer {
    /// Applied to what `up` gives, or to what `gate` gives if there is one, which is then multiplied by what `up` gives.
    pub activation: Activation,
    /// From the width to the hidden features.
    pub up: ValueId,
    /// As `up`, if experts are gated.
    pub gate: Option<ValueId>,
    /// Back to the width.
    pub down: ValueId,
    /// How many routes of a sample an expert takes; all if nothing is said.
    pub capacity: Option<usize>,
}

/// Adds the layers; see [`Layers::experts`].
pub(crate) fn experts(
    model: &mut Builder,
    name: &str,
    x: ValueId,
    [ids, weights]: [ValueId; 2],
    layer: MoeLayer,
) -> Result<ValueId, BuildError> {
    let named = |word: &str| format!("{name}.{word}");
    let (routes, width) = (model.shape(ids).dims().to_vec(), model.shape(x).last());
    let k = routes.len().saturating_sub(1);
    let one = [&routes[..k], &[1, width]].concat();
    let one = model.reshape(&named("row"), x, Shape::new(one))?;
    let shape = Shape::new([&routes[..], &[width]].concat());
    let rows = model.add_one(&named("rows"), Broadcast { shape }, &[one])?;
    let up = model.add_one(&named("up"), GroupedLinear, &[rows, ids, layer.up])?;
    let hidden = match layer.gate {
        None => model.unary(&named("act"), Unary::Act(layer.activation), up)?,
        Some(gate) => {
            let gate = model.add_one(&named("gate"), GroupedLinear, &[rows, ids, gate])?;
            let gate = model.unary(&named("act"), Unary::Act(layer.activation), gate)?;
            model.binary(&named("gated"), Binary::Mul, gate, up)?
        }
    };
    let down = model.add_one(&named("down"), GroupedLinear, &[hidden, ids, layer.down])?;
    let weights = match layer.capacity {
        None => weights,
        Some(capacity) => {
            let experts = model.shape(layer.up).dims().first().copied().unwrap_or(1);
            let taken = taken(model, name, ids, experts, capacity)?;
            model.binary(&named("limited"), Binary::Mul, weights, taken)?
        }
    };
    let factors = model.reshape(&named("weights"), weights, Shape::new([&routes[..], &[1]].concat()))?;
    let weighted = model.binary(&named("weighted"), Binary::Mul, down, factors)?;
    model.add_one(name, ReduceOp { kind: Reduce::Sum, axes: vec![k], keep: false }, &[weighted])
}

/// For every route one if its expert takes it, else zero.
fn taken(
    model: &mut Builder,
    name: &str,
    ids: ValueId,
    experts: usize,
    capacity: usize,
) -> Result<ValueId, BuildError> {
    let named = |word: &str| format!("{name}.{word}");
    let shape = model.shape(ids).clone();
    let samples = if shape.rank() > 2 { shape.dims()[0] } else { 1 };
    let routes = shape.elements() / samples;
    let flat = model.reshape(&named("routes"), ids, [samples, 1, routes])?;
    let flat = model.add_one(&named("chosen"), Cast { to: DType::F32 }, &[flat])?;
    let numbers: Vec<f32> = (0..experts).map(|expert| expert as f32).collect();
    let numbers = model.table(&named("numbers"), [experts, 1], Table::f32s(&numbers))?;
    let compare = |kind, scalar| Compare { kind, scalar };
    let own = model.add_one(&named("own"), compare(CompareKind::Eq, None), &[flat, numbers])?;
    let counted = model.add_one(&named("counted"), Cast { to: DType::F32 }, &[own])?;
    let triangle = |at: usize| if at % routes <= at / routes { 1.0 } else { 0.0 };
    let triangle: Vec<f32> = (0..routes * routes).map(triangle).collect();
    let triangle = model.table(&named("triangle"), [routes, routes], Table::f32s(&triangle))?;
    let places = model.linear(&named("places"), counted, triangle, None)?;
    let early = model.add_one(&named("early"), compare(CompareKind::Le, Some(capacity as f64)), &[places])?;
    let both = model.add_one(&named("both"), compare(CompareKind::And, None), &[early, own])?;
    let both = model.add_one(&named("both.number"), Cast { to: DType::F32 }, &[both])?;
    let sum = ReduceOp { kind: Reduce::Sum, axes: vec![1], keep: false };
    let taken = model.add_one(&named("taken"), sum, &[both])?;
    model.reshape(&named("taken.routes"), taken, shape)
}
