//! Cross entropy of rows of logits against integer labels, its gradient, and the count of labels that take part.
//!
//! `cross_entropy` reads logits `[rows, classes]` and labels `[rows]` and writes per row the negative log-likelihood
//! (zero where the label is `ignore_index`) and the log-sum-exp. `cross_entropy_grad` reads logits, labels, lse and
//! dloss `[1]` and writes dlogits = (softmax - onehot) * dloss (zero rows where ignored; accumulates on request).
//! `count_labels` reads labels and writes how many are not `ignore_index`.

use crate::call::no_scratch;
use crate::ids::Ids;
use crate::math::{exp, log};
use crate::rows::{max, sum};
use crate::{Call, Kernel, Team, dispatch, params};

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
        lse[row] = m + x.iter().map(|x| (x - m).exp()).sum::<f32>().ln();
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
    team: &Team,
) {
    let CrossEntropy { rows, classes, ignore_index, .. } = params;
    team.split_rows(rows * classes, rows, [(nll, 1), (lse, 1)], &mut [], |range, [nll, lse], _| {
        for (i, row) in range.enumerate() {
            let x = &logits[row * classes..][..classes];
            lse[i] = log_sum_exp(x);
            let ignored = labels.get(row) == ignore_index;
            nll[i] = if ignored { 0.0 } else { lse[i] - x[labels.row(row, classes)] };
        }
    });
}

dispatch! {
    /// The logarithm of the sum of the exponentials of `x`.
    fn log_sum_exp(x: &[f32]) -> f32 {
        let m = max(x);
        m + log(sum([x], |[x]| exp(x - m)))
    }
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
            let hot = labels.get(row) == class as i64;
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
    team: &Team,
) {
    let CrossEntropyGrad { rows, classes, ignore_index, accumulate, .. } = params;
    team.split_rows(rows * classes, rows, [(dlogits, classes)], &mut [], |range, [dlogits], _| {
        for (row, out) in range.zip(dlogits.chunks_exact_mut(classes)) {
            if labels.get(row) != ignore_index {
                let label = labels.row(row, classes);
                grad_row(out, &logits[row * classes..][..classes], lse[row], dloss[0], label, accumulate);
            } else if !accumulate {
                out.fill(0.0);
            }
        }
    });
}

dispatch! {
    fn grad_row(out: &mut [f32], x: &[f32], lse: f32, dloss: f32, label: usize, accumulate: bool) {
        let before = if accumulate { out[label] } else { 0.0 };
        if accumulate {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += exp(x - lse) * dloss);
        } else {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = exp(x - lse) * dloss);
        }
        out[label] = before + (exp(x[label] - lse) - 1.0) * dloss;
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
        name: "cross_entropy",
        fast: |call| {
            let params = CrossEntropy::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            cross_entropy([call.write(0), call.write(1)], call.read(0), labels, params, call.team);
        },
        reference: |call| {
            let params = CrossEntropy::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            cross_entropy_reference([call.write(0), call.write(1)], call.read(0), labels, params);
        },
        scratch: no_scratch,
    },
    Kernel {
        name: "cross_entropy_grad",
        fast: |call| {
            let params = CrossEntropyGrad::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            let ins = [call.read(0), call.read(2), call.read(3)];
            cross_entropy_grad(call.write(0), ins, labels, params, call.team);
        },
        reference: |call| {
            let params = CrossEntropyGrad::from_words(call.params);
            let labels = Ids::read(call, 1, params.labels_i32);
            let ins = [call.read(0), call.read(2), call.read(3)];
            cross_entropy_grad_reference(call.write(0), ins, labels, params);
        },
        scratch: no_scratch,
    },
    Kernel { name: "count_labels", fast: count_call, reference: count_call, scratch: no_scratch },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, Input, assert_gradient, indices, values};

    /// Sums of up to a few thousand exponentials, each within two units in the last place.
    const TOLERANCE: f32 = 1e-5;
    const IGNORED: i64 = -100;

    fn labels(rows: usize, classes: usize) -> Vec<i64> {
        let mut labels = indices(rows, classes, 2);
        labels.iter_mut().skip(1).step_by(3).for_each(|label| *label = IGNORED);
        labels
    }

    fn forward(rows: usize, classes: usize, labels_i32: bool) -> Case {
        let params = CrossEntropy { rows, classes, ignore_index: IGNORED, labels_i32 };
        Case::new(KERNELS, "cross_entropy", params.to_words())
            .read(values(rows * classes, 1).iter().map(|x| x * 20.0).collect::<Vec<_>>())
            .read(Input::ids(&labels(rows, classes), labels_i32))
            .write(vec![0.0; rows])
            .write(vec![0.0; rows])
    }

    fn backward(rows: usize, classes: usize, labels_i32: bool, accumulate: bool) -> Case {
        let forward = forward(rows, classes, labels_i32);
        let params = CrossEntropyGrad { rows, classes, ignore_index: IGNORED, labels_i32, accumulate };
        Case::new(KERNELS, "cross_entropy_grad", params.to_words())
            .read(forward.reads[0].clone())
            .read(forward.reads[1].clone())
            .read(forward.reference()[1].clone())
            .read(vec![0.7])
            .write(values(rows * classes, 5))
    }

    #[test]
    fn fast_equals_reference() {
        for classes in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 4099] {
            for rows in [1, 2, 7] {
                for flag in [false, true] {
                    forward(rows, classes, flag).check(TOLERANCE);
                    backward(rows, classes, flag, false).check(TOLERANCE);
                    backward(rows, classes, flag, true).check(TOLERANCE);
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        forward(33, 1003, false).check_bits();
        backward(33, 1003, true, false).check_bits();
        backward(33, 1003, true, true).check_bits();
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let (rows, classes) = (3, 5);
        let case = backward(rows, classes, false, false);
        let Input::F32(logits) = &case.reads[0] else { panic!("logits are f32") };
        let labels = labels(rows, classes);
        let loss = |x: &[f64]| -> f64 {
            let row = |(x, &label): (&[f64], &i64)| match label {
                IGNORED => 0.0,
                label => x.iter().map(|x| x.exp()).sum::<f64>().ln() - x[label as usize],
            };
            0.7 * x.chunks(classes).zip(&labels).map(row).sum::<f64>()
        };
        assert_gradient(&case.fast(&Team::new(1))[0], logits, f64::from(TOLERANCE), loss);
    }

    #[test]
    fn labels_are_counted_exactly() {
        for narrow in [false, true] {
            let params = CountLabels { n: 100, ignore_index: IGNORED, labels_i32: narrow };
            let case = Case::new(KERNELS, "count_labels", params.to_words())
                .read(Input::ids(&labels(100, 10), narrow))
                .write(vec![0.0]);
            assert_eq!(case.fast(&Team::new(2)), [[67.0]]);
        }
    }
}
