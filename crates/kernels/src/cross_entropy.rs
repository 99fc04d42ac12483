//! Cross entropy of rows of logits against integer labels, its gradient, and the count of labels that take part.
//!
//! `cross_entropy` reads logits `[rows, classes]` and labels `[rows]` and writes per row the negative log-likelihood
//! (zero where the label is `ignore_index`) and the log-sum-exp, whose sum is a tree over `leaves` equal blocks of the
//! classes. `cross_entropy_grad` reads logits (or a tile of them, whose first column is class `first`), labels, lse and
//! dloss `[1]` and writes dlogits = (probabilities - onehot) * dloss (zero rows where ignored; accumulates on request).
//! `count_labels` reads labels and writes how many are not `ignore_index`; `label_weights` reads labels and weights
//! `[classes]` and writes per label its weight, 0 where it is `ignore_index`. Smoothing and weights: `smooth.rs`.

use phalanx_ir::tasks::TaskView;

use crate::ids::Ids;
use crate::math::{exp, log};
use crate::rows::{Tree, max, sum, tree_reference};
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

pub mod linear;
pub mod parts;
pub mod smooth;

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

params! {
    /// Settings of `label_weights`.
    pub struct LabelWeights {
        /// How many labels.
        pub n: usize,
        /// How many weights.
        pub classes: usize,
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

/// The weight of every label; 0 for `ignore_index`.
pub fn label_weights(out: &mut [f32], labels: Ids<'_>, weights: &[f32], params: LabelWeights) {
    for (i, out) in out.iter_mut().enumerate().take(params.n) {
        let ignored = labels.get(i) == params.ignore_index;
        *out = if ignored { 0.0 } else { weights[labels.row(i, params.classes)] };
    }
}

impl Kernel for CrossEntropy {
    signature!("cross_entropy": logits, labels => nll, lse);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, classes) = (task.read(0)?.rows(), task.read(0)?.last());
        let (ignore_index, labels_i32) = (task.attr("ignore")?, task.is_i32(1)?);
        Ok(CrossEntropy { rows, classes, ignore_index, labels_i32, leaves: task.attr("leaves")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.labels_i32);
        cross_entropy_reference([call.write(0), call.write(1)], call.read(0), labels, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.labels_i32);
        cross_entropy([call.write(0), call.write(1)], call.read(0), labels, *self, &mut call.launch);
    }

    /// Maximum, difference, exponential, sum.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(4.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.classes, cores)
    }

    fn ids(&self) -> usize {
        self.classes
    }
}

impl Kernel for CrossEntropyGrad {
    signature!("cross_entropy_grad": logits, labels, lse, dloss => dlogits);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(CrossEntropyGrad {
            rows: task.read(0)?.rows(),
            classes: task.read(0)?.last(),
            ignore_index: task.attr("ignore")?,
            labels_i32: task.is_i32(1)?,
            accumulate: task.is("accumulate"),
            first: first_class(task)?,
        })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.labels_i32);
        let ins = [0, 2, 3].map(|index| call.read(index));
        cross_entropy_grad_reference(call.write(0), ins, labels, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.labels_i32);
        let ins = [0, 2, 3].map(|index| call.read(index));
        cross_entropy_grad(call.write(0), ins, labels, *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(3.0 * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.classes, cores)
    }

    fn anywhere(self) -> Self {
        CrossEntropyGrad { first: 0, ..self }
    }

    fn ids(&self) -> usize {
        self.classes
    }
}

/// The class of the first column of the tile of logits that a task reads first.
fn first_class(task: &TaskView<'_>) -> Result<usize, String> {
    let logits = task.source(0)?;
    Ok(logits.origin(logits.ty.shape.rank() - 1))
}

impl Kernel for CountLabels {
    signature!("count_labels": labels => count);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (n, ignore_index) = (task.read(0)?.elements(), task.attr("ignore")?);
        Ok(CountLabels { n, ignore_index, labels_i32: task.is_i32(0)? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        count_labels(call.write(0), Ids::read(call, 0, self.labels_i32), *self);
    }
}

impl Kernel for LabelWeights {
    signature!("label_weights": labels, weights => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (n, classes) = (task.read(0)?.elements(), task.read(1)?.elements());
        let (ignore_index, labels_i32) = (task.attr("ignore")?, task.is_i32(0)?);
        Ok(LabelWeights { n, classes, ignore_index, labels_i32 })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 0, self.labels_i32);
        label_weights(call.write(0), labels, call.read(1), *self);
    }

    fn ids(&self) -> usize {
        self.classes
    }
}

#[cfg(test)]
mod tests;
