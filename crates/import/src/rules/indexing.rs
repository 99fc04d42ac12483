//! Rows chosen by index.

use phalanx_ir::{Binary, CompareKind, DType, Table, Unary};
use phalanx_ops::{Cast, Compare, Embedding, Gather, GatherElements, ScatterAdd, TopK};

use super::elementwise::floats;
use super::shapes::{integers, part, picked};
use super::{Results, base, one};
use crate::call::Call;
use crate::emit::{Made, Problem, shrunk};
use crate::layout::{Atom, Logical};
use crate::mapper::Held;
use crate::tensors::Constant;

/// The table that rows are looked up in.
fn table_of(call: &mut Call<'_>) -> Made<Logical> {
    let weight = floats(call, "weight")?;
    match weight.rank() {
        2 => Ok(weight),
        rank => Err(Problem::Broken(format!("a table has 2 dimensions, not {rank}"))),
    }
}

pub(super) fn embedding(call: &mut Call<'_>) -> Results {
    let weight = table_of(call)?;
    let padding = Some(call.int_or("padding_idx", -1)?).filter(|&padding| padding >= 0);
    if call.flag("scale_grad_by_freq")? {
        return call.unsupported("scale_grad_by_freq: leave it out");
    }
    if let Some(constant) = call.constant("indices")?.filter(|_| padding.is_none()) {
        // The same rows for each sample are looked up once.
        let size = constant.bytes.len() / constant.shape.iter().product::<usize>().max(1);
        let (bytes, shape) = shrunk(&constant, size);
        let small = Constant { dtype: constant.dtype, shape, bytes };
        let rows = fixed_rows(call, &weight, &small)?;
        return Ok(vec![Some(rows.expanded(&[&constant.shape[..], &[weight.shape()[1]]].concat()))]);
    }
    let indices = call.tensor("indices")?;
    let table = call.emit.plain(&weight)?;
    // Rows are looked up where the indices lie.
    let id = call.emit.add("", Embedding { bag: false, padding }, &[indices.id, table])?;
    let mut y = indices.with_id(id);
    let (axis, width) = (call.emit.builder.shape(id).rank() - 1, weight.shape()[1]);
    y.dims.push(if width == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: width }] });
    Ok(vec![Some(y)])
}

/// Rows at constant places: a range of rows is a part of the table.
fn fixed_rows(call: &mut Call<'_>, weight: &Logical, constant: &Constant) -> Made<Logical> {
    let places = integers(constant)?;
    let rows = weight.shape()[0] as i64;
    if places.iter().any(|&place| !(0..rows).contains(&place)) || places.is_empty() {
        return Err(Problem::Broken(format!("it looks up rows that a table of {rows} has not")));
    }
    let first = places[0];
    let is_range = places.iter().zip(first..).all(|(&place, wanted)| place == wanted);
    let width = weight.shape()[1];
    if is_range {
        let part = part(call, "", weight, 0, first as usize, first as usize + places.len())?;
        return call.emit.reshape(&part, &[&constant.shape[..], &[width]].concat());
    }
    let flat = picked(call, weight, 0, &places)?;
    call.emit.reshape(&flat, &[&constant.shape[..], &[width]].concat())
}

/// Sums of rows, for bags of one size.
pub(super) fn embedding_bag(call: &mut Call<'_>) -> Results {
    let weight = table_of(call)?;
    if call.has("per_sample_weights") {
        return call.unsupported("weights of samples in a bag: use nn.Embedding and a sum");
    }
    let Some(offsets) = call.constant("offsets")? else {
        return call.unsupported("bags of different sizes: use bags of one size, [batch, size]");
    };
    let offsets = integers(&offsets)?;
    let indices = call.tensor("indices")?;
    let bags = call.shape(0)?.first().copied().unwrap_or(0).max(1);
    let count: usize = indices.shape().iter().product();
    let size = count / bags;
    if offsets.iter().zip(0..).any(|(&offset, bag)| offset != bag * size as i64) || size * bags != count {
        return call.unsupported("bags of different sizes: use bags of one size, [batch, size]");
    }
    let mean = match call.int_or("mode", 0)? {
        0 => false,
        1 => true,
        _ => return call.unsupported("the largest of a bag: use nn.Embedding and amax"),
    };
    let padding = Some(call.int_or("padding_idx", -1)?).filter(|&padding| padding >= 0);
    if padding.is_some() && mean {
        return call.unsupported("a mean of bags with a padding index: use mode=\"sum\"");
    }
    let bagged = call.emit.reshape(&indices, &[bags, size])?;
    let bagged = call.emit.innermost(&bagged, &[1])?;
    let table = call.emit.plain(&weight)?;
    let id = call.emit.add("", Embedding { bag: true, padding }, &[bagged.id, table])?;
    let (axis, width) = (call.emit.builder.shape(id).rank() - 1, weight.shape()[1]);
    let mut y = bagged.with_id(id);
    y.dims[1] = if width == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: width }] };
    if mean {
        y = call.emit.unary("mean", Unary::MulScalar(1.0 / size as f32), &y)?;
    }
    Ok(vec![Some(y)])
}

pub(super) fn gather(call: &mut Call<'_>) -> Results {
    let (x, index) = (floats(call, "self")?, call.tensor("index")?);
    let axis = call.dim("dim", x.rank())?;
    // Stretched indices, such as those of a batch, are made full on the host.
    let index = match call.constant("index")? {
        Some(constant) => {
            let name = call.emit.named("index");
            let places = integers(&constant)?;
            call.emit.builder.table(&name, constant.shape.clone(), Table::i64s(&places))?
        }
        None => call.emit.plain(&index)?,
    };
    let values = call.emit.plain(&x)?;
    let id = call.emit.add("gather", GatherElements { axis }, &[values, index])?;
    let shape = call.shape(0)?.to_vec();
    Ok(vec![Some(Logical::plain(id, &shape))])
}

/// Rows chosen by one or several indices.
pub(super) fn index(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let indices = match base(&call.node.op) {
        "aten.index_select" => {
            let dim = call.dim("dim", x.rank())?;
            let mut indices = vec![None; dim];
            let index = call.constant("index")?.map(Held::Constant);
            indices.push(Some(match index {
                Some(index) => index,
                None => Held::Tensor(call.tensor("index")?),
            }));
            indices
        }
        _ => call.held_list("indices")?,
    };
    let given: Vec<usize> = (0..indices.len()).filter(|&dim| indices[dim].is_some()).collect();
    if given.last().is_some_and(|&dim| dim >= x.rank()) {
        return Err(Problem::Broken("it has more indices than dimensions".into()));
    }
    match given[..] {
        [dim] => match indices[dim].clone() {
            Some(index) => one(rows_of(call, &x, dim, index)),
            None => Err(Problem::Missing),
        },
        [first, second] if second == first + 1 => {
            let pair = [indices[first].clone(), indices[second].clone()];
            one(pairs_of(call, &x, first, pair))
        }
        _ => call.unsupported("several indices that are not neighbours: index one dimension at a time"),
    }
}

/// Rows of one dimension.
fn rows_of(call: &mut Call<'_>, x: &Logical, dim: usize, index: Held) -> Made<Logical> {
    let extent = x.shape()[dim] as i64;
    let (id, shape) = match index {
        Held::Constant(constant) => {
            let places: Vec<i64> = integers(&constant)?
                .into_iter()
                .map(|place| if place < 0 { place + extent } else { place })
                .collect();
            if constant.dtype == crate::StoredDtype::BOOL
                || places.iter().any(|&place| !(0..extent).contains(&place))
            {
                return call.unsupported("an index of truth values: use torch.where");
            }
            let is_range = places.iter().zip(places[0]..).all(|(&place, wanted)| place == wanted);
            if is_range && constant.shape.len() == 1 {
                return part(call, "", x, dim, places[0] as usize, places[0] as usize + places.len());
            }
            let name = call.emit.named("places");
            let table = call.emit.builder.table(&name, constant.shape.clone(), Table::i64s(&places))?;
            (table, constant.shape.clone())
        }
        Held::Tensor(index) => {
            if call.emit.builder.ty(index.id).dtype == DType::Bool {
                return call.unsupported("an index of truth values has no fixed shape: use torch.where");
            }
            (call.emit.plain(&index)?, index.shape())
        }
    };
    let (x, axis) = call.emit.single(x, dim)?;
    let made = call.emit.add("rows", Gather { axis }, &[x.id, id])?;
    let grown = shape.len();
    let mut y = x.with_id(made);
    for atom in y.dims.iter_mut().flatten() {
        atom.dim = atom.dim.map(|own| if own > axis { own + grown - 1 } else { own });
    }
    let atoms = shape.iter().enumerate().map(|(at, &extent)| match extent {
        1 => Vec::new(),
        _ => vec![Atom { dim: Some(axis + at), extent }],
    });
    y.dims.splice(dim..=dim, atoms);
    Ok(y)
}

/// Elements of two neighbouring dimensions chosen together.
fn pairs_of(call: &mut Call<'_>, x: &Logical, first: usize, pair: [Option<Held>; 2]) -> Made<Logical> {
    let extents = [x.shape()[first], x.shape()[first + 1]];
    match pair {
        // Both constant: one index into the flattened dimensions.
        [Some(Held::Constant(a)), Some(Held::Constant(b))] => {
            let (shape, rest) = (call.shape(0)?, x.rank() - first - 2);
            let Some(index) = shape.len().checked_sub(rest).and_then(|end| shape.get(first..end)) else {
                return Err(Problem::Broken(format!("indices cannot give {shape:?}")));
            };
            let index = index.to_vec();
            let wrapped = |constant: &Constant, extent: usize| -> Made<Vec<i64>> {
                let places = stretched_integers(constant, &index)?;
                Ok(places.into_iter().map(|place| place.rem_euclid(extent as i64)).collect())
            };
            let (a, b) = (wrapped(&a, extents[0])?, wrapped(&b, extents[1])?);
            let places: Vec<i64> = a.iter().zip(&b).map(|(a, b)| a * extents[1] as i64 + b).collect();
            let mut flat = x.shape();
            flat.splice(first..first + 2, [extents[0] * extents[1]]);
            let flat = call.emit.reshape(x, &flat)?;
            let y = picked(call, &flat, first, &places)?;
            let whole = call.shape(0)?.to_vec();
            call.emit.reshape(&y, &whole)
        }
        // One row of each sample: x[arange(n), index].
        [Some(Held::Constant(a)), Some(Held::Tensor(index))]
            if first == 0
                && a.shape == [extents[0]]
                && integers(&a)?.iter().zip(0..).all(|(&place, wanted)| place == wanted) =>
        {
            row_of_each(call, x, &index)
        }
        _ => call.unsupported("two indices that depend on data: use torch.gather"),
    }
}

fn stretched_integers(constant: &Constant, shape: &[usize]) -> Made<Vec<i64>> {
    let places = integers(constant)?;
    let own = phalanx_ir::Shape::new(&constant.shape[..]);
    let whole = phalanx_ir::Shape::new(shape);
    if own.broadcast(&whole).as_ref() != Some(&whole) || whole.elements() > 1 << 24 {
        return Err(Problem::Broken(format!("an index {own} for {whole}")));
    }
    let skipped = shape.len() - constant.shape.len();
    let place = |mut at: usize| {
        let (mut from, mut step) = (0, 1);
        for dim in (0..shape.len()).rev() {
            let here = at % shape[dim];
            at /= shape[dim];
            if let Some(&extent) = dim.checked_sub(skipped).and_then(|dim| constant.shape.get(dim)) {
                from += if extent == 1 { 0 } else { here * step };
                step *= extent;
            }
        }
        places[from]
    };
    Ok((0..whole.elements()).map(place).collect())
}

/// x `[n, rows, …]` and an index `[n]`: a product with ones where the index says, which is exact.
fn row_of_each(call: &mut Call<'_>, x: &Logical, index: &Logical) -> Made<Logical> {
    let (shape, rank) = (x.shape(), x.rank());
    let places: Vec<i64> = (0..shape[1] as i64).collect();
    let name = call.emit.named("places");
    let table = call.emit.builder.table(&name, [shape[1]], Table::i64s(&places))?;
    let table = Logical::plain(table, &[shape[1]]);
    let is_here = Compare { kind: CompareKind::Eq, scalar: None };
    let here = call.emit.stretched("here", is_here, &[&index.unsqueezed(1), &table])?;
    let id = call.emit.add("one", Cast { to: DType::F32 }, &[here.id])?;
    let mut ones = here.with_id(id);
    while ones.rank() < rank {
        ones = ones.unsqueezed(ones.rank());
    }
    let kept = call.emit.binary("kept", Binary::Mul, x, &ones)?;
    super::reductions::reduced(call, "row", phalanx_ir::Reduce::Sum, &kept, &[1], false)
}

/// Rows added at places: `index_add`, and `index_put` that accumulates.
pub(super) fn index_put(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let is_add = base(&call.node.op) == "aten.index_add";
    let (dim, values) = match is_add {
        true => (call.dim("dim", x.rank())?, floats(call, "source")?),
        false => (0, floats(call, "values")?),
    };
    if !is_add && !call.flag("accumulate")? {
        return call.unsupported("writing at places: use torch.where, or index_add");
    }
    if call.float_or("alpha", 1.0)? != 1.0 {
        return call.unsupported("alpha is not 1: multiply the source");
    }
    let index = match is_add {
        true => call.tensor("index")?,
        false => {
            let mut given = call.held_list("indices")?;
            match (given.len(), given.pop().flatten()) {
                (1, Some(held)) => call.logical(held)?,
                _ => return call.unsupported("several indices: use index_add along one dimension"),
            }
        }
    };
    if index.rank() != 1 {
        return call.unsupported("an index of several dimensions: flatten it");
    }
    let (rows, axis) = call.emit.single(&values, dim)?;
    let index = call.emit.plain(&index)?;
    let size = x.shape()[dim];
    let id = call.emit.add("added", ScatterAdd { axis, size }, &[rows.id, index])?;
    let mut sum = rows.with_id(id);
    sum.dims[dim] = if size == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: size }] };
    one(call.emit.binary("index_add", Binary::Add, &x, &sum))
}

/// How many elements lie in each of equal intervals; the last one has both its ends.
pub(super) fn histc(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let bins = call.extents("bins", 1)?.first().copied().unwrap_or(100);
    let (low, high) = (call.float_or("min", 0.0)?, call.float_or("max", 0.0)?);
    if bins == 0 || bins > MOST_BINS || low >= high {
        return call.unsupported(format!(
            "{bins} intervals of {low}..{high}: give min and max, and up to {MOST_BINS} bins"
        ));
    }
    let edge = |bin: usize| low + (high - low) * bin as f64 / bins as f64;
    let dims: Vec<usize> = (0..x.rank()).collect();
    let mut counts = Vec::new();
    for bin in 0..bins {
        let last = if bin + 1 == bins { CompareKind::Le } else { CompareKind::Lt };
        let bounds = [(CompareKind::Ge, edge(bin)), (last, edge(bin + 1))];
        let mut sides = Vec::new();
        for (kind, bound) in bounds {
            let id = call.emit.add("side", Compare { kind, scalar: Some(bound) }, &[x.id])?;
            sides.push(x.with_id(id));
        }
        let both = Compare { kind: CompareKind::And, scalar: None };
        let inside = call.emit.stretched("inside", both, &[&sides[0], &sides[1]])?;
        let id = call.emit.add("ones", Cast { to: DType::F32 }, &[inside.id])?;
        let ones = inside.with_id(id);
        let count = super::reductions::reduced(call, "count", phalanx_ir::Reduce::Sum, &ones, &dims, false)?;
        counts.push(count.unsqueezed(0));
    }
    one(super::shapes::joined(call, counts, 0))
}

/// The most intervals that are counted.
const MOST_BINS: usize = 512;

pub(super) fn topk(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dim = call.dim_or("dim", -1, x.rank())?;
    let k = call.extents("k", 1)?.first().copied().unwrap_or(1);
    if call.has("largest") && !call.flag("largest")? {
        return call.unsupported("the smallest elements: negate the tensor");
    }
    let x = call.emit.innermost(&x, &[dim])?;
    let name = call.emit.named("topk");
    let made = call.emit.builder.add(&name, TopK { k }, &[x.id])?;
    let axis = call.emit.builder.shape(made[0]).rank() - 1;
    let result = |id| {
        let mut y = x.with_id(id);
        y.dims[dim] = if k == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: k }] };
        Some(y)
    };
    Ok(made.into_iter().map(result).collect())
}
