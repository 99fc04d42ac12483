//! The reconstruction law: a layer's tasks, each on its own tiles, give the tiles of the whole operator's results.

use phalanx_ir::parallel::{Coord, ParallelType, place};
use phalanx_ir::{Op, Shape, TensorType};
use phalanx_ops::{Concat, Gather, Split};
use phalanx_testkit::{Rng, Tensor, eval};

use super::layer::Legal;

/// Whether a task needs nothing but its tiles: neither their place in the tensor nor the other tasks. A dropout mask
/// is left out because the naive evaluator draws none.
pub fn is_local(op: &Op, operands: &[ParallelType]) -> bool {
    match op.to_text().0 {
        "embedding" => operands[1].degree(0) == 1,
        "gather_rows" => op.get().is_some_and(|&Gather { axis }| operands[0].degree(axis) == 1),
        "grouped_linear" => operands[2].degree(0) == 1,
        "rotary" => operands[0].degree(1) == 1,
        "cross_entropy" => operands[0].dims().last().is_some_and(|classes| classes.degree == 1),
        _ => true,
    }
}

/// A whole operand: indices in their range, positive numbers where the operator wants them.
fn whole(op: &Op, slot: usize, operands: &[ParallelType], rng: &mut Rng) -> Tensor {
    let shape = operands[slot].global().shape;
    let shapes: Vec<Shape> = operands.iter().map(|ty| ty.global().shape).collect();
    let bound = op.operator().and_then(|op| op.index_bound(&shapes.iter().collect::<Vec<_>>()));
    let below = match op.to_text().0 {
        "count_labels" => Some(3),
        _ => bound.filter(|bound| bound.slot == slot).map(|bound| bound.below),
    };
    let positive = matches!(op.to_text().0, "log" | "div");
    let low = if positive { 0.5 } else { -2.0 };
    Tensor::from_fn(&shape, |_| match below {
        Some(bound) => rng.below(bound) as f64,
        None => rng.uniform(low, 2.0),
    })
}

/// A tensor as partial sums: random but for the last.
fn addends(x: &Tensor, count: usize, rng: &mut Rng) -> Vec<Tensor> {
    let mut parts: Vec<_> = (1..count).map(|_| x.map(|_| rng.uniform(-2.0, 2.0))).collect();
    let mut rest = x.clone();
    for part in &parts {
        rest.data.iter_mut().zip(&part.data).for_each(|(rest, part)| *rest -= part);
    }
    parts.push(rest);
    parts
}

/// The tile at `coord` of a tensor given as partial sums; all copies are the same.
fn tile(ty: &ParallelType, parts: &[Tensor], coord: &Coord) -> Tensor {
    let origin = ty.origin(coord);
    Tensor::from_fn(&ty.tile().shape, |index| {
        let global: Vec<_> = index.iter().zip(&origin).map(|(i, start)| i + start).collect();
        parts[coord.sum].at(&global)
    })
}

/// The operator of one task: it sees only its own blocks of a cut axis.
fn of_tile(op: &Op, x: &ParallelType) -> Op {
    match (op.get(), op.get()) {
        (Some(Split { axis, sizes, blocks }), _) => {
            Split { axis: *axis, sizes: sizes.clone(), blocks: blocks / x.degree(*axis) }.into()
        }
        (_, Some(Concat { axis, blocks })) => Concat { axis: *axis, blocks: blocks / x.degree(*axis) }.into(),
        _ => op.clone(),
    }
}

/// The value that the tiles of one copy mean.
fn reconstructed(ty: &ParallelType, tiles: &[Option<Tensor>], copy: usize) -> Tensor {
    let TensorType { shape, .. } = ty.tile();
    Tensor::from_fn(&ty.global().shape, |index| {
        let dims: Vec<_> = index.iter().zip(shape.dims()).map(|(i, extent)| i / extent).collect();
        let within: Vec<_> = index.iter().zip(shape.dims()).map(|(i, extent)| i % extent).collect();
        let at = |sum| ty.index(&Coord { sum, copy, dims: dims.clone() });
        let tile = |sum| tiles[at(sum)].as_ref().expect("every tile is written");
        (0..ty.sum_degree()).map(|sum| tile(sum).at(&within)).sum()
    })
}

/// Checks the law for random operands.
pub fn check(op: &Op, operands: &[ParallelType], legal: &Legal, rng: &mut Rng) {
    let Legal { rule, results, .. } = legal;
    let wholes: Vec<_> = (0..operands.len()).map(|slot| whole(op, slot, operands, rng)).collect();
    let shapes: Vec<Shape> = results.iter().map(|ty| ty.global().shape).collect();
    let wanted = eval::apply(op, &wholes.iter().collect::<Vec<_>>(), &shapes);
    let parts: Vec<_> = wholes.iter().zip(operands).map(|(x, ty)| addends(x, ty.sum_degree(), rng)).collect();
    let mut found: Vec<Vec<Option<Tensor>>> = results.iter().map(|ty| vec![None; ty.tiles()]).collect();
    let tile_shapes: Vec<Shape> = results.iter().map(|ty| ty.tile().shape).collect();
    for task in 0..rule.tasks() {
        let place = place(&rule.extents, task);
        let read = |slot: usize| {
            let coord = rule.operands[slot].coord(&rule.extents, &place);
            tile(&operands[slot], &parts[slot], &coord)
        };
        let reads: Vec<_> = (0..operands.len()).map(read).collect();
        let reads: Vec<_> = reads.iter().collect();
        let written = eval::apply(&of_tile(op, &operands[0]), &reads, &tile_shapes);
        for (slot, tensor) in written.into_iter().enumerate() {
            let at = results[slot].index(&rule.results[slot].coord(&rule.extents, &place));
            let before = found[slot][at].replace(tensor);
            assert_eq!(before, None, "{op:?}: each tile is written by one task");
        }
    }
    for ((ty, tiles), wanted) in results.iter().zip(&found).zip(&wanted) {
        for copy in 0..ty.copy_degree() {
            let value = reconstructed(ty, tiles, copy);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            let same = value.shape == wanted.shape && value.data.iter().zip(&wanted.data).all(near);
            assert!(same, "{op:?} of {operands:?}: copy {copy} of {ty} is {value:?}, not {wanted:?}");
        }
    }
}
