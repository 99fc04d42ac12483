//! Convolutions, pools and resized images. Channels are innermost here, and dimension 1 in PyTorch.

use phalanx_ir::graph::ValueId;
use phalanx_ir::{Activation, Pooling, Resampling, ScaleFactors};
use phalanx_ops::{Conv, Linear, Pool, Resize};

use super::elementwise::floats;
use super::{Results, base, one};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::{Atom, Logical};

/// `[batch, channels, space…]` as a value with channels innermost; a tensor without batch gets one.
fn channels_last(call: &mut Call<'_>, x: &Logical) -> Made<ValueId> {
    let order: Vec<usize> = [0].into_iter().chain(2..x.rank()).chain([1]).collect();
    call.emit.ordered(x, &order)
}

/// A value `[batch, space…, channels]` as PyTorch sees it.
fn channels_second(call: &Call<'_>, id: ValueId) -> Logical {
    let shape = call.emit.builder.shape(id).dims().to_vec();
    let order: Vec<usize> = [0, shape.len() - 1].into_iter().chain(1..shape.len() - 1).collect();
    Logical::plain(id, &shape).permuted(&order)
}

fn both_sides(padding: &[usize]) -> Vec<usize> {
    padding.iter().flat_map(|&amount| [amount, amount]).collect()
}

/// An image with a batch: the input, and whether it had one.
fn image(call: &mut Call<'_>, name: &str) -> Made<(Logical, bool)> {
    let x = floats(call, name)?;
    let space = base(&call.node.op).chars().rev().find_map(|c| c.to_digit(10)).unwrap_or(2) as usize;
    match x.rank().checked_sub(space) {
        Some(2) => Ok((x, true)),
        Some(1) => Ok((x.unsqueezed(0), false)),
        _ => Err(Problem::Broken(format!("{:?} has not {space} dimensions of space", x.shape()))),
    }
}

fn finish(call: &Call<'_>, id: ValueId, has_batch: bool) -> Results {
    let y = channels_second(call, id);
    Ok(vec![Some(if has_batch { y } else { y.squeezed(0) })])
}

pub(super) fn conv(call: &mut Call<'_>) -> Results {
    let (x, has_batch) = image(call, "input")?;
    let weight = floats(call, "weight")?;
    let space = x.rank() - 2;
    if weight.rank() != x.rank() {
        return Err(Problem::Broken(format!("a weight {:?} for {:?}", weight.shape(), x.shape())));
    }
    let padding = padding(call, &weight, space)?;
    let stride = call.extents("stride", space)?;
    let dilation = call.extents("dilation", space)?;
    let groups = call.extents("groups", 1)?.first().copied().unwrap_or(1);
    if let Some(made) = patches(call, &x, &weight, [&stride, &padding, &dilation], groups)? {
        return Ok(vec![Some(if has_batch { made } else { made.squeezed(0) })]);
    }
    let op = Conv { stride, dilation, padding, groups, ..Conv::default() };
    let mut operands = vec![channels_last(call, &x)?, call.emit.plain(&weight)?];
    if let Some(bias) = call.optional("bias")? {
        operands.push(call.emit.plain(&bias)?);
    }
    let id = call.emit.add("", op, &operands)?;
    finish(call, id, has_batch)
}

/// What is put on each side; words stand for none and for as much as keeps the extents.
fn padding(call: &Call<'_>, weight: &Logical, space: usize) -> Made<Vec<usize>> {
    let is_word = call.node.args.get("padding").is_some_and(serde_json::Value::is_string);
    if !is_word {
        return Ok(both_sides(&call.extents("padding", space)?));
    }
    let dilation = call.extents("dilation", space)?;
    match call.text("padding")? {
        "valid" => Ok(vec![0; 2 * space]),
        _ => {
            let total = |(kernel, dilation): (&usize, &usize)| (kernel - 1) * dilation;
            let totals = weight.shape()[2..].to_vec();
            Ok(totals
                .iter()
                .zip(&dilation)
                .map(total)
                .flat_map(|total| [total / 2, total - total / 2])
                .collect())
        }
    }
}

/// A convolution whose windows do not overlap is a product with each of them.
fn patches(
    call: &mut Call<'_>,
    x: &Logical,
    weight: &Logical,
    [stride, padding, dilation]: [&[usize]; 3],
    groups: usize,
) -> Made<Option<Logical>> {
    let (shape, kernel) = (x.shape(), weight.shape());
    let is_cut = kernel.len() == shape.len()
        && stride == &kernel[2..]
        && padding.iter().all(|&amount| amount == 0)
        && dilation.iter().all(|&amount| amount == 1)
        && groups == 1
        && shape[2..].iter().zip(stride).all(|(extent, &stride)| stride > 0 && extent.is_multiple_of(stride))
        && kernel[2..].iter().any(|&extent| extent > 1)
        && shape.len() == 4;
    if !is_cut {
        return Ok(None);
    }
    let [batch, channels, height, width] = shape[..] else { return Ok(None) };
    let [out, _, rows, columns] = kernel[..] else { return Ok(None) };
    let cut = [batch, channels, height / rows, rows, width / columns, columns];
    let windows = call.emit.reshape(x, &cut)?.permuted(&[0, 2, 4, 1, 3, 5]);
    let length = channels * rows * columns;
    let windows = call.emit.reshape(&windows, &[batch, height / rows, width / columns, length])?;
    let windows = call.emit.innermost(&windows, &[3])?;
    let matrix = call.emit.plain(weight)?;
    let mut operands = vec![windows.id, call.emit.reshaped(matrix, &[out, length])?];
    if let Some(bias) = call.optional("bias")? {
        operands.push(call.emit.plain(&bias)?);
    }
    let id = call.emit.add("", Linear { transposed: false, activation: Activation::None }, &operands)?;
    let axis = call.emit.builder.shape(id).rank() - 1;
    let mut y = windows.with_id(id);
    y.dims[3] = if out == 1 { Vec::new() } else { vec![Atom { dim: Some(axis), extent: out }] };
    Ok(Some(y.permuted(&[0, 3, 1, 2])))
}

pub(super) fn conv_transpose(call: &mut Call<'_>) -> Results {
    let (x, has_batch) = image(call, "input")?;
    let weight = floats(call, "weight")?;
    let space = x.rank() - 2;
    let op = Conv {
        stride: call.extents("stride", space)?,
        dilation: call.extents("dilation", space)?,
        padding: both_sides(&call.extents("padding", space)?),
        groups: call.extents("groups", 1)?.first().copied().unwrap_or(1),
        adjoint: true,
        output_padding: call.extents("output_padding", space)?,
        ..Conv::default()
    };
    let mut operands = vec![channels_last(call, &x)?, call.emit.plain(&weight)?];
    if let Some(bias) = call.optional("bias")? {
        operands.push(call.emit.plain(&bias)?);
    }
    let id = call.emit.add("", op, &operands)?;
    finish(call, id, has_batch)
}

fn pool(call: &mut Call<'_>, kind: Pooling) -> Results {
    let (x, has_batch) = image(call, "self")?;
    let space = x.rank() - 2;
    if call.extents("dilation", space)?.iter().any(|&amount| amount != 1) {
        return call.unsupported("a pool with dilation");
    }
    if call.has("divisor_override") {
        return call.unsupported("divisor_override: multiply the result instead");
    }
    let count_padding = !call.has("count_include_pad") || call.flag("count_include_pad")?;
    let op = Pool {
        kind,
        kernel: call.extents("kernel_size", space)?,
        stride: call.extents("stride", space)?,
        padding: both_sides(&call.extents("padding", space)?),
        ceil: call.flag("ceil_mode")?,
        count_padding,
        adaptive: Vec::new(),
    };
    let x = channels_last(call, &x)?;
    let id = call.emit.add("", op, &[x])?;
    finish(call, id, has_batch)
}

pub(super) fn max_pool(call: &mut Call<'_>) -> Results {
    pool(call, Pooling::Max)
}

pub(super) fn avg_pool(call: &mut Call<'_>) -> Results {
    pool(call, Pooling::Avg)
}

pub(super) fn adaptive_pool(call: &mut Call<'_>) -> Results {
    let (x, has_batch) = image(call, "self")?;
    let space = x.rank() - 2;
    let adaptive: Vec<usize> = call.shape(0)?.iter().rev().take(space).rev().copied().collect();
    if adaptive.iter().all(|&extent| extent == 1) {
        let dims: Vec<usize> = (2..x.rank()).collect();
        let y = super::reductions::reduced(call, "", phalanx_ir::Reduce::Mean, &x, &dims, true)?;
        return Ok(vec![Some(if has_batch { y } else { y.squeezed(0) })]);
    }
    let x = channels_last(call, &x)?;
    let op = Pool { kind: Pooling::Avg, adaptive, ..Pool::default() };
    let id = call.emit.add("", op, &[x])?;
    finish(call, id, has_batch)
}

pub(super) fn upsample(call: &mut Call<'_>) -> Results {
    let name = ["self", "input"].into_iter().find(|name| call.has(name)).unwrap_or("self");
    let (x, has_batch) = image(call, name)?;
    let space = x.rank() - 2;
    let kind = if base(&call.node.op).contains("nearest") { Resampling::Nearest } else { Resampling::Linear };
    let mut factors = call.floats("scale_factors")?;
    if factors.is_empty() {
        let words = ["scales_d", "scales_h", "scales_w", "scales"];
        for word in words.into_iter().filter(|word| call.has(word)) {
            factors.push(call.float(word)?);
        }
    }
    let (size, scale) = match factors.len() == space {
        true => (Vec::new(), ScaleFactors(factors)),
        false => (call.shape(0)?.iter().rev().take(space).rev().copied().collect(), ScaleFactors::default()),
    };
    let op = Resize { kind, align: call.flag("align_corners")?, size, scale };
    let x = channels_last(call, &x)?;
    let id = call.emit.add("", op, &[x])?;
    finish(call, id, has_batch)
}

/// Channels as blocks of a larger image.
pub(super) fn pixel_shuffle(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let factor = call.extents("upscale_factor", 1)?.first().copied().unwrap_or(1);
    let [batch, channels, height, width] = x.shape()[..] else {
        return call.unsupported("pixel_shuffle of a tensor that is not [batch, channels, height, width]");
    };
    if factor == 0 || factor > 1 << 16 || !channels.is_multiple_of(factor * factor) {
        return Err(Problem::Broken(format!("{channels} channels and a factor of {factor}")));
    }
    let rest = channels / factor / factor;
    let y = call.emit.reshape(&x, &[batch, rest, factor, factor, height, width])?;
    let y = y.permuted(&[0, 1, 4, 2, 5, 3]);
    one(call.emit.reshape(&y, &[batch, rest, height * factor, width * factor]))
}
