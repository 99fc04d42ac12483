//! The parallel rule of every operator: which degrees are legal on each slot, and what the results' degrees are.
//!
//! All follow from the reconstruction law and gradient duality at the head of `parallel`. An operand that carries a gradient
//! is named by every task axis exactly once, so that each copy gives one additive part of its gradient; integer operands
//! carry none and may be shared.

use super::rule::{Axis, Grid, Rule, TileMap};
use super::tiling::ParallelType;
use crate::{Activation, Binary, Op, OpError, Reduce, Shape, Unary};

type Result<T> = std::result::Result<T, OpError>;

/// The rule of `op` for operands tiled like this. Leaves and the four parallel operators have none.
pub(super) fn rule(op: &Op, operands: &[&ParallelType], results: &[Shape]) -> Result<Rule> {
    let grid = Grid::new(op, operands);
    let rank = |slot: usize| operands[slot].dims().len();
    match op {
        Op::Linear { transposed, activation } => linear(grid, *transposed, *activation),
        Op::Matmul { transpose_a, transpose_b } => matmul(grid, *transpose_a, *transpose_b),
        Op::Embedding { bag } => embedding(grid, *bag),
        Op::Binary(kind) => binary(grid, *kind, &results[0]),
        Op::Unary(kind) => pointwise(grid, &[], matches!(kind, Unary::Identity | Unary::Neg)),
        Op::Dropout { .. } | Op::Cast(_) => pointwise(grid, &[], false),
        Op::Softmax { axis } => pointwise(grid, &[*axis], false),
        Op::Rotary { .. } => pointwise(grid, &[3], false),
        Op::LayerNorm { axes, .. } => norm(grid, *axes),
        Op::RmsNorm { .. } => norm(grid, 1),
        Op::Attention { .. } => attention(grid),
        Op::Reshape(_) => reshape(grid, &results[0]),
        Op::Broadcast(_) => stretch(grid, &results[0]),
        Op::Transpose(perm) => transpose(grid, perm),
        Op::Split { axis, blocks, .. } => cut(grid, *axis, *blocks, results.len()),
        Op::Concat { axis, blocks } => cut(grid, *axis, *blocks, 1),
        Op::Reduce { kind, axes, keep } => reduce(grid, *kind, axes, *keep),
        Op::CrossEntropy { .. } => cross_entropy(grid),
        Op::CountLabels { .. } => {
            let mut grid = grid;
            let dims = grid.axes_of(0, 0..rank(0));
            let sum = dims.concat();
            grid.finish(vec![plain(dims)], vec![TileMap { sum, ..TileMap::default() }], true)
        }
        _ => unreachable!("leaves and parallel operators have no tasks"),
    }
}

fn plain(dims: Vec<Vec<Axis>>) -> TileMap {
    TileMap { dims, ..TileMap::default() }
}

/// How `found` copies become a multiple of `wanted`, with no more copies than that takes.
fn more_copies(found: usize, wanted: usize) -> String {
    let degree = (1..=wanted).find(|degree| (found * degree).is_multiple_of(wanted));
    format!("apply replicate degree={}", degree.unwrap_or(wanted))
}

/// Element by element, except that the dimensions `whole` must not be cut; `linear` ones take partial sums.
fn pointwise(mut grid: Grid<'_>, whole: &[usize], linear: bool) -> Result<Rule> {
    let x = grid.operands[0];
    let sum = if linear { grid.axis(x.sum_degree()) } else { Vec::new() };
    let copy = grid.axis(x.copy_degree());
    let cut = |dim: &usize| !whole.contains(dim);
    let dims = (0..x.dims().len()).map(|dim| if cut(&dim) { grid.axis(x.degree(dim)) } else { Vec::new() });
    let map = TileMap { dims: dims.collect(), sum, copy };
    let exact = linear || map.copy.is_empty();
    grid.finish(vec![map.clone()], vec![map], exact)
}

/// x `[rows…, in]`, weight `[out, in]`, bias `[out]`: a cut of `in` gives partial sums, a cut of `out` wants copies of x,
/// a cut of rows wants copies of weight and bias.
fn linear(mut grid: Grid<'_>, transposed: bool, activation: Activation) -> Result<Rule> {
    let (x, weight) = (grid.operands[0], grid.operands[1]);
    let lead = x.dims().len() - 1;
    let (out_dim, in_dim) = if transposed { (1, 0) } else { (0, 1) };
    let (inner, outer) = (x.degree(lead), weight.degree(out_dim));
    if !x.copy_degree().is_multiple_of(outer) {
        let wanted = format!("a weight cut into {outer} along its outputs wants {outer} copies");
        return Err(grid.wrong(0, wanted, more_copies(x.copy_degree(), outer)));
    }
    let sum = grid.axis(inner);
    let extra = grid.axis(x.copy_degree() / outer);
    let rows = grid.axes_of(0, 0..lead);
    let out = grid.axis(outer);
    if inner > 1 && (grid.operands.len() > 2 || activation != Activation::None) {
        let wanted = "partial sums take no bias and no activation".to_string();
        return Err(grid.wrong(0, wanted, "apply reduction first, then add the bias and activate".into()));
    }
    let shared = [vec![extra.clone()], rows.clone()].concat().concat();
    let mut weight_dims = vec![Vec::new(); 2];
    weight_dims[out_dim] = out.clone();
    weight_dims[in_dim] = sum.clone();
    let input = TileMap {
        sum: Vec::new(),
        copy: [extra.clone(), out.clone()].concat(),
        dims: [rows.clone(), vec![sum.clone()]].concat(),
    };
    let weight = TileMap { sum: Vec::new(), copy: shared.clone(), dims: weight_dims };
    let bias = TileMap { sum: Vec::new(), copy: shared, dims: vec![out.clone()] };
    let exact = extra.is_empty();
    let result = TileMap { sum, copy: extra, dims: [rows, vec![out]].concat() };
    let operands = [input, weight, bias].into_iter().take(grid.operands.len()).collect();
    grid.finish(operands, vec![result], exact)
}

/// a `[batch…, m, k]`, b `[batch…, k, n]`, either stored transposed.
fn matmul(mut grid: Grid<'_>, transpose_a: bool, transpose_b: bool) -> Result<Rule> {
    let (a, b) = (grid.operands[0], grid.operands[1]);
    let lead = a.dims().len() - 2;
    let (m_dim, k_dim) = if transpose_a { (lead + 1, lead) } else { (lead, lead + 1) };
    let n_dim = if transpose_b { lead } else { lead + 1 };
    let (columns, extra) = (b.degree(n_dim), a.copy_degree());
    if !extra.is_multiple_of(columns) {
        let wanted = format!("an operand b cut into {columns} columns wants {columns} copies");
        return Err(grid.wrong(0, wanted, more_copies(extra, columns)));
    }
    let sum = grid.axis(a.degree(k_dim));
    let extra = grid.axis(extra / columns);
    let batch = grid.axes_of(0, 0..lead);
    let m = grid.axis(a.degree(m_dim));
    let n = grid.axis(columns);
    let pair = |transposed: bool, first: &Vec<Axis>, second: &Vec<Axis>| {
        let [first, second] = if transposed { [second, first] } else { [first, second] };
        [batch.clone(), vec![first.clone(), second.clone()]].concat()
    };
    let exact = extra.is_empty();
    let a_map = TileMap {
        sum: Vec::new(),
        copy: [extra.clone(), n.clone()].concat(),
        dims: pair(transpose_a, &m, &sum),
    };
    let b_map = TileMap {
        sum: Vec::new(),
        copy: [extra.clone(), m.clone()].concat(),
        dims: pair(transpose_b, &sum, &n),
    };
    let result = TileMap { dims: pair(false, &m, &n), sum, copy: extra };
    grid.finish(vec![a_map, b_map], vec![result], exact)
}

/// ids `[rows…]`, table `[vocabulary, width]`: a cut of the vocabulary gives partial sums, all but one of them zero.
fn embedding(mut grid: Grid<'_>, bag: bool) -> Result<Rule> {
    let (ids, table) = (grid.operands[0], grid.operands[1]);
    let lead = ids.dims().len() - usize::from(bag);
    let rows: usize = (0..lead).map(|dim| ids.degree(dim)).product();
    if !table.copy_degree().is_multiple_of(rows) {
        let wanted = format!("ids cut into {rows} want {rows} copies of the table");
        return Err(grid.wrong(1, wanted, more_copies(table.copy_degree(), rows)));
    }
    let sum = grid.axis(table.degree(0));
    let extra = grid.axis(table.copy_degree() / rows);
    let rows = grid.axes_of(0, 0..lead);
    let width = grid.axis(table.degree(1));
    let ids = plain(rows.iter().cloned().chain(bag.then(Vec::new)).collect());
    let copy = [vec![extra.clone()], rows.clone()].concat().concat();
    let table = TileMap { sum: Vec::new(), copy, dims: vec![sum.clone(), width.clone()] };
    // A bag adds rows of one shard before those of the next.
    let exact = extra.is_empty() && (sum.is_empty() || !bag);
    let result = TileMap { sum, copy: extra, dims: [rows, vec![width]].concat() };
    grid.finish(vec![ids, table], vec![result], exact)
}

/// Both operands are cut like the result where they have its extent; where one is stretched it wants copies.
fn binary(mut grid: Grid<'_>, kind: Binary, result: &Shape) -> Result<Rule> {
    let operands = grid.operands;
    let rank = result.rank();
    // The dimension of operand `slot` that has the result's extent along `dim`.
    let own = |slot: usize, dim: usize| {
        let dims = operands[slot].dims();
        let at = (dim + dims.len()).checked_sub(rank)?;
        (dims[at].size == result.dims()[dim]).then_some(at)
    };
    let degree = |dim: usize| {
        let of = |slot: usize| own(slot, dim).map(|at| operands[slot].degree(at));
        of(0).or_else(|| of(1)).unwrap_or(1)
    };
    let stretched =
        |slot: usize| (0..rank).filter(|&dim| own(slot, dim).is_none()).map(degree).product::<usize>();
    let linear = matches!(kind, Binary::Add | Binary::Sub);
    let wanted = stretched(0).max(1);
    if !operands[0].copy_degree().is_multiple_of(wanted) {
        let wanted_text = format!("the other operand's cuts want {wanted} copies");
        return Err(grid.wrong(0, wanted_text, more_copies(operands[0].copy_degree(), wanted)));
    }
    let sum = if linear { grid.axis(operands[0].sum_degree()) } else { Vec::new() };
    let extra = grid.axis(operands[0].copy_degree() / wanted);
    let dims: Vec<_> = (0..rank).map(|dim| grid.axis(degree(dim))).collect();
    let map = |slot: usize| {
        let missing = (0..rank).filter(|&dim| own(slot, dim).is_none()).map(|dim| dims[dim].clone());
        let copy = std::iter::once(extra.clone()).chain(missing).collect::<Vec<_>>().concat();
        let first = rank - operands[slot].dims().len();
        let own = (first..rank).map(|dim| own(slot, dim).map_or(Vec::new(), |_| dims[dim].clone()));
        TileMap { sum: sum.clone(), copy, dims: own.collect() }
    };
    let maps = vec![map(0), map(1)];
    let exact = sum.is_empty() && extra.is_empty();
    grid.finish(maps, vec![TileMap { sum, copy: extra, dims }], exact)
}

/// The innermost `axes` dimensions stay whole; scale and shift want a copy for every cut of the others.
fn norm(mut grid: Grid<'_>, axes: usize) -> Result<Rule> {
    let x = grid.operands[0];
    let lead = x.dims().len() - axes;
    let copy = grid.axis(x.copy_degree());
    let rows = grid.axes_of(0, 0..lead);
    let shared = [vec![copy.clone()], rows.clone()].concat().concat();
    let dims = rows.into_iter().chain(vec![Vec::new(); axes]).collect();
    let exact = copy.is_empty();
    let map = TileMap { sum: Vec::new(), copy, dims };
    let weight = TileMap { sum: Vec::new(), copy: shared, dims: vec![Vec::new(); axes] };
    let weights = vec![weight; grid.operands.len() - 1];
    grid.finish([vec![map.clone()], weights].concat(), vec![map], exact)
}

/// q, k, v `[batch, time, heads, dim]`: batch and heads may be cut, all three alike.
fn attention(mut grid: Grid<'_>) -> Result<Rule> {
    let q = grid.operands[0];
    let copy = grid.axis(q.copy_degree());
    let batch = grid.axis(q.degree(0));
    let heads = grid.axis(q.degree(2));
    let exact = copy.is_empty();
    let map = TileMap { sum: Vec::new(), copy, dims: vec![batch, Vec::new(), heads, Vec::new()] };
    grid.finish(vec![map.clone(); 3], vec![map], exact)
}

/// Dimensions that are merged or cut apart keep the degree of the outermost one; the others stay whole.
fn reshape(mut grid: Grid<'_>, result: &Shape) -> Result<Rule> {
    let x = grid.operands[0];
    let sum = grid.axis(x.sum_degree());
    let copy = grid.axis(x.copy_degree());
    let sizes: Vec<_> = x.dims().iter().map(|dim| dim.size).collect();
    let mut input = vec![Vec::new(); sizes.len()];
    let mut output = vec![Vec::new(); result.rank()];
    for (from, to) in groups(&sizes, result.dims()) {
        let Some(first) = from.clone().find(|&dim| sizes[dim] > 1) else { continue };
        let Some(target) = to.clone().find(|&dim| result.dims()[dim] > 1) else { continue };
        let axis = grid.axis(x.degree(first));
        if !result.dims()[target].is_multiple_of(x.degree(first)) {
            let wanted =
                format!("the cut of dim {first} does not divide the new extent {}", result.dims()[target]);
            let fix = format!("apply combine dim={first} degree={}", x.degree(first));
            return Err(grid.wrong(0, wanted, fix));
        }
        (input[first], output[target]) = (axis.clone(), axis);
    }
    let map = |dims| TileMap { sum: sum.clone(), copy: copy.clone(), dims };
    let (input, output) = (map(input), map(output));
    grid.finish(vec![input], vec![output], true)
}

/// Runs of dimensions of both shapes with equal products, as short as possible.
fn groups(from: &[usize], to: &[usize]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let (mut a, mut b, mut groups) = (0, 0, Vec::new());
    while a < from.len() && b < to.len() {
        let (first_a, first_b) = (a, b);
        let (mut left, mut right) = (from[a], to[b]);
        (a, b) = (a + 1, b + 1);
        // A shape without elements, which another error is about, ends early.
        while left != right && (a < from.len() || left > right) && (b < to.len() || left < right) {
            if left < right {
                left *= from[a];
                a += 1;
            } else {
                right *= to[b];
                b += 1;
            }
        }
        groups.push((first_a..a, first_b..b));
    }
    groups
}

/// Stretched dimensions are whole in the result.
fn stretch(mut grid: Grid<'_>, result: &Shape) -> Result<Rule> {
    let x = grid.operands[0];
    let sum = grid.axis(x.sum_degree());
    let copy = grid.axis(x.copy_degree());
    let dims = grid.axes_of(0, 0..x.dims().len());
    let first = result.rank() - dims.len();
    let output = (0..result.rank()).map(|dim| match dim.checked_sub(first) {
        Some(at) => dims[at].clone(),
        None => Vec::new(),
    });
    let output = TileMap { sum: sum.clone(), copy: copy.clone(), dims: output.collect() };
    let exact = sum.is_empty() && copy.is_empty();
    grid.finish(vec![TileMap { sum, copy, dims }], vec![output], exact)
}

fn transpose(mut grid: Grid<'_>, perm: &[usize]) -> Result<Rule> {
    let x = grid.operands[0];
    let sum = grid.axis(x.sum_degree());
    let copy = grid.axis(x.copy_degree());
    let output: Vec<_> = perm.iter().map(|&dim| grid.axis(x.degree(dim))).collect();
    let mut input = vec![Vec::new(); perm.len()];
    perm.iter().zip(&output).for_each(|(&dim, axis)| input[dim] = axis.clone());
    let map = |dims| TileMap { sum: sum.clone(), copy: copy.clone(), dims };
    let (input, output) = (map(input), map(output));
    grid.finish(vec![input], vec![output], true)
}

/// Splits and joins: the axis may be cut only between its `blocks`.
fn cut(mut grid: Grid<'_>, axis: usize, blocks: usize, results: usize) -> Result<Rule> {
    let x = grid.operands[0];
    let sum = grid.axis(x.sum_degree());
    let copy = grid.axis(x.copy_degree());
    let dims = (0..x.dims().len()).map(|dim| match dim == axis && !blocks.is_multiple_of(x.degree(dim)) {
        true => Vec::new(),
        false => grid.axis(x.degree(dim)),
    });
    let map = TileMap { dims: dims.collect(), sum, copy };
    let operands = vec![map.clone(); grid.operands.len()];
    grid.finish(operands, vec![map; results], true)
}

/// A cut of a summed dimension gives partial sums; a mean or largest element needs its dimensions whole.
fn reduce(mut grid: Grid<'_>, kind: Reduce, axes: &[usize], keep: bool) -> Result<Rule> {
    let x = grid.operands[0];
    let copy = grid.axis(x.copy_degree());
    let whole = |dim: usize| axes.contains(&dim) && kind != Reduce::Sum;
    let rank = x.dims().len();
    let dims: Vec<_> =
        (0..rank).map(|dim| if whole(dim) { Vec::new() } else { grid.axis(x.degree(dim)) }).collect();
    let sum = axes.iter().map(|&axis| dims[axis].clone()).collect::<Vec<_>>().concat();
    let kept = (0..rank).filter(|dim| keep || !axes.contains(dim));
    let output = kept.map(|dim| if axes.contains(&dim) { Vec::new() } else { dims[dim].clone() }).collect();
    let exact = copy.is_empty();
    let input = TileMap { sum: Vec::new(), copy: copy.clone(), dims };
    grid.finish(vec![input], vec![TileMap { sum, copy, dims: output }], exact)
}

/// logits `[rows…, classes]`, labels `[rows…]`: a cut of rows gives partial sums; devices that share the classes of a row
/// agree on its loss while they compute it, so all of them hold the same result.
fn cross_entropy(mut grid: Grid<'_>) -> Result<Rule> {
    let lead = grid.operands[0].dims().len() - 1;
    let rows = grid.axes_of(0, 0..lead);
    let classes = grid.axes_of(0, lead..lead + 1);
    let logits = plain([rows.clone(), classes].concat());
    let result = TileMap { sum: rows.concat(), ..TileMap::default() };
    grid.finish(vec![logits, plain(rows)], vec![result], true)
}
