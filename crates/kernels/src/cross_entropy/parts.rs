//! Cross entropy in parts, for logits that devices share along the classes.
//!
//! Each device computes from its tile of classes `class_max` (logits `[rows, classes]` -> the largest of each row),
//! `class_sum` (logits, the largest of whole rows `[rows]` -> the sum of exp(logit - largest)) and `class_pick` (logits,
//! labels -> the label's logit, or -0, which added changes no bit, where the tile does not have the class).
//! `class_join` (largest, sum, pick of whole rows, labels) writes nll and lse. With the largest of the largest, the tree of
//! the sums and the sum of the picks these are the bits of `cross_entropy`.

use phalanx_ir::tasks::TaskView;

use super::{exp_sum, first_class, largest};
use crate::ids::Ids;
use crate::math::log;
use crate::rows::tree_reference;
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// Settings of `class_max`.
    pub struct ClassMax {
        /// How many rows.
        pub rows: usize,
        /// Logits per row of the tile.
        pub classes: usize,
    }
}

params! {
    /// Settings of `class_sum`.
    pub struct ClassSum {
        /// How many rows.
        pub rows: usize,
        /// Logits per row of the tile.
        pub classes: usize,
        /// Blocks of the tile's classes whose sums are added as a tree: a power of two that divides them.
        pub leaves: usize,
    }
}

params! {
    /// Settings of `class_pick`.
    pub struct ClassPick {
        /// How many rows.
        pub rows: usize,
        /// Logits per row of the tile.
        pub classes: usize,
        /// The class of the tile's first column.
        pub first: usize,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
    }
}

params! {
    /// Settings of `class_join`.
    pub struct ClassJoin {
        /// How many rows.
        pub rows: usize,
        /// The label of rows that do not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
    }
}

/// The largest logit of every row.
pub fn class_max_reference(out: &mut [f32], logits: &[f32], params: ClassMax) {
    for (out, x) in out.iter_mut().zip(logits.chunks_exact(params.classes)).take(params.rows) {
        *out = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
}

/// The largest logit of every row, fast.
pub fn class_max(out: &mut [f32], logits: &[f32], params: ClassMax, launch: &mut Launch<'_>) {
    let ClassMax { rows, classes } = params;
    launch.split_rows(rows, [(out, 1)], |range, [out], _| {
        max_rows(out, &logits[range.start * classes..range.end * classes], classes);
    });
}

dispatch! {
    fn max_rows(out: &mut [f32], logits: &[f32], classes: usize) {
        out.iter_mut().zip(logits.chunks_exact(classes)).for_each(|(out, x)| *out = largest(x));
    }
}

/// The sum of the exponentials of every row of logits, less its element of `max`.
pub fn class_sum_reference(out: &mut [f32], [logits, max]: [&[f32]; 2], params: ClassSum) {
    let ClassSum { rows, classes, leaves } = params;
    let block = classes / leaves;
    for row in 0..rows {
        let x = &logits[row * classes..][..classes];
        let leaf = |leaf: usize| x[leaf * block..][..block].iter().map(|x| (x - max[row]).exp()).sum::<f32>();
        out[row] = tree_reference(leaves, &leaf);
    }
}

/// The sum of the exponentials of every row, fast; arguments as for [`class_sum_reference`].
pub fn class_sum(out: &mut [f32], [logits, max]: [&[f32]; 2], params: ClassSum, launch: &mut Launch<'_>) {
    let ClassSum { rows, classes, .. } = params;
    launch.split_rows(rows, [(out, 1)], |range, [out], _| {
        let logits = &logits[range.start * classes..range.end * classes];
        sum_rows(out, logits, &max[range], params);
    });
}

dispatch! {
    fn sum_rows(out: &mut [f32], logits: &[f32], max: &[f32], params: ClassSum) {
        for ((out, x), max) in out.iter_mut().zip(logits.chunks_exact(params.classes)).zip(max) {
            *out = exp_sum(x, *max, params.leaves);
        }
    }
}

/// The label's logit of every row, or -0 where the tile does not have its class.
pub fn class_pick(out: &mut [f32], logits: &[f32], labels: Ids<'_>, params: ClassPick) {
    let ClassPick { rows, classes, first, .. } = params;
    for (row, out) in out.iter_mut().enumerate().take(rows) {
        *out = labels.place(row, first, classes).map_or(-0.0, |class| logits[row * classes + class]);
    }
}

/// Losses and log-sum-exps of all rows from what whole rows have: outputs nll, lse; inputs max, sum, pick.
pub fn class_join(
    [nll, lse]: [&mut [f32]; 2],
    [max, sum, pick]: [&[f32]; 3],
    labels: Ids<'_>,
    params: ClassJoin,
) {
    for row in 0..params.rows {
        lse[row] = max[row] + log(sum[row]);
        let ignored = labels.get(row) == params.ignore_index;
        nll[row] = if ignored { 0.0 } else { lse[row] - pick[row] };
    }
}

impl Kernel for ClassMax {
    signature!("class_max": logits => largest by class_max_reference, class_max);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(ClassMax { rows: task.read(0)?.rows(), classes: task.read(0)?.last() })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.classes, cores)
    }
}

impl Kernel for ClassSum {
    signature!("class_sum": logits, largest => sum);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, classes) = (task.read(0)?.rows(), task.read(0)?.last());
        Ok(ClassSum { rows, classes, leaves: task.attr("leaves")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        class_sum_reference(call.write(0), [call.read(0), call.read(1)], *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        class_sum(call.write(0), [call.read(0), call.read(1)], *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(3.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.rows * self.classes, cores)
    }
}

impl Kernel for ClassPick {
    signature!("class_pick": logits, labels => picked);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, classes) = (task.read(0)?.rows(), task.read(0)?.last());
        Ok(ClassPick { rows, classes, first: first_class(task)?, labels_i32: task.is_i32(1)? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.labels_i32);
        class_pick(call.write(0), call.read(0), labels, *self);
    }

    /// Of the logits one a row.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let Work { flops, bytes } = sizes.work(0.0, false);
        Work { flops, bytes: bytes - 4.0 * sizes.operand(0) + sizes.written() }
    }

    fn anywhere(self) -> Self {
        ClassPick { first: 0, ..self }
    }

    fn ids(&self) -> usize {
        self.classes
    }
}

impl Kernel for ClassJoin {
    signature!("class_join": largest, sum, picked, labels => nll, lse);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, ignore_index) = (task.write(0)?.elements(), task.attr("ignore")?);
        Ok(ClassJoin { rows, ignore_index, labels_i32: task.is_i32(3)? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 3, self.labels_i32);
        let ins = [0, 1, 2].map(|index| call.read(index));
        class_join([call.write(0), call.write(1)], ins, labels, *self);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(3.0 * sizes.result(0), false)
    }
}
