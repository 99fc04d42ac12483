//! Cross entropy with label smoothing and weights of classes.
//!
//! With ε the smoothing, C the number of classes, w the weights (1 where there are none) and y the label of a row, its loss
//! is `(1 - ε) w_y (lse - x_y) + ε/C Σ w_c (lse - x_c)`, or 0 where y is `ignore_index`. `smooth_cross_entropy` reads logits
//! `[rows, classes]`, labels `[rows]` and weights `[classes]` and writes the losses, the log-sum-exps and what the gradient
//! needs of each row: scale, the factor on its probabilities, and hot, the one on its label. `smooth_cross_entropy_grad`
//! reads logits, labels, lse, scale, hot, weights and dloss `[1]`, the first and the weights maybe as tiles of classes, and
//! writes dlogits (accumulates on request).
//!
//! Where devices share the classes, `class_smooth` computes from a tile and the largest logits of whole rows the label's
//! logit and weight (-0, which added changes no bit, where the tile does not have the class), `Σ w_c (x_c - largest)` and
//! `Σ w_c`; `smooth_join` makes of the sums of these what `smooth_cross_entropy` writes, with its bits. Sums over classes are
//! trees over `leaves` blocks.

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Names, names};

use super::{exp_sum, first_class, largest};
use crate::ids::Ids;
use crate::math::{exp, log};
use crate::rows::{Tree, sum};
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params};

params! {
    /// What all of these kernels know.
    pub struct Smooth {
        /// How many rows.
        pub rows: usize,
        /// Logits per row, in the tile.
        pub classes: usize,
        /// The label of rows that do not count.
        pub ignore_index: i64,
        /// Whether labels are 32-bit.
        pub labels_i32: bool,
        /// Whether there are weights.
        pub weighted: bool,
        /// Blocks of the tile's classes whose sums are added as a tree.
        pub leaves: usize,
        /// The class of the tile's first column.
        pub first: usize,
        /// 1 - ε.
        pub sharp: f32,
        /// ε / C.
        pub even: f32,
    }
}

params! {
    /// Settings of `smooth_cross_entropy`.
    pub struct SmoothCrossEntropy {
        /// Those of all.
        pub smooth: Smooth,
    }
}

params! {
    /// Settings of `smooth_cross_entropy_grad`.
    pub struct SmoothCrossEntropyGrad {
        /// Those of all.
        pub smooth: Smooth,
        /// Whether dlogits is added to what its slice holds.
        pub accumulate: bool,
    }
}

params! {
    /// Settings of `class_smooth`.
    pub struct ClassSmooth {
        /// Those of all.
        pub smooth: Smooth,
    }
}

params! {
    /// Settings of `smooth_join`.
    pub struct SmoothJoin {
        /// Those of all.
        pub smooth: Smooth,
    }
}

/// What the classes of a row, or of a tile of it, sum up to.
#[derive(Clone, Copy)]
struct Sums {
    picked: f32,
    weight: f32,
    dot: f32,
    total: f32,
}

impl Smooth {
    fn of(task: &TaskView<'_>, labels: usize, weighted: bool) -> Result<Self, String> {
        let (logits, smoothing) = (task.read(0)?, task.attr::<f32>("smoothing")?);
        let whole: usize = task.attr("classes")?;
        Ok(Smooth {
            rows: logits.rows(),
            classes: logits.last(),
            ignore_index: task.attr("ignore")?,
            labels_i32: task.is_i32(labels)?,
            weighted,
            leaves: task.attr_or("leaves", 1)?,
            first: first_class(task)?,
            sharp: 1.0 - smoothing,
            even: smoothing / whole as f32,
        })
    }

    /// The sums of a row, or tile of it, of logits `x`.
    fn sums(self, x: &[f32], weights: &[f32], m: f32, labels: Ids<'_>, row: usize) -> Sums {
        let place = labels.place(row, self.first, self.classes);
        let picked = place.map_or(-0.0, |class| x[class]);
        let weight = |class: usize| if self.weighted { weights[class] } else { 1.0 };
        let (dot, total) = weigh(x, weights, m, self.leaves, self.weighted);
        Sums { picked, weight: place.map_or(-0.0, weight), dot, total }
    }

    /// Loss, log-sum-exp, scale and hot of a row.
    fn join(self, ignored: bool, [m, sum]: [f32; 2], sums: Sums) -> [f32; 4] {
        let log_sum = log(sum);
        let (lse, hot) = (m + log_sum, self.sharp * sums.weight);
        if ignored {
            return [0.0, lse, 0.0, 0.0];
        }
        let smooth = self.even * (sums.total * log_sum - sums.dot);
        [hot * (lse - sums.picked) + smooth, lse, hot + self.even * sums.total, hot]
    }

    fn ignores(self, labels: Ids<'_>, row: usize) -> bool {
        labels.get(row) == self.ignore_index
    }
}

dispatch! {
    /// The sums of w (x - m) and of w; trees over `leaves` blocks.
    fn weigh(x: &[f32], weights: &[f32], m: f32, leaves: usize, weighted: bool) -> (f32, f32) {
        let (block, mut dots, mut totals) = (x.len() / leaves, Tree::new(), Tree::new());
        for leaf in 0..leaves {
            let range = leaf * block..(leaf + 1) * block;
            if weighted {
                let (x, w) = (&x[range.clone()], &weights[range]);
                dots.push(sum([x, w], |[x, w]| w * (x - m)));
                totals.push(sum([w], |[w]| w));
            } else {
                dots.push(sum([&x[range]], |[x]| x - m));
                totals.push(block as f32);
            }
        }
        (dots.sum(), totals.sum())
    }
}

dispatch! {
    /// The largest logit of a row, and the sum of the exponentials of all relative to it.
    fn exponentials(x: &[f32], leaves: usize) -> [f32; 2] {
        let m = largest(x);
        [m, exp_sum(x, m, leaves)]
    }
}

/// Losses, log-sum-exps, scales and hots of all rows.
pub fn smooth_cross_entropy(
    outs: [&mut [f32]; 4],
    [logits, weights]: [&[f32]; 2],
    labels: Ids<'_>,
    params: Smooth,
    launch: &mut Launch<'_>,
) {
    let classes = params.classes;
    launch.split_rows(params.rows, outs.map(|out| (out, 1)), |range, outs, _| {
        for (i, row) in range.enumerate() {
            let x = &logits[row * classes..][..classes];
            let exponentials = exponentials(x, params.leaves);
            let sums = params.sums(x, weights, exponentials[0], labels, row);
            let values = params.join(params.ignores(labels, row), exponentials, sums);
            for (slot, value) in values.into_iter().enumerate() {
                outs[slot][i] = value;
            }
        }
    });
}

/// The meaning: the formula of the head in plain loops.
pub fn smooth_cross_entropy_reference(
    [nll, lse, scale, hot]: [&mut [f32]; 4],
    [logits, weights]: [&[f32]; 2],
    labels: Ids<'_>,
    params: Smooth,
) {
    let n = params.classes;
    let weight = |class: usize| if params.weighted { f64::from(weights[class]) } else { 1.0 };
    let (sharp, even) = (f64::from(params.sharp), f64::from(params.even));
    for row in 0..params.rows {
        let x: Vec<f64> = logits[row * n..][..n].iter().map(|&x| x.into()).collect();
        let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum_exp = m + x.iter().map(|x| (x - m).exp()).sum::<f64>().ln();
        lse[row] = log_sum_exp as f32;
        if params.ignores(labels, row) {
            (nll[row], scale[row], hot[row]) = (0.0, 0.0, 0.0);
            continue;
        }
        let label = labels.row(row, n);
        let smooth: f64 = (0..n).map(|class| weight(class) * (log_sum_exp - x[class])).sum();
        let total: f64 = (0..n).map(weight).sum();
        nll[row] = (sharp * weight(label) * (log_sum_exp - x[label]) + even * smooth) as f32;
        scale[row] = (sharp * weight(label) + even * total) as f32;
        hot[row] = (sharp * weight(label)) as f32;
    }
}

/// What the gradient reads: logits, lse, scale, hot, weights, dloss.
type GradReads<'a> = [&'a [f32]; 6];

/// The gradient by the logits, element by element.
pub fn smooth_cross_entropy_grad_reference(
    dlogits: &mut [f32],
    [logits, lse, scale, hot, weights, dloss]: GradReads<'_>,
    labels: Ids<'_>,
    params: SmoothCrossEntropyGrad,
) {
    let SmoothCrossEntropyGrad { smooth, accumulate } = params;
    let n = smooth.classes;
    for row in 0..smooth.rows {
        let place = labels.place(row, smooth.first, n);
        for class in 0..n {
            let p = (logits[row * n + class] - lse[row]).exp();
            let weight = if smooth.weighted { weights[class] } else { 1.0 };
            let own = if place == Some(class) { hot[row] } else { 0.0 };
            let value = (scale[row] * p - smooth.even * weight - own) * dloss[0];
            let value = if smooth.ignores(labels, row) { 0.0 } else { value };
            let out = &mut dlogits[row * n + class];
            *out = if accumulate { *out + value } else { value };
        }
    }
}

/// The gradient by the logits, fast.
pub fn smooth_cross_entropy_grad(
    dlogits: &mut [f32],
    [logits, lse, scale, hot, weights, dloss]: GradReads<'_>,
    labels: Ids<'_>,
    params: SmoothCrossEntropyGrad,
    launch: &mut Launch<'_>,
) {
    let SmoothCrossEntropyGrad { smooth, accumulate } = params;
    let n = smooth.classes;
    launch.split_rows(smooth.rows, [(dlogits, n)], |range, [dlogits], _| {
        for (row, out) in range.zip(dlogits.chunks_exact_mut(n)) {
            if smooth.ignores(labels, row) {
                if !accumulate {
                    out.fill(0.0);
                }
                continue;
            }
            let place = labels.place(row, smooth.first, n);
            let own = place.map(|class| (class, hot[row] * dloss[0]));
            let factors = [lse[row], scale[row] * dloss[0], smooth.even * dloss[0]];
            let weights = smooth.weighted.then_some(weights);
            grad_row(out, &logits[row * n..][..n], weights, factors, (own, accumulate));
        }
    });
}

dispatch! {
    /// The gradient of one row; `own` is the column of its label, if there, and what is subtracted from it.
    fn grad_row(
        out: &mut [f32],
        x: &[f32],
        weights: Option<&[f32]>,
        factors: [f32; 3],
        label: (Option<(usize, f32)>, bool),
    ) {
        let ([lse, scale, even], (own, accumulate)) = (factors, label);
        let before = own.filter(|_| accumulate).map_or(0.0, |(class, _)| out[class]);
        let value = |x: f32, w: f32| exp(x - lse) * scale - even * w;
        match weights {
            None if accumulate => out.iter_mut().zip(x).for_each(|(out, x)| *out += value(*x, 1.0)),
            None => out.iter_mut().zip(x).for_each(|(out, x)| *out = value(*x, 1.0)),
            Some(w) if accumulate => {
                out.iter_mut().zip(x).zip(w).for_each(|((out, x), w)| *out += value(*x, *w));
            }
            Some(w) => out.iter_mut().zip(x).zip(w).for_each(|((out, x), w)| *out = value(*x, *w)),
        }
        if let Some((class, hot)) = own {
            out[class] = before + (value(x[class], weights.map_or(1.0, |w| w[class])) - hot);
        }
    }
}

/// The sums of a tile of classes: outputs picked, weight, dot, total; inputs logits, the largest of whole rows, weights.
pub fn class_smooth(
    outs: [&mut [f32]; 4],
    [logits, largest, weights]: [&[f32]; 3],
    labels: Ids<'_>,
    params: Smooth,
    launch: &mut Launch<'_>,
) {
    let n = params.classes;
    launch.split_rows(params.rows, outs.map(|out| (out, 1)), |range, [picked, weight, dot, total], _| {
        for (i, row) in range.enumerate() {
            let sums = params.sums(&logits[row * n..][..n], weights, largest[row], labels, row);
            (picked[i], weight[i], dot[i], total[i]) = (sums.picked, sums.weight, sums.dot, sums.total);
        }
    });
}

/// What `smooth_cross_entropy` writes, from largest, sum, picked, weight, dot and total of whole rows.
pub fn smooth_join(
    [nll, lse, scale, hot]: [&mut [f32]; 4],
    [largest, sum, picked, weight, dot, total]: [&[f32]; 6],
    labels: Ids<'_>,
    params: Smooth,
) {
    for row in 0..params.rows {
        let sums = Sums { picked: picked[row], weight: weight[row], dot: dot[row], total: total[row] };
        let ignored = params.ignores(labels, row);
        [nll[row], lse[row], scale[row], hot[row]] = params.join(ignored, [largest[row], sum[row]], sums);
    }
}

/// The weights in `slot`, if there are any.
fn weights_of<'a>(call: &Call<'a>, params: Smooth, slot: usize) -> &'a [f32] {
    if params.weighted { call.read(slot) } else { &[] }
}

impl Kernel for SmoothCrossEntropy {
    const NAME: &'static str = "smooth_cross_entropy";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(SmoothCrossEntropy { smooth: Smooth::of(task, 1, task.sources().count() == 3)? })
    }

    fn arguments(&self) -> Names {
        names!(logits, labels, weights if self.smooth.weighted => nll, lse, scale, hot)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.smooth.labels_i32);
        let ins = [call.read(0), weights_of(call, self.smooth, 2)];
        smooth_cross_entropy_reference([0, 1, 2, 3].map(|i| call.write(i)), ins, labels, self.smooth);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.smooth.labels_i32);
        let ins = [call.read(0), weights_of(call, self.smooth, 2)];
        let outs = [0, 1, 2, 3].map(|i| call.write(i));
        smooth_cross_entropy(outs, ins, labels, self.smooth, &mut call.launch);
    }

    /// Maximum, difference, exponential, sum; difference, product and sums of the smooth part.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(8.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.smooth.rows * self.smooth.classes, cores)
    }

    fn ids(&self) -> usize {
        self.smooth.classes
    }
}

impl Kernel for SmoothCrossEntropyGrad {
    const NAME: &'static str = "smooth_cross_entropy_grad";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let smooth = Smooth::of(task, 1, task.sources().count() == 7)?;
        Ok(SmoothCrossEntropyGrad { smooth, accumulate: task.is("accumulate") })
    }

    fn arguments(&self) -> Names {
        names!(logits, labels, lse, scale, hot, dloss, weights if self.smooth.weighted => dlogits)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.smooth.labels_i32);
        let [logits, lse, scale, hot, dloss] = [0, 2, 3, 4, 5].map(|i| call.read(i));
        let ins = [logits, lse, scale, hot, weights_of(call, self.smooth, 6), dloss];
        smooth_cross_entropy_grad_reference(call.write(0), ins, labels, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 1, self.smooth.labels_i32);
        let [logits, lse, scale, hot, dloss] = [0, 2, 3, 4, 5].map(|i| call.read(i));
        let ins = [logits, lse, scale, hot, weights_of(call, self.smooth, 6), dloss];
        smooth_cross_entropy_grad(call.write(0), ins, labels, *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(5.0 * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.smooth.rows * self.smooth.classes, cores)
    }

    fn anywhere(self) -> Self {
        SmoothCrossEntropyGrad { smooth: Smooth { first: 0, ..self.smooth }, ..self }
    }

    fn ids(&self) -> usize {
        self.smooth.classes
    }
}

impl Kernel for ClassSmooth {
    const NAME: &'static str = "class_smooth";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(ClassSmooth { smooth: Smooth::of(task, 2, task.sources().count() == 4)? })
    }

    fn arguments(&self) -> Names {
        names!(logits, largest, labels, weights if self.smooth.weighted => picked, weight, dot, total)
    }

    fn reference(&self, call: &mut Call<'_>) {
        self.fast(call);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 2, self.smooth.labels_i32);
        let ins = [call.read(0), call.read(1), weights_of(call, self.smooth, 3)];
        let outs = [0, 1, 2, 3].map(|i| call.write(i));
        class_smooth(outs, ins, labels, self.smooth, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(4.0 * sizes.operand(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.smooth.rows * self.smooth.classes, cores)
    }

    fn anywhere(self) -> Self {
        ClassSmooth { smooth: Smooth { first: 0, ..self.smooth } }
    }

    fn ids(&self) -> usize {
        self.smooth.classes
    }
}

impl Kernel for SmoothJoin {
    const NAME: &'static str = "smooth_join";

    /// It has whole rows of one number each: there are no tiles of classes.
    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (rows, smoothing) = (task.write(0)?.elements(), task.attr::<f32>("smoothing")?);
        let classes: usize = task.attr("classes")?;
        let smooth = Smooth {
            rows,
            classes,
            ignore_index: task.attr("ignore")?,
            labels_i32: task.is_i32(6)?,
            weighted: false,
            leaves: 1,
            first: 0,
            sharp: 1.0 - smoothing,
            even: smoothing / classes as f32,
        };
        Ok(SmoothJoin { smooth })
    }

    fn arguments(&self) -> Names {
        names!(largest, sum, picked, weight, dot, total, labels => nll, lse, scale, hot)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let labels = Ids::read(call, 6, self.smooth.labels_i32);
        let ins = [0, 1, 2, 3, 4, 5].map(|i| call.read(i));
        smooth_join([0, 1, 2, 3].map(|i| call.write(i)), ins, labels, self.smooth);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(9.0 * sizes.result(0), false)
    }
}

#[cfg(test)]
mod tests;
