//! Which degrees of an operator's operands are legal, and what the results' degrees are, from its [`Cuts`].
//!
//! All follows from the reconstruction law and gradient duality at the head of `parallel`. Task axes are, outermost first:
//! the partial sums that a linear operator passes on, contracted axes, copies of the whole result, the other axes.

use super::rule::{Axis, Grid, TileMap, TilingRule};
use super::tiling::ParallelType;
use crate::{Cuts, Dims, Op, OpError, Operator, Shape};

/// The rule of `operator`, which is `op`, for operands tiled like this.
pub(super) fn rule(
    op: &Op,
    operator: &dyn Operator,
    operands: &[&ParallelType],
    results: &[Shape],
) -> Result<TilingRule, OpError> {
    let shapes: Vec<Shape> = operands.iter().map(|ty| ty.global().shape).collect();
    let cuts = operator.cuts(&shapes.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
    let degrees: Vec<usize> = (0..cuts.axes()).map(|axis| degree(&cuts, operands, axis)).collect();
    let mut grid = Grid::new(op, operands);
    let extra = extra_copies(&grid, &cuts, &degrees)?;
    check_refused(&grid, &cuts, &degrees)?;
    check_results(&grid, &cuts, &degrees, results)?;
    let mut axes: Vec<Vec<Axis>> = Vec::new();
    let sum = if cuts.linear { grid.axis(operands[leader(&cuts)].sum_degree()) } else { Vec::new() };
    axes.extend(degrees[..cuts.contracted].iter().map(|&degree| grid.axis(degree)));
    let copy = grid.axis(extra);
    axes.extend(degrees[cuts.contracted..].iter().map(|&degree| grid.axis(degree)));

    let along = |dims: &Dims| -> Vec<Vec<Axis>> {
        dims.iter().map(|axis| axis.map_or(Vec::new(), |axis| axes[axis].clone())).collect()
    };
    let operand = |(slot, own): (usize, &Dims)| {
        let missing = (0..axes.len()).filter(|&axis| !own.contains(&Some(axis))).map(|axis| &axes[axis]);
        let copy = match cuts.shared.contains(&slot) {
            true => Vec::new(),
            false => std::iter::once(&copy).chain(missing).flatten().copied().collect(),
        };
        TileMap { sum: sum.clone(), copy, dims: along(own) }
    };
    let sums = cuts.sum.iter().flat_map(|&axis| &axes[axis]);
    let sums: Vec<Axis> = sum.iter().chain(sums).copied().collect();
    let result = |own| TileMap { sum: sums.clone(), copy: copy.clone(), dims: along(own) };
    let ordered = cuts.unordered.is_none_or(|axis| axes[axis].is_empty());
    let exact = cuts.exact || (sum.is_empty() && copy.is_empty() && ordered);
    grid.finish(
        cuts.operands.iter().enumerate().map(operand).collect(),
        cuts.results.iter().map(result).collect(),
        exact,
    )
}

/// How often an axis is cut: what the first operand along it says, if blocks allow it.
fn degree(cuts: &Cuts, operands: &[&ParallelType], axis: Axis) -> usize {
    let Some((slot, dim)) = place(cuts, axis) else { return 1 };
    let degree = operands[slot].degree(dim);
    let fits = |&(at, blocks): &(Axis, usize)| at != axis || blocks.is_multiple_of(degree);
    if cuts.blocks.iter().all(fits) { degree } else { 1 }
}

/// The first operand, and its dimension, that runs along an axis.
fn place(cuts: &Cuts, axis: Axis) -> Option<(usize, usize)> {
    let find = |dims: &Dims| dims.iter().position(|&own| own == Some(axis));
    cuts.operands.iter().enumerate().find_map(|(slot, dims)| find(dims).map(|dim| (slot, dim)))
}

/// The operand that says how many copies and partial sums there are: the first with a gradient.
fn leader(cuts: &Cuts) -> usize {
    (0..cuts.operands.len()).find(|slot| !cuts.shared.contains(slot)).unwrap_or(0)
}

/// How many copies of the result there are: those of the leader beyond the ones that cuts of the other operands want.
fn extra_copies(grid: &Grid<'_>, cuts: &Cuts, degrees: &[usize]) -> Result<usize, OpError> {
    if cuts.single {
        return Ok(1);
    }
    let slot = leader(cuts);
    let own = &cuts.operands[slot];
    let missing = (cuts.contracted..degrees.len()).filter(|&axis| !own.contains(&Some(axis)));
    let wanted: usize = missing.map(|axis| degrees[axis]).product();
    let found = grid.operands[slot].copy_degree();
    if found.is_multiple_of(wanted) {
        return Ok(found / wanted);
    }
    let text = cuts.wants_copies.unwrap_or("the other operand's cuts want {} copies");
    let degree = (1..=wanted).find(|degree| (found * degree).is_multiple_of(wanted)).unwrap_or(wanted);
    Err(grid.wrong(slot, text.replace("{}", &wanted.to_string()), format!("apply replicate degree={degree}")))
}

fn check_refused(grid: &Grid<'_>, cuts: &Cuts, degrees: &[usize]) -> Result<(), OpError> {
    match cuts.refused {
        Some((axis, [wanted, fix])) if degrees[axis] > 1 => {
            let slot = place(cuts, axis).map_or(0, |(slot, _)| slot);
            Err(grid.wrong(slot, wanted.to_string(), fix.to_string()))
        }
        _ => Ok(()),
    }
}

/// Checks that a cut which divides the operand divides the results as well.
fn check_results(grid: &Grid<'_>, cuts: &Cuts, degrees: &[usize], results: &[Shape]) -> Result<(), OpError> {
    for (dims, shape) in cuts.results.iter().zip(results) {
        for (axis, extent) in dims.iter().zip(shape.dims()) {
            let Some((axis, (slot, dim))) = axis.and_then(|axis| Some((axis, place(cuts, axis)?))) else {
                continue;
            };
            if !extent.is_multiple_of(degrees[axis]) {
                let wanted = format!("the cut of dim {dim} does not divide the new extent {extent}");
                let fix = format!("apply combine dim={dim} degree={}", degrees[axis]);
                return Err(grid.wrong(slot, wanted, fix));
            }
        }
    }
    Ok(())
}
