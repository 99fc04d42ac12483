//! Losses.

use phalanx_ir::{Activation, Binary, DType, Reduce, Unary};
use phalanx_ops::{CountLabels, CrossEntropy, GatherElements};

use super::elementwise::{as_floats, floats};
use super::reductions::{log_softmax_of, reduced};
use super::{Results, base, one};
use crate::call::Call;
use crate::emit::{Made, Problem};
use crate::layout::{Atom, Logical};

/// How losses of elements become one: PyTorch's numbers.
#[derive(Clone, Copy, PartialEq)]
enum Joining {
    None,
    Mean,
    Sum,
}

fn joining(call: &Call<'_>) -> Made<Joining> {
    match call.int_or("reduction", 1)? {
        0 => Ok(Joining::None),
        1 => Ok(Joining::Mean),
        2 => Ok(Joining::Sum),
        other => Err(Problem::Broken(format!("reduction {other}"))),
    }
}

fn join(call: &mut Call<'_>, losses: Logical) -> Results {
    let kind = match joining(call)? {
        Joining::None => return Ok(vec![Some(losses)]),
        Joining::Mean => Reduce::Mean,
        Joining::Sum => Reduce::Sum,
    };
    let dims: Vec<usize> = (0..losses.rank()).collect();
    one(reduced(call, "loss", kind, &losses, &dims, false))
}

/// Classes are dimension 1, or the only one; they become the last.
fn classes_last(x: &Logical) -> Logical {
    let mut order: Vec<usize> = (0..x.rank()).collect();
    if x.rank() > 2 {
        order.remove(1);
        order.push(1);
    }
    x.permuted(&order)
}

pub(super) fn cross_entropy(call: &mut Call<'_>) -> Results {
    let logits = classes_last(&floats(call, "self")?);
    let labels = call.tensor("target")?;
    if call.emit.builder.ty(labels.id).dtype == DType::F32 {
        return dense(call, &logits, &classes_last(&labels));
    }
    let ignore = call.int_or("ignore_index", -100)?;
    let smoothing = call.float_or("label_smoothing", 0.0)? as f32;
    if joining(call)? == Joining::None {
        let Some(last) = logits.rank().checked_sub(1) else {
            return Err(Problem::Broken("no classes".into()));
        };
        if smoothing != 0.0 || call.has("weight") {
            return call.unsupported(
                "losses of elements with smoothing or weights: use reduction=\"mean\" or \"sum\"",
            );
        }
        let logs = log_softmax_of(call, &logits, last)?;
        return one(chosen(call, &logs, &labels, ignore));
    }
    let weights = call.optional("weight")?;
    let (rows, labels) = aligned(call, &logits, &labels)?;
    let mut both = vec![rows.id, labels];
    let mut counted = vec![labels];
    if let Some(weights) = weights {
        let weights = call.emit.plain(&weights)?;
        both.push(weights);
        counted.push(weights);
    }
    let sum = call.emit.add("loss.sum", CrossEntropy { ignore, smoothing }, &both)?;
    if joining(call)? == Joining::Sum {
        return Ok(vec![Some(Logical::plain(sum, &[]))]);
    }
    let count = call.emit.add("loss.count", CountLabels { ignore }, &counted)?;
    let [sum, count] = [sum, count].map(|id| Logical::plain(id, &[]));
    one(call.emit.binary("loss", Binary::Div, &sum, &count))
}

/// Logits with classes innermost, and labels that lie as their rows do.
fn aligned(
    call: &mut Call<'_>,
    logits: &Logical,
    labels: &Logical,
) -> Made<(Logical, phalanx_ir::graph::ValueId)> {
    let last = logits.rank().checked_sub(1).ok_or_else(|| Problem::Broken("no classes".into()))?;
    if labels.shape() != logits.shape()[..last] {
        return Err(Problem::Broken(format!("labels {:?} for logits {:?}", labels.shape(), logits.shape())));
    }
    let mut both = [logits.clone(), labels.unsqueezed(last)];
    call.emit.common_groups(&mut both, phalanx_ir::MAX_RANK)?;
    let rows = call.emit.innermost(&both[0], &[last])?;
    // Groups once more: rows may have been merged.
    let mut both = [rows, both[1].clone()];
    let mut groups = call.emit.common_groups(&mut both, phalanx_ir::MAX_RANK)?;
    groups.retain(|group| group.0[0].0 < last);
    let rows = call.emit.innermost(&both[0], &[last])?;
    let order = |x: &Logical| groups.iter().map(|group| group.of(x)).collect::<Vec<Vec<Atom>>>();
    let wanted: Vec<Option<usize>> =
        order(&rows).iter().map(|atoms| atoms.first().and_then(|atom| atom.dim)).collect();
    if !wanted.is_sorted() {
        return Err(Problem::Broken("rows of logits lie in no order".into()));
    }
    let labels = call.emit.arrange(&both[1], &order(&both[1]), false)?;
    let shape: Vec<usize> = call.emit.builder.shape(rows.id).dims().to_vec();
    let labels = call.emit.reshaped(labels, &shape[..shape.len() - 1])?;
    Ok((rows, labels))
}

/// Labels that are probabilities.
fn dense(call: &mut Call<'_>, logits: &Logical, labels: &Logical) -> Results {
    if call.has("weight") || call.float_or("label_smoothing", 0.0)? != 0.0 {
        return call.unsupported("probabilities with weights or smoothing: apply them to the labels");
    }
    let last = logits.rank().checked_sub(1).ok_or_else(|| Problem::Broken("no classes".into()))?;
    let logs = log_softmax_of(call, logits, last)?;
    let products = call.emit.binary("weighted", Binary::Mul, &logs, labels)?;
    let sums = reduced(call, "rows", Reduce::Sum, &products, &[last], false)?;
    let losses = call.emit.unary("losses", Unary::Neg, &sums)?;
    join(call, losses)
}

/// The negative of what labels choose along the last dimension; 0 for the ignored label.
fn chosen(call: &mut Call<'_>, logs: &Logical, labels: &Logical, ignore: i64) -> Made<Logical> {
    if ignore >= 0 {
        return call
            .unsupported("an ignored label that is a class: use ignore_index=-100 and no such labels");
    }
    let shape = labels.shape();
    let (values, index) = (call.emit.plain(logs)?, call.emit.plain(labels)?);
    let column = [&shape[..], &[1]].concat();
    let index = call.emit.reshaped(index, &column)?;
    let axis = shape.len();
    let id = call.emit.add("chosen", GatherElements { axis }, &[values, index])?;
    let picked = call.emit.reshape(&Logical::plain(id, &column), &shape)?;
    call.emit.unary("losses", Unary::Neg, &picked)
}

/// Negative log-likelihood of logarithms of probabilities.
pub(super) fn nll(call: &mut Call<'_>) -> Results {
    if call.has("weight") {
        return call.unsupported("weights of classes here: use F.cross_entropy");
    }
    let logs = classes_last(&floats(call, "self")?);
    let labels = call.tensor("target")?;
    let losses = chosen(call, &logs, &labels, call.int_or("ignore_index", -100)?)?;
    join(call, losses)
}

fn difference(call: &mut Call<'_>) -> Made<Logical> {
    let (x, target) = (floats(call, "self")?, floats(call, "target")?);
    call.emit.binary("difference", Binary::Sub, &x, &target)
}

pub(super) fn regression(call: &mut Call<'_>) -> Results {
    let unary = if base(&call.node.op) == "aten.mse_loss" { Unary::Square } else { Unary::Abs };
    let difference = difference(call)?;
    let losses = call.emit.unary("losses", unary, &difference)?;
    join(call, losses)
}

/// Quadratic up to a threshold, then linear: c (|d| - c/2) with c = min(|d|, threshold).
pub(super) fn huber(call: &mut Call<'_>) -> Results {
    let is_smooth = base(&call.node.op) == "aten.smooth_l1_loss";
    let threshold = call.float_or(if is_smooth { "beta" } else { "delta" }, 1.0)?;
    let difference = difference(call)?;
    let size = call.emit.unary("size", Unary::Abs, &difference)?;
    if threshold == 0.0 {
        return join(call, size);
    }
    let limited = call.emit.unary("limited", Unary::Clamp(0.0, threshold as f32), &size)?;
    let half = call.emit.unary("half", Unary::MulScalar(0.5), &limited)?;
    let rest = call.emit.binary("rest", Binary::Sub, &size, &half)?;
    let mut losses = call.emit.binary("losses", Binary::Mul, &limited, &rest)?;
    if is_smooth && threshold != 1.0 {
        losses = call.emit.unary("divided", Unary::DivScalar(threshold as f32), &losses)?;
    }
    join(call, losses)
}

/// max(x, 0) - x·y + log(1 + e^-|x|), with weights of positives as PyTorch has them.
pub(super) fn bce_with_logits(call: &mut Call<'_>) -> Results {
    let (x, target) = (floats(call, "self")?, floats(call, "target")?);
    let size = call.emit.unary("size", Unary::Abs, &x)?;
    let negative = call.emit.unary("negative", Unary::Neg, &size)?;
    let tail = call.emit.unary("tail", Unary::Softplus(1.0, 20.0), &negative)?;
    let losses = match call.optional("pos_weight")? {
        None => {
            let positive = call.emit.unary("positive", Unary::Act(Activation::Relu), &x)?;
            let product = call.emit.binary("product", Binary::Mul, &x, &target)?;
            let sum = call.emit.binary("linear", Binary::Sub, &positive, &product)?;
            call.emit.binary("losses", Binary::Add, &sum, &tail)?
        }
        Some(weight) => {
            // (1 - y) x + (1 + (w - 1) y) (log(1 + e^-|x|) + max(-x, 0)).
            let less = call.emit.unary("extra", Unary::SubScalar(1.0), &weight)?;
            let extra = call.emit.binary("weighted", Binary::Mul, &less, &target)?;
            let factor = call.emit.unary("factor", Unary::AddScalar(1.0), &extra)?;
            let minus = call.emit.unary("minus", Unary::Neg, &x)?;
            let below = call.emit.unary("below", Unary::Act(Activation::Relu), &minus)?;
            let log = call.emit.binary("log", Binary::Add, &tail, &below)?;
            let log = call.emit.binary("scaled", Binary::Mul, &factor, &log)?;
            let product = call.emit.binary("product", Binary::Mul, &x, &target)?;
            let rest = call.emit.binary("rest", Binary::Sub, &x, &product)?;
            call.emit.binary("losses", Binary::Add, &rest, &log)?
        }
    };
    let losses = weighted(call, losses)?;
    join(call, losses)
}

fn weighted(call: &mut Call<'_>, losses: Logical) -> Made<Logical> {
    match call.optional("weight")? {
        None => Ok(losses),
        Some(weight) => call.emit.binary("weighted", Binary::Mul, &losses, &weight),
    }
}

/// -(y log x + (1 - y) log(1 - x)), logarithms limited to -100 as in PyTorch.
pub(super) fn bce(call: &mut Call<'_>) -> Results {
    let (x, target) = (floats(call, "self")?, floats(call, "target")?);
    let other = call.emit.unary("minus", Unary::Neg, &x)?;
    let other = call.emit.unary("other", Unary::AddScalar(1.0), &other)?;
    let mut logs = Vec::new();
    for x in [&x, &other] {
        let log = call.emit.unary("log", Unary::Log, x)?;
        logs.push(call.emit.unary("limited", Unary::Clamp(-100.0, f32::INFINITY), &log)?);
    }
    // log(1-x) + y (log x - log(1-x)), negative.
    let gap = call.emit.binary("gap", Binary::Sub, &logs[0], &logs[1])?;
    let product = call.emit.binary("product", Binary::Mul, &target, &gap)?;
    let sum = call.emit.binary("sum", Binary::Add, &logs[1], &product)?;
    let losses = call.emit.unary("losses", Unary::Neg, &sum)?;
    let losses = weighted(call, losses)?;
    join(call, losses)
}

/// y (log y - x), or e^y (y - x) for targets that are logarithms.
pub(super) fn kl_div(call: &mut Call<'_>) -> Results {
    let (x, target) = (floats(call, "self")?, floats(call, "target")?);
    if call.flag("log_target")? {
        let gap = call.emit.binary("gap", Binary::Sub, &target, &x)?;
        let share = call.emit.unary("share", Unary::Exp, &target)?;
        let losses = call.emit.binary("losses", Binary::Mul, &share, &gap)?;
        return join(call, losses);
    }
    // y log y is 0 for y = 0: the logarithm is limited, so that it is a number.
    let limited = call.emit.unary("limited", Unary::Clamp(f32::MIN_POSITIVE, f32::INFINITY), &target)?;
    let log = call.emit.unary("log", Unary::Log, &limited)?;
    let gap = call.emit.binary("gap", Binary::Sub, &log, &x)?;
    let losses = call.emit.binary("losses", Binary::Mul, &target, &gap)?;
    join(call, losses)
}

/// log(1 + e^(-y x)).
pub(super) fn soft_margin(call: &mut Call<'_>) -> Results {
    let (x, target) = (floats(call, "self")?, call.tensor("target")?);
    let target = as_floats(call, target)?;
    let product = call.emit.binary("product", Binary::Mul, &x, &target)?;
    let negative = call.emit.unary("negative", Unary::Neg, &product)?;
    let losses = call.emit.unary("losses", Unary::Softplus(1.0, 20.0), &negative)?;
    join(call, losses)
}
