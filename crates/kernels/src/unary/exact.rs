//! The functions of `unary` and their derivatives in `f64`: what the kernel means.

use std::f64::consts::SQRT_2;

use phalanx_ir::{Activation, Unary};

/// The functions in `f64`: the meaning of [`Unary`].
pub(super) fn value(kind: Unary, x: f64) -> f64 {
    match kind {
        Unary::Identity | Unary::Act(Activation::None) => x,
        Unary::Act(Activation::Relu) => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::Act(Activation::GeluTanh) => bounded(x) * logistic(gelu_argument(x)),
        Unary::Act(Activation::GeluErf) => bounded(x) * normal_below(x),
        Unary::Act(Activation::Silu) => bounded(x) * logistic(x),
        Unary::Act(Activation::Sigmoid) => logistic(x),
        Unary::Act(Activation::Tanh) => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Elu(_) | Unary::LeakyRelu(_) if x > 0.0 => x,
        Unary::Elu(alpha) => f64::from(alpha) * x.exp_m1(),
        Unary::LeakyRelu(slope) => f64::from(slope) * x,
        Unary::Neg => -x,
        Unary::Square => x * x,
        Unary::Abs => x.abs(),
        Unary::AddScalar(scalar) => x + f64::from(scalar),
        Unary::SubScalar(scalar) => x - f64::from(scalar),
        Unary::MulScalar(scalar) => x * f64::from(scalar),
        Unary::DivScalar(scalar) => x / f64::from(scalar),
        Unary::PowScalar(scalar) => x.powf(f64::from(scalar)),
        Unary::Clamp(..) if x.is_nan() => x,
        Unary::Clamp(low, high) => x.max(f64::from(low)).min(f64::from(high)),
        Unary::Softplus(beta, threshold) => match f64::from(beta) * x {
            t if t > f64::from(threshold) => x,
            t => (if t < 0.0 { 0.0 } else { t } + (-t.abs()).exp().ln_1p()) / f64::from(beta),
        },
        Unary::HardSwish => bounded(x).max(-3.0) * ramp(x),
        Unary::HardSigmoid => ramp(x),
        Unary::Erf => 2.0 * normal_below(x * SQRT_2) - 1.0,
    }
}

/// The derivatives in `f64` of [`value`].
pub(super) fn slope(kind: Unary, x: f64) -> f64 {
    match kind {
        Unary::Identity | Unary::Act(Activation::None) | Unary::AddScalar(_) | Unary::SubScalar(_) => 1.0,
        Unary::Act(Activation::Relu) => f64::from(x > 0.0),
        Unary::Act(Activation::GeluTanh) => {
            let (s, inner) = (
                logistic(gelu_argument(x)),
                gelu_argument(1.0) / 1.044_715 * (1.0 + 0.134_145 * bounded(x) * bounded(x)),
            );
            s + bounded(x) * s * logistic(-gelu_argument(x)) * inner
        }
        Unary::Act(Activation::GeluErf) => normal_below(x) + bounded(x) * normal_density(x),
        Unary::Act(Activation::Silu) => logistic(x) + bounded(x) * logistic(x) * logistic(-x),
        Unary::Act(Activation::Sigmoid) => logistic(x) * logistic(-x),
        Unary::Act(Activation::Tanh) => 1.0 - x.tanh() * x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Log => 1.0 / x,
        Unary::Sqrt => 0.5 / x.sqrt(),
        Unary::Rsqrt => -0.5 / (x * x.sqrt()),
        Unary::Sin => x.cos(),
        Unary::Cos => -x.sin(),
        Unary::Elu(_) | Unary::LeakyRelu(_) if x > 0.0 => 1.0,
        Unary::Elu(alpha) => f64::from(alpha) * x.exp(),
        Unary::LeakyRelu(slope) => f64::from(slope),
        Unary::Neg => -1.0,
        Unary::Square => 2.0 * x,
        Unary::Abs => f64::from(x > 0.0) - f64::from(x < 0.0),
        Unary::MulScalar(scalar) => f64::from(scalar),
        Unary::DivScalar(scalar) => 1.0 / f64::from(scalar),
        Unary::PowScalar(0.0) => 0.0,
        Unary::PowScalar(scalar) => f64::from(scalar) * x.powf(f64::from(scalar) - 1.0),
        Unary::Clamp(low, high) => f64::from(x > f64::from(low) && x < f64::from(high)),
        Unary::Softplus(beta, threshold) => match f64::from(beta) * x {
            t if t > f64::from(threshold) => 1.0,
            t => logistic(t),
        },
        Unary::HardSwish => match x {
            x if x <= -3.0 => 0.0,
            x if x >= 3.0 => 1.0,
            x => x / 3.0 + 0.5,
        },
        Unary::HardSigmoid => f64::from(x > -3.0 && x < 3.0) / 6.0,
        Unary::Erf => 2.0 * SQRT_2 * normal_density(x * SQRT_2),
    }
}

/// `x` without its infinities: there a factor that has vanished decides.
fn bounded(x: f64) -> f64 {
    x.clamp(-1e40, 1e40)
}

/// `(x + 3) / 6` limited to 0..1; NaN stays NaN.
fn ramp(x: f64) -> f64 {
    (x + 3.0).clamp(0.0, 6.0) / 6.0
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `2 sqrt(2/π) (x + 0.044715 x³)`: the tanh form of GELU is `x · logistic` of it.
fn gelu_argument(x: f64) -> f64 {
    (8.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)
}

fn normal_density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The standard normal distribution function, by its power series near 0 and its continued fraction in the tails.
fn normal_below(x: f64) -> f64 {
    let distance = x.abs();
    let inner = if distance < 4.0 {
        // Φ(x) - 1/2 = φ(x) (x + x³/3 + x⁵/(3·5) + …)
        let (mut term, mut sum) = (distance, 0.0);
        for odd in (3..200).step_by(2) {
            sum += term;
            term *= distance * distance / f64::from(odd);
        }
        0.5 + normal_density(x) * sum
    } else {
        // 1 - Φ(x) = φ(x) / (x + 1/(x + 2/(x + 3/(x + …))))
        let fraction = (1..100).rev().fold(distance, |tail, k| distance + f64::from(k) / tail);
        1.0 - normal_density(x) / fraction
    };
    if x < 0.0 { 1.0 - inner } else { inner }
}
