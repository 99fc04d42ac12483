use super::*;
use crate::samples::{Case, assert_gradient, values, weighted};
use crate::{Team, Words};

/// Shapes of a and b: equal, suffix row, scalar, column, both stretched, and sizes around the vector width.
const SHAPES: [(&[usize], &[usize]); 14] = [
    (&[], &[]),
    (&[1], &[1]),
    (&[3], &[3]),
    (&[17], &[1]),
    (&[1], &[33]),
    (&[5, 7], &[7]),
    (&[15, 16], &[16]),
    (&[7], &[5, 7]),
    (&[5, 7], &[5, 1]),
    (&[2, 1, 3], &[4, 1]),
    (&[2, 3, 1, 5], &[3, 4, 1]),
    (&[100, 2], &[100, 1]),
    (&[2, 1, 2, 1, 2, 3], &[1, 2, 2, 2, 1, 3]),
    (&[130, 257], &[257]),
];

fn operands(a: &[usize], b: &[usize]) -> (Vec<f32>, Vec<f32>) {
    // Rounded to quarters, so that ties occur; away from 0, so that quotients stay small.
    let rounded = |n, seed| values(n, seed).iter().map(|x| (x * 8.0).round() / 4.0 + 2.5).collect();
    (rounded(a.iter().product(), 1), rounded(b.iter().product(), 2))
}

fn case(kind: Binary, (a, b): (&[usize], &[usize])) -> Case {
    let broadcast = Broadcast::new(a, b);
    let (a, b) = operands(a, b);
    let n = broadcast.dims.iter().product();
    Case::new("binary", BinaryParams { kind, broadcast }.to_words()).read(a).read(b).write(vec![9.0; n])
}

fn grad_case(kind: Binary, side: usize, (a, b): (&[usize], &[usize])) -> Case {
    let broadcast = Broadcast::new(a, b);
    let (a, b) = operands(a, b);
    let n = broadcast.dims.iter().product();
    let params = BinaryGradParams { kind, side, broadcast };
    Case::new("binary_grad", params.to_words()).read(a).read(b).read(values(n, 3)).write(vec![9.0; n])
}

#[test]
fn fast_equals_reference_in_every_bit() {
    for &kind in Binary::ALL {
        for shapes in SHAPES {
            case(kind, shapes).check(0.0);
            grad_case(kind, 0, shapes).check(0.0);
            grad_case(kind, 1, shapes).check(0.0);
        }
    }
}

#[test]
fn bits_do_not_depend_on_cores_or_instruction_set() {
    for &kind in Binary::ALL {
        case(kind, (&[130, 257], &[257])).check_bits();
        grad_case(kind, 1, (&[130, 257], &[130, 1])).check_bits();
    }
}

#[test]
fn the_meaning_is_that_of_plain_indices() {
    let params = BinaryParams { kind: Binary::Sub, broadcast: Broadcast::new(&[2, 1, 3], &[4, 1]) };
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0, 20.0, 30.0, 40.0]);
    let mut y = [0.0; 24];
    binary_reference(&mut y, &a, &b, params);
    for (i, y) in y.into_iter().enumerate() {
        let (plane, row, column) = (i / 12, i / 3 % 4, i % 3);
        assert_eq!(y, a[plane * 3 + column] - b[row]);
    }
}

#[test]
fn gradients_equal_finite_differences() {
    /// A few f32 roundings of quotients up to 10.
    const TOLERANCE: f64 = 1e-5;
    let n = 33;
    let dy = values(n, 3);
    for &kind in Binary::ALL {
        // Irrational offsets keep a and b apart by more than the step of the differences.
        let a: Vec<f32> = values(n, 4).iter().map(|x| x + 2.0).collect();
        let b: Vec<f32> = values(n, 5).iter().map(|x| x * 0.7 + 2.1).collect();
        let f = |a: f64, b: f64| match kind {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
        };
        for side in [0, 1] {
            let params = BinaryGradParams { kind, side, broadcast: Broadcast::new(&[n], &[n]) };
            let mut d = vec![0.0; n];
            binary_grad(&mut d, &a, &b, &dy, params, &mut Launch::plain(&Team::new(1)));
            assert_gradient(&d, if side == 0 { &a } else { &b }, TOLERANCE, |moved| {
                let y: Vec<f64> = (0..n)
                    .map(|i| if side == 0 { f(moved[i], b[i].into()) } else { f(a[i].into(), moved[i]) })
                    .collect();
                weighted(&y, &dy)
            });
        }
    }
}

#[test]
fn ties_share_and_nan_propagates() {
    let broadcast = Broadcast::new(&[1], &[1]);
    for kind in [Binary::Max, Binary::Min] {
        for side in [0, 1] {
            let mut d = [0.0];
            binary_grad(
                &mut d,
                &[2.0],
                &[2.0],
                &[6.0],
                BinaryGradParams { kind, side, broadcast },
                &mut Launch::plain(&Team::new(1)),
            );
            assert_eq!(d, [3.0]);
        }
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut y = [0.0];
            binary(&mut y, &[a], &[b], BinaryParams { kind, broadcast }, &mut Launch::plain(&Team::new(1)));
            assert!(y[0].is_nan());
        }
    }
}
