//! Functions of single elements.

use phalanx_ir::{Activation, Binary, CompareKind, DType, Unary};
use phalanx_ops::{Cast, Compare, Where};

use super::{Results, base, one};
use crate::call::{Call, Factor};
use crate::emit::{Made, Problem};
use crate::layout::Logical;

pub(super) fn unary(call: &mut Call<'_>) -> Results {
    let unary = match base(&call.node.op) {
        "aten.relu" => Unary::Act(Activation::Relu),
        "aten.tanh" => Unary::Act(Activation::Tanh),
        "aten.sigmoid" => Unary::Act(Activation::Sigmoid),
        "aten.silu" => Unary::Act(Activation::Silu),
        "aten.gelu" if call.text("approximate")? == "tanh" => Unary::Act(Activation::GeluTanh),
        "aten.gelu" => Unary::Act(Activation::GeluErf),
        "aten.exp" => Unary::Exp,
        "aten.log" => Unary::Log,
        "aten.sqrt" => Unary::Sqrt,
        "aten.rsqrt" => Unary::Rsqrt,
        "aten.sin" => Unary::Sin,
        "aten.cos" => Unary::Cos,
        "aten.neg" => Unary::Neg,
        "aten.abs" => Unary::Abs,
        "aten.erf" => Unary::Erf,
        "aten.hardswish" => Unary::HardSwish,
        "aten.hardsigmoid" => Unary::HardSigmoid,
        other => return Err(Problem::Broken(format!("{other} is no function of one element"))),
    };
    apply(call, unary)
}

/// The word of a node: its operator without the namespace.
pub(super) fn word(call: &Call<'_>) -> String {
    base(&call.node.op).rsplit('.').next().unwrap_or_default().to_string()
}

fn apply(call: &mut Call<'_>, unary: Unary) -> Results {
    let x = floats(call, "self")?;
    let word = word(call);
    one(call.emit.unary(&word, unary, &x))
}

/// A tensor of floats; truth values and integers are cast.
pub(super) fn floats(call: &mut Call<'_>, name: &str) -> Made<Logical> {
    let x = call.tensor(name)?;
    as_floats(call, x)
}

pub(super) fn as_floats(call: &mut Call<'_>, x: Logical) -> Made<Logical> {
    if call.emit.builder.ty(x.id).dtype == DType::F32 {
        return Ok(x);
    }
    let id = call.emit.add("cast", Cast { to: DType::F32 }, &[x.id])?;
    Ok(x.with_id(id))
}

/// Integer arithmetic has no counterpart on devices.
fn check_float(call: &Call<'_>) -> Made<()> {
    match call.node.results.first().map(|typed| &*typed.dtype) {
        Some("f32") | None => Ok(()),
        Some(dtype) => call.unsupported(format!(
            "arithmetic on {dtype} that depends on computed values: cast it to float32, or compute it from inputs alone"
        )),
    }
}

/// a ∘ b for tensors and numbers.
fn arithmetic(call: &mut Call<'_>, binary: Binary, names: [&str; 2]) -> Results {
    check_float(call)?;
    let word = word(call);
    let alpha = call.float_or("alpha", 1.0)?;
    let [a, b] = [call.factor(names[0])?, call.factor(names[1])?];
    let made = match (a, b) {
        (Factor::Tensor(a), Factor::Tensor(b)) => {
            let (a, mut b) = (as_floats(call, a)?, as_floats(call, b)?);
            if alpha != 1.0 {
                b = call.emit.unary("scaled", Unary::MulScalar(alpha as f32), &b)?;
            }
            call.emit.binary(&word, binary, &a, &b)
        }
        (Factor::Tensor(a), Factor::Number(b)) => {
            let a = as_floats(call, a)?;
            with_number(call, &word, binary, &a, b * alpha)
        }
        (Factor::Number(a), Factor::Tensor(b)) => {
            let b = as_floats(call, b)?;
            number_with(call, &word, binary, a, &b)
        }
        (Factor::Number(_), Factor::Number(_)) => Err(Problem::Broken("it has no tensor".into())),
    };
    one(made)
}

/// x ∘ number.
fn with_number(call: &mut Call<'_>, word: &str, binary: Binary, x: &Logical, number: f64) -> Made<Logical> {
    let number = number as f32;
    let unary = match binary {
        Binary::Add => Unary::AddScalar(number),
        Binary::Sub => Unary::SubScalar(number),
        Binary::Mul => Unary::MulScalar(number),
        Binary::Div => Unary::DivScalar(number),
        Binary::Max | Binary::Min => {
            let id = call.emit.constant(number, &[])?;
            return call.emit.binary(word, binary, x, &Logical::plain(id, &[]));
        }
    };
    call.emit.unary(word, unary, x)
}

/// number ∘ x.
fn number_with(call: &mut Call<'_>, word: &str, binary: Binary, number: f64, x: &Logical) -> Made<Logical> {
    match binary {
        Binary::Add | Binary::Mul | Binary::Max | Binary::Min => with_number(call, word, binary, x, number),
        Binary::Sub => {
            let negative = call.emit.unary("neg", Unary::Neg, x)?;
            call.emit.unary(word, Unary::AddScalar(number as f32), &negative)
        }
        Binary::Div => {
            let id = call.emit.constant(number as f32, &[])?;
            call.emit.binary(word, binary, &Logical::plain(id, &[]), x)
        }
    }
}

pub(super) fn add(call: &mut Call<'_>) -> Results {
    arithmetic(call, Binary::Add, ["self", "other"])
}

pub(super) fn sub(call: &mut Call<'_>) -> Results {
    arithmetic(call, Binary::Sub, ["self", "other"])
}

pub(super) fn rsub(call: &mut Call<'_>) -> Results {
    if call.float_or("alpha", 1.0)? != 1.0 {
        return call.unsupported("alpha is not 1: write the product out");
    }
    arithmetic(call, Binary::Sub, ["other", "self"])
}

pub(super) fn mul(call: &mut Call<'_>) -> Results {
    arithmetic(call, Binary::Mul, ["self", "other"])
}

pub(super) fn div(call: &mut Call<'_>) -> Results {
    if !call.text("rounding_mode")?.is_empty() {
        return call.unsupported("rounding has no gradient: divide without rounding_mode");
    }
    arithmetic(call, Binary::Div, ["self", "other"])
}

pub(super) fn maximum(call: &mut Call<'_>) -> Results {
    arithmetic(call, Binary::Max, ["self", "other"])
}

pub(super) fn minimum(call: &mut Call<'_>) -> Results {
    arithmetic(call, Binary::Min, ["self", "other"])
}

pub(super) fn addcmul(call: &mut Call<'_>) -> Results {
    let [x, a, b] = [floats(call, "self")?, floats(call, "tensor1")?, floats(call, "tensor2")?];
    let mut product = call.emit.binary("product", Binary::Mul, &a, &b)?;
    let value = call.float_or("value", 1.0)?;
    if value != 1.0 {
        product = call.emit.unary("scaled", Unary::MulScalar(value as f32), &product)?;
    }
    one(call.emit.binary("addcmul", Binary::Add, &x, &product))
}

pub(super) fn reciprocal(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    one(number_with(call, "reciprocal", Binary::Div, 1.0, &x))
}

pub(super) fn pow(call: &mut Call<'_>) -> Results {
    check_float(call)?;
    match (call.factor("self")?, call.factor("exponent")?) {
        (Factor::Tensor(x), Factor::Number(exponent)) => {
            let x = as_floats(call, x)?;
            let unary = match exponent {
                1.0 => return Ok(vec![Some(x)]),
                2.0 => Unary::Square,
                0.5 => Unary::Sqrt,
                -0.5 => Unary::Rsqrt,
                exponent => Unary::PowScalar(exponent as f32),
            };
            one(call.emit.unary("pow", unary, &x))
        }
        (Factor::Number(base), Factor::Tensor(x)) if base > 0.0 => {
            let x = as_floats(call, x)?;
            let scaled = call.emit.unary("scaled", Unary::MulScalar(base.ln() as f32), &x)?;
            one(call.emit.unary("pow", Unary::Exp, &scaled))
        }
        (Factor::Tensor(x), Factor::Tensor(exponent)) => {
            let x = as_floats(call, x)?;
            let log = call.emit.unary("log", Unary::Log, &x)?;
            let product = call.emit.binary("product", Binary::Mul, &log, &exponent)?;
            one(call.emit.unary("pow", Unary::Exp, &product))
        }
        _ => call.unsupported("a power of a number that is not positive"),
    }
}

pub(super) fn clamp(call: &mut Call<'_>) -> Results {
    let bound = |call: &Call<'_>, names: [&str; 2], default: f64| {
        let given = names.into_iter().find(|name| call.has(name));
        match given {
            None => Ok(default),
            Some(name) if call.reference(name).is_some() => {
                call.unsupported("a bound that is a tensor: use torch.maximum and torch.minimum")
            }
            Some(name) => call.float(name),
        }
    };
    let low = bound(call, ["min", "min_val"], f64::NEG_INFINITY)?;
    let high = bound(call, ["max", "max_val"], f64::INFINITY)?;
    apply(call, Unary::Clamp(low as f32, high as f32))
}

pub(super) fn relu6(call: &mut Call<'_>) -> Results {
    apply(call, Unary::Clamp(0.0, 6.0))
}

pub(super) fn leaky_relu(call: &mut Call<'_>) -> Results {
    let slope = call.float_or("negative_slope", 0.01)?;
    apply(call, Unary::LeakyRelu(slope as f32))
}

pub(super) fn prelu(call: &mut Call<'_>) -> Results {
    let (x, mut weight) = (floats(call, "self")?, floats(call, "weight")?);
    // The weight is by channel: the dimension behind the batch.
    while weight.rank() + 1 < x.rank() {
        weight = weight.unsqueezed(weight.rank());
    }
    let positive = call.emit.unary("positive", Unary::Act(Activation::Relu), &x)?;
    let negative = call.emit.binary("rest", Binary::Sub, &x, &positive)?;
    let scaled = call.emit.binary("scaled", Binary::Mul, &negative, &weight)?;
    one(call.emit.binary("", Binary::Add, &positive, &scaled))
}

pub(super) fn elu(call: &mut Call<'_>) -> Results {
    let (alpha, scale) = (call.float_or("alpha", 1.0)?, call.float_or("scale", 1.0)?);
    if call.float_or("input_scale", 1.0)? != 1.0 {
        return call.unsupported("input_scale is not 1");
    }
    let x = floats(call, "self")?;
    let y = call.emit.unary("elu", Unary::Elu(alpha as f32), &x)?;
    one(if scale == 1.0 { Ok(y) } else { call.emit.unary("scaled", Unary::MulScalar(scale as f32), &y) })
}

/// The constants of the paper that PyTorch uses.
pub(super) fn selu(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let y = call.emit.unary("elu", Unary::Elu(1.673_263_2), &x)?;
    one(call.emit.unary("selu", Unary::MulScalar(1.050_701), &y))
}

pub(super) fn softplus(call: &mut Call<'_>) -> Results {
    let (beta, threshold) = (call.float_or("beta", 1.0)?, call.float_or("threshold", 20.0)?);
    apply(call, Unary::Softplus(beta as f32, threshold as f32))
}

/// x tanh(softplus(x)).
pub(super) fn mish(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let y = call.emit.unary("softplus", Unary::Softplus(1.0, 20.0), &x)?;
    let y = call.emit.unary("tanh", Unary::Act(Activation::Tanh), &y)?;
    one(call.emit.binary("mish", Binary::Mul, &x, &y))
}

pub(super) fn log1p(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let y = call.emit.unary("shifted", Unary::AddScalar(1.0), &x)?;
    one(call.emit.unary("log1p", Unary::Log, &y))
}

/// -softplus(-x).
pub(super) fn log_sigmoid(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let y = call.emit.unary("neg", Unary::Neg, &x)?;
    let y = call.emit.unary("softplus", Unary::Softplus(1.0, 20.0), &y)?;
    one(call.emit.unary("log_sigmoid", Unary::Neg, &y))
}

/// The first half times the sigmoid of the second.
pub(super) fn glu(call: &mut Call<'_>) -> Results {
    let x = floats(call, "self")?;
    let dim = call.dim_or("dim", -1, x.rank())?;
    let half = x.shape()[dim] / 2;
    let parts = super::shapes::pieces(call, &x, dim, &[half, half])?;
    let gate = call.emit.unary("gate", Unary::Act(Activation::Sigmoid), &parts[1])?;
    one(call.emit.binary("glu", Binary::Mul, &parts[0], &gate))
}

/// Another element type.
pub(super) fn cast(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let from = call.emit.builder.ty(x.id).dtype;
    let to = call.dtype("dtype")?.unwrap_or(from);
    if from == to {
        return Ok(vec![Some(x)]);
    }
    let id = match (from, to) {
        (_, DType::Bool) => {
            call.emit.add("cast", Compare { kind: CompareKind::Ne, scalar: Some(0.0) }, &[x.id])?
        }
        _ => call.emit.add("cast", Cast { to }, &[x.id])?,
    };
    Ok(vec![Some(x.with_id(id))])
}

pub(super) fn compare(call: &mut Call<'_>) -> Results {
    let kind = match base(&call.node.op) {
        "aten.eq" => CompareKind::Eq,
        "aten.ne" => CompareKind::Ne,
        "aten.lt" => CompareKind::Lt,
        "aten.le" => CompareKind::Le,
        "aten.gt" => CompareKind::Gt,
        "aten.ge" => CompareKind::Ge,
        "aten.bitwise_and" | "aten.logical_and" => CompareKind::And,
        _ => CompareKind::Or,
    };
    let (word, x) = (word(call), call.tensor("self")?);
    if kind.is_logical() && call.emit.builder.ty(x.id).dtype != DType::Bool {
        return call.unsupported("bits of integers: use it on truth values");
    }
    match call.factor("other")? {
        Factor::Tensor(other) => {
            let (x, other) = same_types(call, x, other)?;
            one(call.emit.stretched(&word, Compare { kind, scalar: None }, &[&x, &other]))
        }
        Factor::Number(number) => {
            let id = call.emit.add(&word, Compare { kind, scalar: Some(number) }, &[x.id])?;
            Ok(vec![Some(x.with_id(id))])
        }
    }
}

/// Both as floats, unless they are of one type.
fn same_types(call: &mut Call<'_>, a: Logical, b: Logical) -> Made<(Logical, Logical)> {
    if call.emit.builder.ty(a.id).dtype == call.emit.builder.ty(b.id).dtype {
        return Ok((a, b));
    }
    Ok((as_floats(call, a)?, as_floats(call, b)?))
}

pub(super) fn not(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    if call.emit.builder.ty(x.id).dtype != DType::Bool {
        return call.unsupported("bits of integers: use it on truth values");
    }
    let floats = as_floats(call, x)?;
    let id = call.emit.add("not", Compare { kind: CompareKind::Eq, scalar: Some(0.0) }, &[floats.id])?;
    Ok(vec![Some(floats.with_id(id))])
}

/// A number as a tensor, or the tensor itself.
fn as_tensor(call: &mut Call<'_>, factor: Factor) -> Made<Logical> {
    match factor {
        Factor::Tensor(x) => as_floats(call, x),
        Factor::Number(number) => {
            let id = call.emit.constant(number as f32, &[])?;
            Ok(Logical::plain(id, &[]))
        }
    }
}

pub(super) fn masked_fill(call: &mut Call<'_>) -> Results {
    check_float(call)?;
    let (x, mask, value) = (floats(call, "self")?, call.tensor("mask")?, call.factor("value")?);
    let value = as_tensor(call, value)?;
    one(call.emit.stretched("masked_fill", Where, &[&mask, &value, &x]))
}

pub(super) fn select(call: &mut Call<'_>) -> Results {
    check_float(call)?;
    let mask = call.tensor("condition")?;
    let (a, b) = (call.factor("self")?, call.factor("other")?);
    let (a, b) = (as_tensor(call, a)?, as_tensor(call, b)?);
    one(call.emit.stretched("where", Where, &[&mask, &a, &b]))
}
