//! Cross entropy of rows of logits against integer labels, its gradient, and the count of labels that take part.
//!
//! `cross_entropy` reads logits `[rows, classes]` and labels `[rows]` and writes per row the negative log-likelihood
//! (zero where the label is `ignore_index`) and the log-sum-exp, whose sum is a tree over `leaves` equal blocks of the
//! classes. `cross_entropy_grad` reads logits (or a tile of them, whose first column is class `first`), labels, lse and
//! dloss `[1]` and writes dlogits = (probabilities - onehot) * dloss (zero rows where ignored; accumulates on request).
//! `count_labels` reads labels and writes how many are not `ignore_index`.

use phalanx_ir::names;

use crate::call::{no_workspace, one_block};
use crate::ids::Ids;
use crate::math::{exp, log};
use crate::rows::{Tree, max, sum, tree_reference};
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, dispatch, params};

pub mod linear;
pub mod parts;

pub use linear::LinearCrossEntropy;
pub use parts::{ClassJoin, ClassMax, ClassPick, ClassSum};

params! {
    /// Settings of `cross_entropy`.
    pub struct CrossEntropy {
        /// How many rows.
        pub rows: usize,
        /// Logits per row.
        pub classes: usize,
        /// The label of rows that do not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
        /// Blocks of classes whose sums are added as a tree: a power of two that divides them.
        pub leaves: usize,
    }
}

params! {
    /// Settings of `cross_entropy_grad`.
    pub struct CrossEntropyGrad {
        /// How many rows.
        pub rows: usize,
        /// Logits per row.
        pub classes: usize,
        /// The label of rows that do not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
        /// Whether dlogits is added to what its slice holds.
        pub accumulate: bool,
        /// The class of the first column.
        pub first: usize,
    }
}

params! {
    /// Settings of `count_labels`.
    pub struct CountLabels {
        /// How many labels.
        pub n: usize,
        /// The label that does not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
    }
}

/// Losses and log-sum-exps of all rows: outputs nll, lse.
pub fn cross_entropy_reference(
    [nll, lse]: [&mut [f32]; 2],
    logits: &[f32],
    labels: Ids<'_>,
    params: CrossEntropy,
) {
    for (row, x) in logits.chunks_exact(params.classes).take(params.rows).enumerate() {
        let m = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let block = params.classes / params.leaves;
        let leaf = |leaf: usize| x[leaf * block..][..block].iter().map(|x| (x - m).exp()).sum::<f32>();
        lse[row] = m + tree_reference(params.leaves, &leaf).ln();
        let ignored = labels.get(row) == params.ignore_index;
        nll[row] = if ignored { 0.0 } else { lse[row] - x[labels.row(row, params.classes)] };
    }
}

/// Losses and log-sum-exps of all rows, fast; arguments as for [`cross_entropy_reference`].
pub fn cross_entropy(
    [nll, lse]: [&mut [f32]; 2],
    logits: &[f32],
    labels: Ids<'_>,
    params: CrossEntropy,
    launch: &mut Launch<'_>,
) {
    let CrossEntropy { rows, classes, .. } = params;
    launch.split_rows(rows, [(nll, 1), (lse, 1)], |range, [nll, lse], _| {
        for (i, row) in range.enumerate() {
            (nll[i], lse[i]) = loss(&logits[row * classes..][..classes], labels, row, params);
        }
    });
}

/// The loss and the log-sum-exp of row `row`, whose logits are `x`.
fn loss(x: &[f32], labels: Ids<'_>, row: usize, params: CrossEntropy) -> (f32, f32) {
    let lse = log_sum_exp(x, params.leaves);
    let ignored = labels.get(row) == params.ignore_index;
    (if ignored { 0.0 } else { lse - x[labels.row(row, params.classes)] }, lse)
}

dispatch! {
    /// The logarithm of the sum of the exponentials of `x`.
    fn log_sum_exp(x: &[f32], leaves: usize) -> f32 {
        let m = largest(x);
        m + log(exp_sum(x, m, leaves))
    }
}

/// The largest element of `x`, never -0: which zero comes first depends on how a row is cut.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    max(x) + 0.0
}

/// The tree over `leaves` blocks of the sums of exp(x - m).
#[inline(always)]
fn exp_sum(x: &[f32], m: f32, leaves: usize) -> f32 {
    let (block, mut tree) = (x.len() / leaves, Tree::new());
    for leaf in 0..leaves {
        tree.push(sum([&x[leaf * block..][..block]], |[x]| exp(x - m)));
    }
    tree.sum()
}

/// The gradient by the logits.
pub fn cross_entropy_grad_reference(
    dlogits: &mut [f32],
    [logits, lse, dloss]: [&[f32]; 3],
    labels: Ids<'_>,
    params: CrossEntropyGrad,
) {
    let n = params.classes;
    for row in 0..params.rows {
        let ignored = labels.get(row) == params.ignore_index;
        for class in 0..n {
            let hot = labels.place(row, params.first, n) == Some(class);
            let p = (logits[row * n + class] - lse[row]).exp();
            let value = if ignored { 0.0 } else { (p - f32::from(u8::from(hot))) * dloss[0] };
            let out = &mut dlogits[row * n + class];
            *out = if params.accumulate { *out + value } else { value };
        }
    }
}

/// The gradient by the logits, fast; arguments as for [`cross_entropy_grad_reference`].
pub fn cross_entropy_grad(
    dlogits: &mut [f32],
    [logits, lse, dloss]: [&[f32]; 3],
    labels: Ids<'_>,
    params: CrossEntropyGrad,
    launch: &mut Launch<'_>,
) {
    let CrossEntropyGrad { rows, classes, .. } = params;
    launch.split_rows(rows, [(dlogits, classes)], |range, [dlogits], _| {
        for (row, out) in range.zip(dlogits.chunks_exact_mut(classes)) {
            gradient(out, &logits[row * classes..][..classes], [lse[row], dloss[0]], labels, row, params);
        }
    });
}

/// The gradient of row `row`, whose logits are `x`, into `out`.
fn gradient(
    out: &mut [f32],
    x: &[f32],
    [lse, dloss]: [f32; 2],
    labels: Ids<'_>,
    row: usize,
    params: CrossEntropyGrad,
) {
    let CrossEntropyGrad { classes, ignore_index, accumulate, first, .. } = params;
    if labels.get(row) != ignore_index {
        grad_row(out, x, lse, dloss, labels.place(row, first, classes), accumulate);
    } else if !accumulate {
        out.fill(0.0);
    }
}

dispatch! {
    /// The gradient of one row; `hot` is the column of its label, if there.
    fn grad_row(out: &mut [f32], x: &[f32], lse: f32, dloss: f32, hot: Option<usize>, accumulate: bool) {
        let before = hot.filter(|_| accumulate).map_or(0.0, |hot| out[hot]);
        if accumulate {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += exp(x - lse) * dloss);
        } else {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = exp(x - lse) * dloss);
        }
        if let Some(hot) = hot {
            out[hot] = before + (exp(x[hot] - lse) - 1.0) * dloss;
        }
    }
}

/// Counts the labels that are not `ignore_index` into `out[0]`.
pub fn count_labels(out: &mut [f32], labels: Ids<'_>, params: CountLabels) {
    out[0] = (0..params.n).filter(|&i| labels.get(i) != params.ignore_index).count() as f32;
}

fn count_call(call: &mut Call<'_>) {
    let params = CountLabels::from_words(call.params);
    count_labels(call.write(0), Ids::read(call, 0, params.labels_i32), params);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: None,
        work: None,
        name: "cross_entropy",
        arguments: |_| names!(logits, labels => nll, lse),
        fast: |call| {
            let params = CrossEntropy::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            cross_entropy([call.write(0), call.write(1)], call.read(0), labels, params, &mut call.launch);
        },
        reference: |call| {
            let params = CrossEntropy::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            cross_entropy_reference([call.write(0), call.write(1)], call.read(0), labels, params);
        },
        blocks: |params, cores| {
            let CrossEntropy { rows, classes, .. } = CrossEntropy::from_words(params);
            by_work(rows * classes, cores)
        },
        workspace: no_workspace,
    },
    Kernel {
        task: None,
        work: None,
        name: "cross_entropy_grad",
        arguments: |_| names!(logits, labels, lse, dloss => dlogits),
        fast: |call| {
            let params = CrossEntropyGrad::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            let ins = [call.read(0), call.read(2), call.read(3)];
            cross_entropy_grad(call.write(0), ins, labels, params, &mut call.launch);
        },
        reference: |call| {
            let params = CrossEntropyGrad::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            let ins = [call.read(0), call.read(2), call.read(3)];
            cross_entropy_grad_reference(call.write(0), ins, labels, params);
        },
        blocks: |params, cores| {
            let CrossEntropyGrad { rows, classes, .. } = CrossEntropyGrad::from_words(params);
            by_work(rows * classes, cores)
        },
        workspace: no_workspace,
    },
    Kernel {
        task: None,
        work: None,
        name: "count_labels",
        arguments: |_| names!(labels => count),
        fast: count_call,
        reference: count_call,
        blocks: one_block,
        workspace: no_workspace,
    },
];

#[cfg(test)]
mod tests;
