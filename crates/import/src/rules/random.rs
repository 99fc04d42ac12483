//! Random numbers, and constants in the shape of a tensor.

use phalanx_ops::{Distribution, Dropout, Random};

use super::elementwise::floats;
use super::{Results, one};
use crate::RandomLayer;
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::{Atom, Logical};

/// Notes a layer that draws numbers for `x`, in the order of the value.
fn note(call: &mut Call<'_>, x: &Logical, rate: Option<f32>) {
    let name = call.emit.builder_name(x.id);
    let shape = call.emit.builder.shape(x.id).dims().to_vec();
    let order = x.dims.iter().flatten().filter_map(|atom| atom.dim).collect();
    let node = call.emit.node.clone();
    call.emit.random.push(RandomLayer { name, node, rate, shape, order });
}

pub(super) fn dropout(call: &mut Call<'_>) -> Results {
    let name = ["input", "self"].into_iter().find(|name| call.has(name)).unwrap_or("input");
    let x = floats(call, name)?;
    let rate = call.float("p")? as f32;
    if rate == 0.0 || !call.flag("train")? {
        return Ok(vec![Some(x)]);
    }
    if rate == 1.0 {
        let y = call.emit.unary("", phalanx_ir::Unary::MulScalar(0.0), &x)?;
        return Ok(vec![Some(y)]);
    }
    one(dropped(call, &x, rate))
}

/// A dropout.
pub(super) fn dropped(call: &mut Call<'_>, x: &Logical, rate: f32) -> Made<Logical> {
    // Copies of a stretched tensor are dropped each by itself.
    let x = if x.dims.iter().flatten().any(|atom| atom.dim.is_none()) {
        let id = call.emit.plain(x)?;
        Logical::plain(id, &x.shape())
    } else {
        x.clone()
    };
    let id = call.emit.add("", Dropout { rate }, &[x.id])?;
    let y = x.with_id(id);
    note(call, &y, Some(rate));
    Ok(y)
}

fn drawn(call: &mut Call<'_>, kind: Distribution) -> Results {
    let shape = call.shape(0)?.to_vec();
    let name = call.emit.named("random");
    let id = call.emit.builder.add_one(&name, Random { kind, shape: shape.clone().into() }, &[])?;
    let y = Logical::plain(id, &shape);
    note(call, &y, None);
    Ok(vec![Some(y)])
}

pub(super) fn bernoulli(call: &mut Call<'_>) -> Results {
    let share = if call.has("p") {
        call.float("p")?
    } else {
        match call.constant("self")?.and_then(|constant| constant.uniform()) {
            Some(share) => share,
            None => return call.unsupported("shares that differ by element: use torch.rand_like(x) < p"),
        }
    };
    drawn(call, Distribution::Bernoulli(share as f32))
}

pub(super) fn randn_like(call: &mut Call<'_>) -> Results {
    drawn(call, Distribution::Normal)
}

pub(super) fn rand_like(call: &mut Call<'_>) -> Results {
    drawn(call, Distribution::Uniform)
}

/// One number in the shape of a tensor: stretched, so that it costs nothing.
fn everywhere(call: &mut Call<'_>, value: f64) -> Made<Logical> {
    let shape = call.shape(0)?.to_vec();
    match call.node.results.first().map(|typed| &*typed.dtype) {
        Some("f32") => {}
        _ => {
            return Err(Problem::Unsupported(
                "a constant of integers in the shape of a computed tensor".into(),
            ));
        }
    }
    let id = call.emit.constant(value as f32, &[])?;
    let atom = |&extent: &usize| if extent == 1 { Vec::new() } else { vec![Atom { dim: None, extent }] };
    Ok(Logical { id, dims: shape.iter().map(atom).collect() })
}

pub(super) fn full_like(call: &mut Call<'_>) -> Results {
    let value = call.float("fill_value")?;
    one(everywhere(call, value))
}

pub(super) fn scalar(call: &mut Call<'_>) -> Results {
    let value = call.float("s")?;
    one(everywhere(call, value))
}
