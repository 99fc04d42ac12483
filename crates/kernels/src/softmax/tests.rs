use super::*;
use crate::samples::{Case, assert_gradient, values, weighted};
use crate::{Team, Words};

/// A sum of up to 300 positive terms in 16 lanes: about 20 roundings.
const TOLERANCE: f32 = 4e-6;

fn case(outer: usize, axis: usize, inner: usize) -> Case {
    let n = outer * axis * inner;
    let x = values(n, 1).iter().map(|x| x * 20.0).collect::<Vec<_>>();
    let params = SoftmaxParams { outer, axis, inner };
    Case::new("softmax", params.to_words()).read(x).write(vec![9.0; n])
}

fn grad_case(outer: usize, axis: usize, inner: usize, accumulate: bool) -> Case {
    let n = outer * axis * inner;
    let params = SoftmaxGradParams { outer, axis, inner, accumulate };
    Case::new("softmax_grad", params.to_words()).read(values(n, 1)).read(values(n, 2)).write(values(n, 3))
}

#[test]
fn fast_equals_reference_over_odd_sizes() {
    for axis in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 300] {
        for (outer, inner) in [(1, 1), (3, 1), (2, 2), (3, 15), (1, 17), (2, 33)] {
            case(outer, axis, inner).check(TOLERANCE);
            grad_case(outer, axis, inner, false).check(TOLERANCE);
            grad_case(outer, axis, inner, true).check(TOLERANCE);
        }
    }
    case(0, 3, 2).check(0.0);
    case(2, 0, 2).check(0.0);
}

#[test]
fn bits_do_not_depend_on_cores_or_instruction_set() {
    for (outer, axis, inner) in [(300, 100, 1), (20, 33, 31)] {
        case(outer, axis, inner).check_bits();
        grad_case(outer, axis, inner, true).check_bits();
    }
}

#[test]
fn bits_do_not_depend_on_the_inner_tiling() {
    let (axis, inner) = (37, 19);
    let (x, dy) = (values(axis * inner, 1), values(axis * inner, 2));
    let column = |data: &[f32], i: usize| (0..axis).map(|a| data[a * inner + i]).collect::<Vec<_>>();
    let team = Team::new(1);
    let (mut y, mut dx) = (vec![0.0; axis * inner], vec![0.0; axis * inner]);
    softmax(&mut y, &x, SoftmaxParams { outer: 1, axis, inner }, &mut Launch::plain(&team));
    softmax_grad(
        &mut dx,
        &y,
        &dy,
        SoftmaxGradParams { outer: 1, axis, inner, accumulate: false },
        &mut Launch::plain(&team),
    );
    for i in 0..inner {
        let (mut own_y, mut own_dx) = (vec![0.0; axis], vec![0.0; axis]);
        let params = SoftmaxGradParams { outer: 1, axis, inner: 1, accumulate: false };
        softmax(
            &mut own_y,
            &column(&x, i),
            SoftmaxParams { outer: 1, axis, inner: 1 },
            &mut Launch::plain(&team),
        );
        softmax_grad(&mut own_dx, &column(&y, i), &column(&dy, i), params, &mut Launch::plain(&team));
        assert_eq!((own_y, own_dx), (column(&y, i), column(&dx, i)));
    }
}

#[test]
fn gradient_equals_finite_differences() {
    const DIFFERENCE_TOLERANCE: f64 = 1e-6;
    let (outer, axis, inner) = (2, 5, 3);
    let n = outer * axis * inner;
    let (x, dy, team) = (values(n, 1), values(n, 2), Team::new(1));
    let (mut y, mut dx) = (vec![0.0; n], vec![0.0; n]);
    softmax(&mut y, &x, SoftmaxParams { outer, axis, inner }, &mut Launch::plain(&team));
    softmax_grad(
        &mut dx,
        &y,
        &dy,
        SoftmaxGradParams { outer, axis, inner, accumulate: false },
        &mut Launch::plain(&team),
    );
    assert_gradient(&dx, &x, DIFFERENCE_TOLERANCE, |x| {
        let mut y = vec![0.0; n];
        for_each_line(outer, axis, inner, |at| {
            let sum: f64 = (0..axis).map(|a| x[at(a)].exp()).sum();
            (0..axis).for_each(|a| y[at(a)] = x[at(a)].exp() / sum);
        });
        weighted(&y, &dy)
    });
}

#[test]
fn masked_and_huge_entries_are_exact() {
    let mut y = [0.0; 4];
    let params = SoftmaxParams { outer: 1, axis: 4, inner: 1 };
    softmax(
        &mut y,
        &[f32::NEG_INFINITY, 3e38, f32::NEG_INFINITY, -3e38],
        params,
        &mut Launch::plain(&Team::new(1)),
    );
    assert_eq!(y, [0.0, 1.0, 0.0, 0.0]);
    softmax(&mut y, &[0.0, f32::NAN, 0.0, 0.0], params, &mut Launch::plain(&Team::new(1)));
    assert!(y.iter().all(|y| y.is_nan()));
}
