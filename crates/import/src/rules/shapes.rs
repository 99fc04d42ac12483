//! Operators that only move elements.

use std::collections::{BTreeSet, HashMap};

use phalanx_ir::graph::ValueId;
use phalanx_ir::{DType, Table};
use phalanx_ops::{Concat, Gather, Reverse};

use super::{Results, base, one};
use crate::call::{Call, reference, wrap};
use crate::emit::{Common, Made, Problem, result_dims};
use crate::format::{Node, Reference};
use crate::layout::{Atom, Logical};
use crate::tensors::Constant;

/// View, reshape, squeeze, unsqueeze: the result's shape says it all.
pub(super) fn view(call: &mut Call<'_>) -> Results {
    let (x, shape) = (call.tensor("self")?, call.shape(0)?.to_vec());
    if x.shape().iter().product::<usize>() != shape.iter().product::<usize>() {
        return Err(Problem::Broken(format!("{:?} has not as many elements as {shape:?}", x.shape())));
    }
    one(call.emit.reshape(&x, &shape))
}

pub(super) fn permute(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let order: Vec<usize> =
        call.ints("dims")?.into_iter().map(|dim| wrap(dim, x.rank())).collect::<Made<_>>()?;
    let all: BTreeSet<_> = order.iter().collect();
    if all.len() != x.rank() || order.len() != x.rank() {
        return Err(Problem::Broken(format!("{order:?} is no order of {} dimensions", x.rank())));
    }
    Ok(vec![Some(x.permuted(&order))])
}

pub(super) fn transpose(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let rank = x.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    if base(&call.node.op) != "aten.t" {
        order.swap(call.dim("dim0", rank)?, call.dim("dim1", rank)?);
    } else if rank == 2 {
        order.swap(0, 1);
    }
    Ok(vec![Some(x.permuted(&order))])
}

pub(super) fn expand(call: &mut Call<'_>) -> Results {
    let (x, shape) = (call.tensor("self")?, call.shape(0)?.to_vec());
    Ok(vec![Some(x.expanded(&shape))])
}

/// Where slices and selections cut values: all cuts of one value become one split.
pub(crate) fn slice_cuts(nodes: &[Node]) -> HashMap<(Reference, usize), BTreeSet<usize>> {
    let mut cuts: HashMap<(Reference, usize), BTreeSet<usize>> = HashMap::new();
    for node in nodes {
        let Some(range) = raw_range(node) else { continue };
        let Some(x) = node.args.get("self").and_then(reference) else { continue };
        cuts.entry((x, range.0)).or_default().extend([range.1, range.2]);
    }
    // A split into very many pieces is no gain.
    cuts.retain(|_, places| places.len() <= MOST_PIECES);
    cuts
}

/// The most pieces that slices of one value share.
const MOST_PIECES: usize = 64;

/// Dimension, begin and end of a slice or selection with bounds that are not negative, as most are.
fn raw_range(node: &Node) -> Option<(usize, usize, usize)> {
    let number = |name: &str| node.args.get(name).and_then(serde_json::Value::as_i64);
    let place = |name: &str| usize::try_from(number(name)?).ok();
    let rank = node.results.first()?.shape.len();
    match base(&node.op) {
        "aten.slice" if number("step").unwrap_or(1) == 1 => {
            let dim = wrap(number("dim").unwrap_or(0), rank).ok()?;
            let start = if number("start").is_some() { place("start")? } else { 0 };
            Some((dim, start, start + node.results[0].shape[dim]))
        }
        "aten.select" => {
            let dim = wrap(number("dim")?, rank + 1).ok()?;
            let at = place("index")?;
            Some((dim, at, at.checked_add(1)?))
        }
        _ => None,
    }
}

/// Cuts a tensor along a dimension into pieces of these sizes.
pub(super) fn pieces(call: &mut Call<'_>, x: &Logical, dim: usize, sizes: &[usize]) -> Made<Vec<Logical>> {
    let extent = x.shape()[dim];
    if sizes.iter().sum::<usize>() != extent || sizes.contains(&0) {
        return Err(Problem::Broken(format!("{sizes:?} are no pieces of {extent}")));
    }
    // A stretched dimension is only stretched less.
    if let [Atom { dim: None, .. }] = x.dims[dim][..] {
        let piece = |&extent: &usize| {
            let mut piece = x.clone();
            piece.dims[dim] = if extent == 1 { Vec::new() } else { vec![Atom { dim: None, extent }] };
            piece
        };
        return Ok(sizes.iter().map(piece).collect());
    }
    let (x, axis) = call.emit.single(x, dim)?;
    let ids = call.emit.split(x.id, axis, sizes)?;
    let piece = |(id, &extent): (ValueId, &usize)| {
        let mut piece = x.with_id(id);
        piece.dims[dim] = if extent == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent }] };
        piece
    };
    Ok(ids.into_iter().zip(sizes).map(piece).collect())
}

/// The part `begin..end` of a dimension.
pub(super) fn part(
    call: &mut Call<'_>,
    name: &str,
    x: &Logical,
    dim: usize,
    begin: usize,
    end: usize,
) -> Made<Logical> {
    let extent = x.shape()[dim];
    if begin >= end || end > extent {
        return Err(Problem::Unsupported(format!(
            "the part {begin}..{end} of {extent} is empty: leave it out"
        )));
    }
    if begin == 0 && end == extent {
        return Ok(x.clone());
    }
    let shared = call.reference(name).map(|reference| (call.cuts)(&reference, dim)).unwrap_or_default();
    let inside: Vec<usize> = shared.into_iter().filter(|&place| place > 0 && place < extent).collect();
    let own: Vec<usize> = [begin, end].into_iter().filter(|&place| place > 0 && place < extent).collect();
    let is_one_piece = own.iter().all(|place| inside.contains(place))
        && !inside.iter().any(|&place| place > begin && place < end);
    let places = if is_one_piece { inside } else { own };
    let bounds: Vec<usize> = [0].into_iter().chain(places).chain([extent]).collect();
    let sizes: Vec<usize> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let index = bounds.iter().position(|&place| place == begin).unwrap_or(0);
    Ok(pieces(call, x, dim, &sizes)?.swap_remove(index))
}

pub(super) fn slice(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dim = call.dim_or("dim", 0, x.rank())?;
    let extent = x.shape()[dim] as i64;
    let bound = |value: i64| (if value < 0 { value + extent } else { value }).clamp(0, extent) as usize;
    let begin = bound(call.int_or("start", 0)?);
    let end = bound(call.int_or("end", i64::MAX)?);
    match call.int_or("step", 1)? {
        1 => one(part(call, "self", &x, dim, begin, end)),
        step if step > 1 && begin < end => {
            let places: Vec<i64> = (begin..end).step_by(step as usize).map(|place| place as i64).collect();
            one(picked(call, &x, dim, &places))
        }
        step => Err(Problem::Broken(format!("a slice {begin}..{end} by {step} is empty"))),
    }
}

/// The rows at constant places.
pub(super) fn picked(call: &mut Call<'_>, x: &Logical, dim: usize, places: &[i64]) -> Made<Logical> {
    let (x, axis) = call.emit.single(x, dim)?;
    let name = call.emit.named("places");
    let index = call.emit.builder.table(&name, [places.len()], Table::i64s(places))?;
    let id = call.emit.add("rows", Gather { axis }, &[x.id, index])?;
    let mut y = x.with_id(id);
    y.dims[dim] = match places.len() {
        1 => Vec::new(),
        extent => vec![Atom { dim: Some(axis), extent }],
    };
    Ok(y)
}

pub(super) fn select(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dim = call.dim("dim", x.rank())?;
    let at = wrap(call.int("index")?, x.shape()[dim])?;
    let y = part(call, "self", &x, dim, at, at + 1)?;
    Ok(vec![Some(y.squeezed(dim))])
}

pub(super) fn split(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dim = call.dim_or("dim", 0, x.rank())?;
    let sizes: Vec<usize> =
        call.node.results.iter().map(|typed| typed.shape.get(dim).copied().unwrap_or(0)).collect();
    Ok(pieces(call, &x, dim, &sizes)?.into_iter().map(Some).collect())
}

pub(super) fn unbind(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dim = call.dim_or("dim", 0, x.rank())?;
    let sizes = vec![1; call.node.results.len()];
    Ok(pieces(call, &x, dim, &sizes)?.into_iter().map(|piece| Some(piece.squeezed(dim))).collect())
}

pub(super) fn cat(call: &mut Call<'_>) -> Results {
    let parts = call.tensors("tensors")?;
    let rank = parts.first().map_or(0, Logical::rank);
    let dim = call.dim_or("dim", 0, rank)?;
    one(joined(call, parts, dim))
}

pub(super) fn stack(call: &mut Call<'_>) -> Results {
    let parts = call.tensors("tensors")?;
    let rank = parts.first().map_or(0, Logical::rank);
    let dim = call.dim_or("dim", 0, rank + 1)?;
    let parts = parts.iter().map(|part| part.unsqueezed(dim)).collect();
    one(joined(call, parts, dim))
}

/// Joined along a dimension.
pub(super) fn joined(call: &mut Call<'_>, parts: Vec<Logical>, dim: usize) -> Made<Logical> {
    if parts.iter().any(|part| part.rank() != parts[0].rank() || dim >= part.rank()) || parts.is_empty() {
        return Err(Problem::Broken("it joins tensors of different ranks".into()));
    }
    if parts.len() == 1 {
        return Ok(parts[0].clone());
    }
    let (rank, total) = (parts[0].rank(), parts.iter().map(|part| part.shape()[dim]).sum());
    // The joined dimension of each part stands behind all others, by itself, so that none is taken for another's.
    let mut wide = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let mut part = call.emit.single(part, dim)?.0;
        let own = std::mem::take(&mut part.dims[dim]);
        part.dims.extend((0..parts.len()).map(|place| if place == index { own.clone() } else { Vec::new() }));
        wide.push(part);
    }
    let mut groups = call.emit.common_groups(&mut wide, usize::MAX)?;
    groups.retain(|group| group.0[0].0 < rank);
    let first = |place: usize| groups.get(place).map(|group| group.of(&wide[0]));
    // Where the first part has it, else in front of the next dimension.
    let axis = match wide[0].dims[rank].first().and_then(|atom| atom.dim) {
        Some(own) => (0..groups.len())
            .filter(|&place| {
                first(place).into_iter().flatten().any(|atom| atom.dim.is_some_and(|dim| dim < own))
            })
            .count(),
        None => groups.iter().take_while(|group| group.0[0].0 < dim).count(),
    };
    let mut ids = Vec::new();
    for (index, part) in wide.iter().enumerate() {
        let mut atoms: Vec<Vec<Atom>> = groups.iter().map(|group| group.of(part)).collect();
        atoms.insert(axis, part.dims[rank + index].clone());
        ids.push(call.emit.arrange(part, &atoms, true)?);
    }
    let id = call.emit.add("cat", Concat { axis, blocks: 1 }, &ids)?;
    groups.insert(axis, Common(Vec::new()));
    let mut dims = result_dims(&wide, &groups);
    dims.truncate(rank);
    dims[dim] = vec![Atom { dim: Some(axis), extent: total }];
    Ok(Logical { id, dims })
}

/// Zeros or another number around a tensor, or parts of it cut off.
pub(super) fn pad(call: &mut Call<'_>) -> Results {
    let (mut x, amounts) = (call.tensor("self")?, call.ints("pad")?);
    let value = call.float_or("value", 0.0)?;
    for (index, pair) in amounts.chunks(2).enumerate() {
        let [before, after] = *pair else { return Err(Problem::Broken("`pad` has an odd length".into())) };
        let Some(dim) = x.rank().checked_sub(index + 1) else {
            return Err(Problem::Broken("`pad` has more numbers than dimensions".into()));
        };
        let extent = x.shape()[dim] as i64;
        if before.unsigned_abs().max(after.unsigned_abs()) > 1 << 32 {
            return Err(Problem::Broken(format!("`pad` holds {before} and {after}")));
        }
        let (begin, end) = ((-before).max(0), extent - (-after).max(0));
        if begin >= end {
            return Err(Problem::Broken(format!("`pad` leaves nothing of dimension {dim}")));
        }
        x = part(call, "", &x, dim, begin as usize, end as usize)?;
        let mut parts = vec![x.clone()];
        for (amount, place) in [(before, 0), (after, 1)] {
            if amount > 0 {
                let block = filled(call, &x, dim, amount as usize, value)?;
                parts.insert(if place == 0 { 0 } else { parts.len() }, block);
            }
        }
        x = joined(call, parts, dim)?;
    }
    Ok(vec![Some(x)])
}

/// The most integers that a tensor is padded with.
const MOST_PADDING: usize = 1 << 24;

/// A block of a number, as long as `x` along all dimensions but one.
fn filled(call: &mut Call<'_>, x: &Logical, dim: usize, extent: usize, value: f64) -> Made<Logical> {
    // Laid out as x is, so that neither is moved.
    let (x, axis) = call.emit.single(x, dim)?;
    let shape = call.emit.builder.shape(x.id).with(axis, extent);
    let count = shape.elements();
    let table = match call.emit.builder.ty(x.id).dtype {
        DType::I64 if count <= MOST_PADDING => Table::i64s(&vec![value as i64; count]),
        DType::I32 if count <= MOST_PADDING => Table::i32s(&vec![value as i32; count]),
        DType::Bool if count <= MOST_PADDING => Table::bools(&vec![value != 0.0; count]),
        DType::F32 => Table::f32s(&[]),
        dtype => {
            return call
                .unsupported(format!("padding with {count} elements of {dtype}: pad in the data loader"));
        }
    };
    let id = match table.dtype() {
        DType::F32 => call.emit.constant(value as f32, shape.dims())?,
        _ => {
            let name = call.emit.named("padding");
            call.emit.builder.table(&name, shape, table)?
        }
    };
    let mut block = x.with_id(id);
    block.dims[dim] = if extent == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent }] };
    Ok(block)
}

pub(super) fn repeat(call: &mut Call<'_>) -> Results {
    let (mut x, repeats) = (call.tensor("self")?, call.extents("repeats", 0)?);
    let total =
        repeats.iter().chain(&x.shape()).fold(1_usize, |product, &extent| product.saturating_mul(extent));
    if repeats.contains(&0) || repeats.len() < x.rank() || total > phalanx_ir::MAX_ELEMENTS {
        return Err(Problem::Broken(format!("it repeats {repeats:?} times")));
    }
    x = x.padded(repeats.len());
    // In front of each dimension one along which it is stretched: merged they are the repeated one.
    let mut wide = Vec::new();
    for (atoms, &times) in x.dims.iter().zip(&repeats) {
        let mut own = if times == 1 { Vec::new() } else { vec![Atom { dim: None, extent: times }] };
        own.extend(atoms.iter().copied());
        wide.push(own);
    }
    Ok(vec![Some(Logical { id: x.id, dims: wide })])
}

pub(super) fn roll(call: &mut Call<'_>) -> Results {
    let (mut x, shifts, dims) = (call.tensor("self")?, call.ints("shifts")?, call.ints("dims")?);
    if shifts.len() != dims.len() {
        return call.unsupported("rolling a flattened tensor: give dims");
    }
    for (shift, dim) in shifts.into_iter().zip(dims) {
        let dim = wrap(dim, x.rank())?;
        let extent = x.shape()[dim];
        let first = extent - shift.rem_euclid(extent as i64) as usize;
        if first == extent {
            continue;
        }
        let parts = pieces(call, &x, dim, &[first, extent - first])?;
        x = joined(call, vec![parts[1].clone(), parts[0].clone()], dim)?;
    }
    Ok(vec![Some(x)])
}

pub(super) fn flip(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dims = call.dims("dims", x.rank())?;
    let mut y = x;
    let mut axes = Vec::new();
    for dim in dims {
        if y.dims[dim].len() > 1 {
            y = call.emit.single(&y, dim)?.0;
        }
    }
    for dim in call.dims("dims", y.rank())? {
        axes.extend(y.dims[dim].first().and_then(|atom| atom.dim));
    }
    axes.sort_unstable();
    if axes.is_empty() {
        return Ok(vec![Some(y)]);
    }
    let id = call.emit.add("flip", Reverse { axes }, &[y.id])?;
    Ok(vec![Some(y.with_id(id))])
}

/// A constant of 64-bit integers.
pub(super) fn integers(constant: &Constant) -> Made<Vec<i64>> {
    constant
        .integers()
        .ok_or_else(|| Problem::Broken("it is indexed by a constant that is no integer".into()))
}
