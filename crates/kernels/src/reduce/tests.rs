use super::*;
use crate::samples::{Case, assert_gradient, launched, values, weighted};
use crate::{KernelEntry, Team, Words};

/// Sums of up to 1000 numbers below 1 in f32, in two orders.
const TOLERANCE: f32 = 1e-5;

/// Shapes, reduced dimensions and leaves.
const CASES: [(&[usize], &[usize], usize); 18] = [
    (&[], &[], 1),
    (&[1], &[0], 1),
    (&[17], &[0], 1),
    (&[5, 7], &[], 1),
    (&[5, 7], &[1], 1),
    (&[5, 7], &[0], 1),
    (&[16, 33], &[0], 8),
    (&[3, 32], &[1], 4),
    (&[16, 100], &[0, 1], 8),
    (&[2, 3, 15], &[1], 1),
    (&[2, 3, 15], &[0, 2], 2),
    (&[8, 3, 1, 5], &[0, 1], 8),
    (&[2, 4, 70], &[0, 1], 2),
    (&[8, 1, 17], &[0, 2], 4),
    (&[4, 3, 2, 5, 3, 2], &[0, 2, 4], 4),
    (&[4, 3, 2, 5, 3, 2], &[1, 3, 5], 1),
    (&[2, 4, 3, 5], &[1, 2], 2),
    (&[2, 3, 130], &[0, 1], 1),
];

fn params(kind: Reduce, (shape, over, leaves): (&[usize], &[usize], usize)) -> ReduceParams {
    ReduceParams::new(kind, leaves, shape, over)
}

/// Values on a coarse grid, so that maxima tie.
fn input(n: usize) -> Vec<f32> {
    values(n, 1).iter().map(|x| (x * 8.0).round() / 8.0).collect()
}

fn case(params: ReduceParams) -> Case {
    Case::new("reduce", params.to_words()).read(input(params.n_inputs())).write(vec![9.0; params.n_outputs()])
}

fn grad_case(forward: ReduceParams, accumulate: bool) -> Case {
    let x = input(forward.n_inputs());
    let mut y = vec![0.0; forward.n_outputs()];
    reduce_reference(&mut y, &x, forward);
    let (n_inputs, n_outputs) = (x.len(), y.len());
    Case::new("reduce_grad", ReduceGradParams { forward, accumulate }.to_words())
        .read(x)
        .read(y)
        .read(values(n_outputs, 2))
        .write(values(n_inputs, 3))
}

#[test]
fn fast_equals_reference_over_odd_shapes() {
    for &kind in Reduce::ALL {
        for shape in CASES {
            case(params(kind, shape)).check(TOLERANCE);
            grad_case(params(kind, shape), false).check(TOLERANCE);
            grad_case(params(kind, shape), true).check(TOLERANCE);
        }
    }
}

#[test]
fn bits_do_not_depend_on_cores_or_instruction_set() {
    for &kind in Reduce::ALL {
        for shape in [(&[64, 300][..], &[0][..], 8), (&[300, 64], &[1], 4), (&[16, 40, 33], &[0, 2], 4)] {
            case(params(kind, shape)).check_bits();
            grad_case(params(kind, shape), true).check_bits();
        }
    }
}

#[test]
fn an_aligned_half_gives_its_subtree_and_a_kept_slice_gives_its_outputs() {
    let (leaves, team) = (8, Team::new(1));
    let x = values(16 * 3 * 37, 1);
    let sum = |x: &[f32], shape: &[usize], over: &[usize], leaves: usize| {
        let params = ReduceParams::new(Reduce::Sum, leaves, shape, over);
        let mut y = vec![0.0; params.n_outputs()];
        reduce(&mut y, x, params, &mut Launch::plain(&team));
        y
    };
    for over in [&[0][..], &[0, 1], &[0, 2], &[0, 1, 2]] {
        let whole = sum(&x, &[16, 3, 37], over, leaves);
        let (left, right) = x.split_at(x.len() / 2);
        let halves = [left, right].map(|half| sum(half, &[8, 3, 37], over, leaves / 2));
        let added: Vec<f32> = halves[0].iter().zip(&halves[1]).map(|(a, b)| a + b).collect();
        assert_eq!(whole, added, "halves over {over:?}");
    }
    let whole = sum(&x, &[16, 3, 37], &[0, 2], leaves);
    for (kept, &output) in whole.iter().enumerate() {
        let slice: Vec<f32> = x.chunks(37).skip(kept).step_by(3).flatten().copied().collect();
        assert_eq!(sum(&slice, &[16, 1, 37], &[0, 2], leaves), [output]);
    }
}

#[test]
fn gradients_equal_finite_differences() {
    const DIFFERENCE_TOLERANCE: f64 = 1e-6;
    for &kind in Reduce::ALL {
        let forward = ReduceParams::new(kind, 1, &[3, 4, 5], &[0, 2]);
        let (x, dy, team) = (values(60, 1), values(4, 2), Team::new(1));
        let (mut y, mut dx) = (vec![0.0; 4], vec![0.0; 60]);
        reduce(&mut y, &x, forward, &mut Launch::plain(&team));
        let params = ReduceGradParams { forward, accumulate: false };
        launched(&KernelEntry::of::<ReduceGradParams>(), &params.to_words(), 1, &team, |mut launch| {
            reduce_grad(&mut dx, &x, &y, &dy, params, &mut launch);
        });
        assert_gradient(&dx, &x, DIFFERENCE_TOLERANCE, |x| {
            let y: Vec<f64> = (0..4)
                .map(|kept| {
                    let elements = || (0..60).filter(|i| i / 5 % 4 == kept).map(|i| x[i]);
                    match kind {
                        Reduce::Sum => elements().sum(),
                        Reduce::Mean => elements().sum::<f64>() / 15.0,
                        Reduce::Max => elements().fold(f64::NEG_INFINITY, f64::max),
                    }
                })
                .collect();
            weighted(&y, &dy)
        });
    }
}

#[test]
fn maxima_keep_nan_and_have_no_negative_zero() {
    let max = |x: &[f32]| {
        let mut y = [9.0];
        reduce(
            &mut y,
            x,
            ReduceParams::new(Reduce::Max, 1, &[x.len()], &[0]),
            &mut Launch::plain(&Team::new(1)),
        );
        y[0]
    };
    assert!(max(&[1.0, f32::NAN, 2.0]).is_nan());
    assert_eq!(max(&[-0.0, -0.0]).to_bits(), 0);
    assert_eq!(max(&[-3.0, -2.0]), -2.0);
}
