use super::*;

/// One unit in the last place of a number near 1.
const ULP: f64 = f32::EPSILON as f64;

/// `0`, subnormals, both signs, and a geometric and an even grid up to `limit`.
fn samples(limit: f32) -> Vec<f32> {
    let geometric = (0..4000).map(|i| limit * (-0.02 * i as f32).exp());
    let even = (0..4000).map(|i| limit * i as f32 / 4000.0);
    let mut all: Vec<f32> = geometric.chain(even).chain([f32::MIN_POSITIVE, 1e-45]).collect();
    all.extend(all.clone().iter().map(|x| -x));
    all
}

/// Checks `|f(x) - exact(x)| <= relative · |exact| + absolute`.
fn check(f: fn(f32) -> f32, exact: fn(f64) -> f64, limit: f32, relative: f64, absolute: f64) {
    for x in samples(limit) {
        let (got, want) = (f64::from(f(x)), exact(f64::from(x)));
        let error = (got - want).abs();
        assert!(got == want || error <= relative * want.abs() + absolute, "f({x}) = {got}, exactly {want}");
    }
}

/// Checks NaN and the limits at both infinities and at large finite arguments.
fn check_limits(f: fn(f32) -> f32, below: f32, above: f32) {
    assert!(f(f32::NAN).is_nan());
    for x in [f32::NEG_INFINITY, f32::MIN] {
        assert_eq!(f(x), below, "at {x}");
    }
    for x in [f32::INFINITY, f32::MAX] {
        assert_eq!(f(x), if above == f32::INFINITY { x } else { above }, "at {x}");
    }
}

/// The standard normal distribution function, by numerical integration of the density from 0.
fn normal_below(x: f64) -> f64 {
    let steps = 2000;
    let width = x / f64::from(steps);
    let density = |y: f64| (-0.5 * y * y).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let inner: f64 = (1..steps).map(|i| f64::from(2 + 2 * (i % 2)) * density(width * f64::from(i))).sum();
    0.5 + width / 3.0 * (density(0.0) + inner + density(x))
}

fn logistic_exact(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn exp_is_within_two_ulp_and_reaches_zero_and_infinity() {
    check(exp, f64::exp, 87.0, 2.0 * ULP, 0.0);
    check(exp, f64::exp, 88.7, 2.0 * ULP, 1e-44);
    assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
    assert_eq!((exp(f32::INFINITY), exp(89.0), exp(1e30)), (f32::INFINITY, f32::INFINITY, f32::INFINITY));
    check_limits(|x| if x > 0.0 { 0.0 } else { exp(x) }, 0.0, 0.0);
    assert!(exp(f32::NAN).is_nan());
    assert_eq!(exp(-103.0), (-103f64).exp() as f32);
}

#[test]
fn expm1_and_log_keep_relative_precision() {
    check(|x| expm1_negative(-x.abs()), |x| (-x.abs()).exp_m1(), 50.0, 3.0 * ULP, 0.0);
    check(|x| log(x.abs()), |x| x.abs().ln(), 1e6, 2.0 * ULP, 0.0);
    check(|x| log(1.0 + 0.5 * x), |x| f64::from(1.0 + 0.5 * x as f32).ln(), 1.0, 3.0 * ULP, 0.0);
    assert_eq!(log(0.0), f32::NEG_INFINITY);
    assert_eq!(log(1.0), 0.0);
    assert_eq!(log(f32::INFINITY), f32::INFINITY);
    assert!(log(-1.0).is_nan() && log(f32::NEG_INFINITY).is_nan() && log(f32::NAN).is_nan());
}

#[test]
fn saturating_functions_keep_relative_precision() {
    check(tanh, f64::tanh, 12.0, 4.0 * ULP, 0.0);
    check(tanh_slope, |x| x.cosh().powi(-2), 40.0, 6.0 * ULP, 1e-44);
    check(sigmoid, logistic_exact, 85.0, 4.0 * ULP, 0.0);
    check(sigmoid_slope, |x| logistic_exact(x) * logistic_exact(-x), 85.0, 5.0 * ULP, 0.0);
    check_limits(tanh, -1.0, 1.0);
    check_limits(tanh_slope, 0.0, 0.0);
    check_limits(sigmoid, 0.0, 1.0);
    check_limits(sigmoid_slope, 0.0, 0.0);
    assert!(tanh(-0.0).is_sign_negative());
}

/// The tanh form in the logistic spelling, which does not cancel.
fn gelu_tanh_exact(x: f64) -> f64 {
    x * logistic_exact((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
}

#[test]
fn activations_are_precise_and_have_their_limits() {
    check(silu, |x| x * logistic_exact(x), 80.0, 5.0 * ULP, 1e-44);
    // The argument of the logistic grows like x³: its rounding is the relative error of the far tail.
    check(gelu_tanh, gelu_tanh_exact, 5.0, 32.0 * ULP, 1e-44);
    check(gelu_tanh, gelu_tanh_exact, 1.0, 5.0 * ULP, 1e-44);
    check(gelu_erf, |x| x * normal_below(x), 3.0, 8.0 * ULP, 1e-12);
    check(gelu_erf, |x| x * normal_below(x), 8.0, 8.0 * ULP, 1e-9);
    check_limits(relu, 0.0, f32::INFINITY);
    check_limits(silu, 0.0, f32::INFINITY);
    check_limits(gelu_tanh, 0.0, f32::INFINITY);
    check_limits(gelu_erf, 0.0, f32::INFINITY);
}

#[test]
fn slopes_of_activations_equal_finite_differences() {
    const STEP: f64 = 1e-5;
    // Central differences in f64: truncation STEP² and rounding 1e-16 / STEP are both far below f32 rounding.
    const TOLERANCE: f64 = 4e-7;
    type Pair = (fn(f32) -> f32, fn(f64) -> f64);
    let pairs: [Pair; 3] = [
        (silu_slope, |x| x * logistic_exact(x)),
        (gelu_tanh_slope, gelu_tanh_exact),
        (gelu_erf_slope, |x| x * normal_below(x)),
    ];
    for (slope, value) in pairs {
        for x in samples(9.0) {
            let wide = f64::from(x);
            let want = (value(wide + STEP) - value(wide - STEP)) / (2.0 * STEP);
            assert!((f64::from(slope(x)) - want).abs() < TOLERANCE, "slope {} at {x}, not {want}", slope(x));
        }
        check_limits(slope, 0.0, 1.0);
    }
}
