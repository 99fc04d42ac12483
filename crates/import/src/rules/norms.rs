//! Normalizations.

use phalanx_ir::{Binary, Unary};
use phalanx_ops::{BatchNormOptions, LayerNorm, Layers, RmsNorm};

use super::elementwise::floats;
use super::{Results, base};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::Logical;

/// How many innermost dimensions a norm spans.
fn spanned(call: &Call<'_>, x: &Logical) -> Made<Vec<usize>> {
    let count = call.ints("normalized_shape")?.len();
    match x.rank().checked_sub(count) {
        Some(first) if count > 0 => Ok((first..x.rank()).collect()),
        _ => Err(Problem::Broken(format!("it normalizes {count} of {} dimensions", x.rank()))),
    }
}

pub(super) fn layer_norm(call: &mut Call<'_>) -> Results {
    let x = floats(call, "input")?;
    let (dims, eps) = (spanned(call, &x)?, call.float_or("eps", 1e-5)? as f32);
    let (weight, bias) = (call.optional("weight")?, call.optional("bias")?);
    let x = call.emit.innermost(&x, &dims)?;
    let mut operands = vec![x.id];
    if let Some(weight) = &weight {
        operands.push(call.emit.plain(weight)?);
        if let Some(bias) = &bias {
            operands.push(call.emit.plain(bias)?);
        }
    }
    let id = call.emit.add("", LayerNorm { axes: dims.len(), eps }, &operands)?;
    let y = x.with_id(id);
    match (weight, bias) {
        (None, Some(bias)) => Ok(vec![Some(call.emit.binary("shifted", Binary::Add, &y, &bias)?)]),
        _ => Ok(vec![Some(y)]),
    }
}

/// x / √(mean(x²) + eps) · weight.
pub(super) fn rms_norm(call: &mut Call<'_>) -> Results {
    let x = floats(call, "input")?;
    let dims = spanned(call, &x)?;
    // PyTorch's default is the distance from 1 to the next float.
    let eps = call.float_or("eps", f64::from(f32::EPSILON))? as f32;
    let weight = call.optional("weight")?;
    let [last] = dims[..] else { return call.unsupported("a norm over several dimensions: flatten them") };
    let x = call.emit.innermost(&x, &[last])?;
    let weight = match weight {
        Some(weight) => call.emit.plain(&weight)?,
        None => call.emit.constant(1.0, &[x.shape()[last]])?,
    };
    let id = call.emit.add("", RmsNorm { eps }, &[x.id, weight])?;
    Ok(vec![Some(x.with_id(id))])
}

/// Channels of dimension 1 in groups: a layer norm over all that is in a group, then scale and shift by channel.
pub(super) fn group_norm(call: &mut Call<'_>) -> Results {
    let x = floats(call, "input")?;
    let (groups, eps) = (call.int("num_groups")?, call.float_or("eps", 1e-5)? as f32);
    let shape = x.shape();
    let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0);
    let Some(groups) = groups.filter(|&groups| shape.len() > 1 && shape[1].is_multiple_of(groups)) else {
        return Err(Problem::Broken(format!("{:?} groups of {shape:?}", call.int("num_groups")?)));
    };
    // Batch and groups stay, all else is one row.
    let rows = [shape[0], groups, shape[1..].iter().product::<usize>() / groups];
    let x = call.emit.reshape(&x, &rows)?;
    let id = call.emit.plain(&x)?;
    let id = call.emit.add("normalized", LayerNorm { axes: 1, eps }, &[id])?;
    let y = call.emit.reshape(&Logical::plain(id, &rows), &shape)?;
    Ok(vec![Some(scaled_by_channel(call, y)?)])
}

/// Scale and shift by the channels of dimension 1, if there are any.
fn scaled_by_channel(call: &mut Call<'_>, mut y: Logical) -> Made<Logical> {
    for (name, word, binary) in [("weight", "scaled", Binary::Mul), ("bias", "shifted", Binary::Add)] {
        if let Some(mut by_channel) = call.optional(name)? {
            while by_channel.rank() + 1 < y.rank() {
                by_channel = by_channel.unsqueezed(by_channel.rank());
            }
            y = call.emit.binary(word, binary, &y, &by_channel)?;
        }
    }
    Ok(y)
}

/// Every channel of every sample by itself.
pub(super) fn instance_norm(call: &mut Call<'_>) -> Results {
    let x = floats(call, "input")?;
    if call.has("running_mean") {
        return call.unsupported("running statistics of an instance norm: use track_running_stats=False");
    }
    let dims: Vec<usize> = (2..x.rank()).collect();
    let count: usize = dims.iter().map(|&dim| x.shape()[dim]).product();
    let (mean, sum) = super::reductions::deviations(call, &x, &dims)?;
    let variance = call.emit.unary("variance", Unary::DivScalar(count as f32), &sum)?;
    let shifted =
        call.emit.unary("shifted", Unary::AddScalar(call.float_or("eps", 1e-5)? as f32), &variance)?;
    let scale = call.emit.unary("scale", Unary::Rsqrt, &shifted)?;
    let centered = call.emit.binary("centered", Binary::Sub, &x, &mean)?;
    let y = call.emit.binary("normalized", Binary::Mul, &centered, &scale)?;
    Ok(vec![Some(scaled_by_channel(call, y)?)])
}

/// Channels of dimension 1 over all others; training keeps running statistics.
pub(super) fn batch_norm(call: &mut Call<'_>) -> Results {
    let x = floats(call, "input")?;
    let training = match base(&call.node.op) {
        "aten._native_batch_norm_legit_no_training" => false,
        _ => call.flag("training")?,
    };
    let momentum = call.float_or("momentum", 0.1)? as f32;
    let eps = call.float_or("eps", 1e-5)? as f32;
    let options = BatchNormOptions { eps, momentum: Some(momentum), groups: 1, training };
    let weights = match (call.optional("weight")?, call.optional("bias")?) {
        (Some(weight), Some(bias)) => Some([call.emit.plain(&weight)?, call.emit.plain(&bias)?]),
        (None, None) => None,
        _ => {
            return call
                .unsupported("a batch norm with a weight but no bias: use affine=True or affine=False");
        }
    };
    let states = match (call.optional("running_mean")?, call.optional("running_var")?) {
        (Some(mean), Some(variance)) => [mean.id, variance.id],
        _ => {
            return call.unsupported("a batch norm without running statistics: use track_running_stats=True");
        }
    };
    if x.rank() < 2 {
        return Err(Problem::Broken("a batch norm needs a batch and channels".into()));
    }
    let x = call.emit.innermost(&x, &[1])?;
    let name = call.emit.named("");
    let id = call.emit.builder.batch_norm_of(&name, x.id, states, weights, options)?;
    if training {
        call.emit.updated.extend(states);
    }
    Ok(vec![Some(x.with_id(id))])
}
