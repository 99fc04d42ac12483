//! Sums, means and what is made of them.

use phalanx_ir::{Binary, Reduce, Unary};
use phalanx_ops::{ReduceOp, Softmax};

use super::elementwise::{floats, word};
use super::{Results, base, one};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::Logical;

/// A reduction over dimensions, which vanish unless `keep`.
pub(super) fn reduced(
    call: &mut Call<'_>,
    word: &str,
    kind: Reduce,
    x: &Logical,
    dims: &[usize],
    keep: bool,
) -> Made<Logical> {
    let mut axes: Vec<usize> =
        dims.iter().flat_map(|&dim| &x.dims[dim]).filter_map(|atom| atom.dim).collect();
    axes.sort_unstable();
    let stretched: usize = dims
        .iter()
        .flat_map(|&dim| &x.dims[dim])
        .filter(|atom| atom.dim.is_none())
        .map(|atom| atom.extent)
        .product();
    let mut y = x.clone();
    if !axes.is_empty() {
        y.id = call.emit.add(word, ReduceOp { kind, axes: axes.clone(), keep: false }, &[x.id])?;
    }
    if stretched > 1 && kind == Reduce::Sum {
        y.id = call.emit.unary("times", Unary::MulScalar(stretched as f32), &y)?.id;
    }
    let moved = |dim: usize| dim - axes.iter().filter(|&&axis| axis < dim).count();
    for (dim, atoms) in y.dims.iter_mut().enumerate() {
        if dims.contains(&dim) {
            atoms.clear();
        }
        for atom in atoms {
            atom.dim = atom.dim.map(moved);
        }
    }
    if !keep {
        let mut dim = 0;
        y.dims.retain(|_| {
            dim += 1;
            !dims.contains(&(dim - 1))
        });
    }
    Ok(y)
}

fn reduce(call: &mut Call<'_>, kind: Reduce) -> Results {
    let x = floats(call, "self")?;
    let (dims, keep, word) = (call.dims("dim", x.rank())?, call.flag("keepdim")?, word(call));
    one(reduced(call, &word, kind, &x, &dims, keep))
}

pub(super) fn sum(call: &mut Call<'_>) -> Results {
    reduce(call, Reduce::Sum)
}

pub(super) fn mean(call: &mut Call<'_>) -> Results {
    reduce(call, Reduce::Mean)
}

/// The largest element. Its place, which `max` along a dimension gives too, has no counterpart.
pub(super) fn amax(call: &mut Call<'_>) -> Results {
    if base(&call.node.op) == "aten.max" && call.has("other") {
        return super::elementwise::maximum(call);
    }
    reduce(call, Reduce::Max)
}

/// Mean, and sum of squared deviations from it.
pub(super) fn deviations(call: &mut Call<'_>, x: &Logical, dims: &[usize]) -> Made<(Logical, Logical)> {
    let mean = reduced(call, "mean", Reduce::Mean, x, dims, true)?;
    let centered = call.emit.binary("centered", Binary::Sub, x, &mean)?;
    let square = call.emit.unary("square", Unary::Square, &centered)?;
    Ok((mean, reduced(call, "deviations", Reduce::Sum, &square, dims, true)?))
}

/// Variance, standard deviation, or variance and mean.
pub(super) fn variance(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dims = call.dims("dim", x.rank())?;
    let correction = match call.has("unbiased") {
        true => f64::from(u8::from(call.flag("unbiased")?)),
        false => call.float_or("correction", 1.0)?,
    };
    let count: usize = dims.iter().map(|&dim| x.shape()[dim]).product();
    let (mean, sum) = deviations(call, &x, &dims)?;
    let divisor = count as f64 - correction;
    if divisor <= 0.0 {
        return Err(Problem::Broken(format!("a variance of {count} elements with correction {correction}")));
    }
    let mut y = call.emit.unary("variance", Unary::DivScalar(divisor as f32), &sum)?;
    if base(&call.node.op) == "aten.std" {
        y = call.emit.unary("std", Unary::Sqrt, &y)?;
    }
    let keep = call.flag("keepdim")?;
    let trimmed = |x: &Logical| {
        let mut x = x.clone();
        if !keep {
            dims.iter().rev().for_each(|&dim| x = x.squeezed(dim));
        }
        x
    };
    let second = (base(&call.node.op) == "aten.var_mean").then(|| trimmed(&mean));
    Ok([Some(trimmed(&y))].into_iter().chain(second.map(Some)).collect())
}

pub(super) fn softmax(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dim = call.dim("dim", x.rank())?;
    let (x, axis) = call.emit.single(&x, dim)?;
    let id = call.emit.add("softmax", Softmax { axis }, &[x.id])?;
    Ok(vec![Some(x.with_id(id))])
}

/// The logarithm of the sum of exponentials, and the elements relative to the largest one.
fn log_sum(call: &mut Call<'_>, x: &Logical, dims: &[usize]) -> Made<[Logical; 3]> {
    let largest = reduced(call, "largest", Reduce::Max, x, dims, true)?;
    let relative = call.emit.binary("relative", Binary::Sub, x, &largest)?;
    let exponentials = call.emit.unary("exp", Unary::Exp, &relative)?;
    let sum = reduced(call, "sum", Reduce::Sum, &exponentials, dims, true)?;
    let log = call.emit.unary("log", Unary::Log, &sum)?;
    Ok([log, relative, largest])
}

/// The logarithm of a softmax along a dimension.
pub(super) fn log_softmax_of(call: &mut Call<'_>, x: &Logical, dim: usize) -> Made<Logical> {
    let [log, relative, _] = log_sum(call, x, &[dim])?;
    call.emit.binary("log_softmax", Binary::Sub, &relative, &log)
}

pub(super) fn log_softmax(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dim = call.dim("dim", x.rank())?;
    one(log_softmax_of(call, &x, dim))
}

pub(super) fn logsumexp(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dims = call.dims("dim", x.rank())?;
    let [log, _, largest] = log_sum(call, &x, &dims)?;
    let mut y = call.emit.binary("logsumexp", Binary::Add, &log, &largest)?;
    if !call.flag("keepdim")? {
        dims.iter().rev().for_each(|&dim| y = y.squeezed(dim));
    }
    Ok(vec![Some(y)])
}
