use super::*;
use crate::Team;
use crate::isa::Isa;

/// Relative and absolute error of a fast function: a few roundings of f32.
const TOLERANCE: f32 = 16.0 * f32::EPSILON;
const SCALAR: f32 = 1.7;

/// Arguments inside the domain of `kind`, away from its kinks.
fn arguments(kind: Unary, n: usize) -> Vec<f32> {
    let positive = matches!(kind, Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::PowScalar(_));
    (0..n)
        .map(|i| {
            let x = ((i * 7919 + 13) % 1009) as f32 / 101.0 - 4.9971;
            if positive { x.abs() + 0.1 } else { x }
        })
        .collect()
}

fn close(got: &[f32], want: &[f32], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= TOLERANCE * want.abs().max(1.0), "{what}[{i}]: {got}, not {want}");
    }
}

fn run(kind: Unary, n: usize, cores: usize) -> (Vec<f32>, Vec<f32>) {
    let (team, x) = (Team::new(cores), arguments(kind, n));
    let dy: Vec<f32> = (0..n).map(|i| (i % 13) as f32 - 6.1).collect();
    let (mut y, mut dx) = (vec![f32::NAN; n], vec![0.5; n]);
    unary(&mut y, &x, UnaryParams { n, kind }, &mut Launch::plain(&team));
    unary_grad(
        &mut dx,
        &x,
        &dy,
        UnaryGradParams { n, kind, accumulate: true, rounded: false },
        &mut Launch::plain(&team),
    );
    (y, dx)
}

#[test]
fn fast_equals_reference_over_odd_sizes() {
    for kind in Unary::all(SCALAR) {
        for n in [0, 1, 2, 3, 5, 7, 15, 16, 17, 33, 100] {
            for accumulate in [false, true] {
                let (team, x) = (Team::new(1), arguments(kind, n));
                let dy: Vec<f32> = (0..n).map(|i| (i % 5) as f32 / 5.0 - 0.41).collect();
                let (mut got, mut want) = (vec![f32::NAN; n], vec![f32::NAN; n]);
                let params = UnaryParams { n, kind };
                unary(&mut got, &x, params, &mut Launch::plain(&team));
                unary_reference(&mut want, &x, params);
                close(&got, &want, &format!("{kind:?}"));
                let (mut got, mut want) = (vec![0.25; n], vec![0.25; n]);
                let params = UnaryGradParams { n, kind, accumulate, rounded: false };
                unary_grad(&mut got, &x, &dy, params, &mut Launch::plain(&team));
                unary_grad_reference(&mut want, &x, &dy, params);
                close(&got, &want, &format!("gradient of {kind:?}"));
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_cores_or_instruction_set() {
    let bits =
        |(y, dx): (Vec<f32>, Vec<f32>)| -> Vec<u32> { y.iter().chain(&dx).map(|v| v.to_bits()).collect() };
    for kind in Unary::all(SCALAR) {
        let n = crate::spmd::ALONE + 37;
        let want = bits(run(kind, n, 1));
        for cores in 2..5 {
            assert_eq!(bits(run(kind, n, cores)), want, "{kind:?} on {cores} cores");
        }
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            Isa::select(isa);
            assert_eq!(bits(run(kind, n, 1)), want, "{kind:?} with {isa:?}");
        }
        Isa::select(Isa::best());
    }
}

#[test]
fn slopes_equal_finite_differences() {
    const STEP: f64 = 1e-6;
    // Central differences in f64: truncation STEP² and rounding 1e-16 / STEP, both times values up to 150.
    const DIFFERENCE_TOLERANCE: f64 = 1e-7;
    for kind in Unary::all(SCALAR) {
        for x in arguments(kind, 200).into_iter().map(f64::from) {
            let f = |x| exact::value(kind, x);
            let want = (f(x + STEP) - f(x - STEP)) / (2.0 * STEP);
            let got = exact::slope(kind, x);
            assert!(
                (got - want).abs() <= DIFFERENCE_TOLERANCE * want.abs().max(1.0),
                "{kind:?} at {x}: {got}, {want}"
            );
        }
    }
}

#[test]
fn activations_equal_their_kinds_in_and_out_of_place() {
    let x = arguments(Unary::Act(Activation::Silu), 100);
    for &activation in Activation::ALL {
        let (mut out, mut place, mut want) = (vec![0.0; 100], x.clone(), vec![0.0; 100]);
        activate(activation, &mut out, &x);
        activate_in_place(activation, &mut place);
        unary_reference(&mut want, &x, UnaryParams { n: 100, kind: Unary::Act(activation) });
        close(&out, &want, &format!("{activation:?}"));
        assert_eq!(out, place, "{activation:?}");
    }
}

#[test]
fn special_powers_and_values_keep_their_meaning() {
    let team = Team::new(1);
    let x = [-2.0, -0.0, 0.0, 3.0, f32::INFINITY, f32::NEG_INFINITY];
    for scalar in [0.0, 1.0, 2.0, 3.0] {
        let params = UnaryParams { n: 6, kind: Unary::PowScalar(scalar) };
        let (mut got, mut want) = ([0.0; 6], [0.0; 6]);
        unary(&mut got, &x, params, &mut Launch::plain(&team));
        unary_reference(&mut want, &x, params);
        assert_eq!(got, want, "power {scalar}");
        let params =
            UnaryGradParams { n: 6, kind: Unary::PowScalar(scalar), accumulate: false, rounded: false };
        unary_grad(&mut got, &x, &[1.0; 6], params, &mut Launch::plain(&team));
        unary_grad_reference(&mut want, &x, &[1.0; 6], params);
        assert_eq!(got, want, "gradient of power {scalar}");
    }
    for kind in [
        Unary::Act(Activation::GeluTanh),
        Unary::Act(Activation::GeluErf),
        Unary::Act(Activation::Silu),
        Unary::Elu(1.0),
        Unary::Elu(0.3),
        Unary::LeakyRelu(0.1),
        Unary::Softplus(2.0, 6.0),
        Unary::HardSwish,
        Unary::HardSigmoid,
        Unary::Erf,
        Unary::Clamp(-1.0, 2.5),
        Unary::Exp,
    ] {
        let params = UnaryParams { n: 6, kind };
        let (mut got, mut want) = ([0.0; 6], [0.0; 6]);
        unary(&mut got, &x, params, &mut Launch::plain(&team));
        unary_reference(&mut want, &x, params);
        close(&got[..4], &want[..4], &format!("{kind:?}"));
        assert_eq!(got[4..], want[4..], "{kind:?}");
        let mut nan = [0.0];
        unary(&mut nan, &[f32::NAN], UnaryParams { n: 1, ..params }, &mut Launch::plain(&team));
        assert!(nan[0].is_nan(), "{kind:?}");
    }
}

#[test]
fn rounded_slopes_are_those_at_rounded_points() {
    const N: usize = 1003;
    let (team, dy) = (Team::new(1), vec![0.75; N]);
    // The arguments have more digits than bf16, and one of them is denormal, which becomes 0.
    let mut x = arguments(Unary::Act(Activation::Relu), N);
    x[7] = 1e-40;
    let points: Vec<f32> = x.iter().map(|&x| rounded(x)).collect();
    for &activation in Activation::ALL {
        let of = |x: &[f32], accumulate, rounded| {
            let params = UnaryGradParams { n: N, kind: Unary::Act(activation), accumulate, rounded };
            let (mut fast, mut reference) = (vec![0.5; N], vec![0.5; N]);
            unary_grad(&mut fast, x, &dy, params, &mut Launch::plain(&team));
            unary_grad_reference(&mut reference, x, &dy, params);
            [fast, reference].map(|dx| dx.iter().map(|dx| dx.to_bits()).collect::<Vec<_>>())
        };
        for accumulate in [false, true] {
            assert_eq!(of(&x, accumulate, true), of(&points, accumulate, false), "{activation:?}");
            let is_curved = activation != Activation::None;
            assert_eq!(of(&x, accumulate, true) != of(&x, accumulate, false), is_curved, "{activation:?}");
        }
    }
}

/// The slopes that PyTorch was measured to give at kinks, and the bounds of a clamp whose bounds are exchanged.
#[test]
fn slopes_at_kinks_are_those_of_pytorch() {
    let team = Team::new(1);
    let cases: [(Unary, &[(f32, f32)]); 6] = [
        (Unary::Clamp(-1.0, 2.0), &[(-1.0, 0.0), (2.0, 0.0), (0.0, 1.0)]),
        (Unary::HardSigmoid, &[(-3.0, 0.0), (3.0, 0.0), (0.0, 1.0 / 6.0)]),
        (Unary::HardSwish, &[(-3.0, 0.0), (3.0, 1.0), (0.0, 0.5)]),
        (Unary::LeakyRelu(0.3), &[(0.0, 0.3), (-0.0, 0.3), (1.0, 1.0)]),
        (Unary::Elu(0.3), &[(0.0, 0.3)]),
        (Unary::Softplus(2.0, 6.0), &[(3.0, 0.997_527_4), (3.000_1, 1.0)]),
    ];
    for (kind, points) in cases {
        for &(x, want) in points {
            let params = UnaryGradParams { n: 1, kind, accumulate: false, rounded: false };
            let (mut fast, mut reference) = ([f32::NAN], [f32::NAN]);
            unary_grad(&mut fast, &[x], &[1.0], params, &mut Launch::plain(&team));
            unary_grad_reference(&mut reference, &[x], &[1.0], params);
            close(&fast, &[want], &format!("{kind:?} at {x}"));
            close(&reference, &[want], &format!("reference of {kind:?} at {x}"));
        }
    }
    let mut y = [0.0; 3];
    let params = UnaryParams { n: 3, kind: Unary::Clamp(2.0, -1.0) };
    unary(&mut y, &[-5.0, 0.0, 5.0], params, &mut Launch::plain(&team));
    assert_eq!(y, [-1.0; 3]);
}
