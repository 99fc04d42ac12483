//! The functions of `unary` and their derivatives in `f64`: what the kernel means.

use super::UnaryKind;

/// The functions in `f64`: the meaning of [`UnaryKind`].
pub(super) fn value(kind: UnaryKind, scalar: f64, x: f64) -> f64 {
    match kind {
        UnaryKind::Identity => x,
        UnaryKind::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        UnaryKind::GeluTanh => bounded(x) * logistic(gelu_argument(x)),
        UnaryKind::GeluErf => bounded(x) * normal_below(x),
        UnaryKind::Silu => bounded(x) * logistic(x),
        UnaryKind::Sigmoid => logistic(x),
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Sin => x.sin(),
        UnaryKind::Cos => x.cos(),
        UnaryKind::Elu => {
            if x > 0.0 {
                x
            } else {
                x.exp_m1()
            }
        }
        UnaryKind::Neg => -x,
        UnaryKind::Square => x * x,
        UnaryKind::Abs => x.abs(),
        UnaryKind::AddScalar => x + scalar,
        UnaryKind::SubScalar => x - scalar,
        UnaryKind::MulScalar => x * scalar,
        UnaryKind::DivScalar => x / scalar,
        UnaryKind::PowScalar => x.powf(scalar),
        UnaryKind::RsubScalar => scalar - x,
        UnaryKind::RdivScalar => scalar / x,
    }
}

/// The derivatives in `f64` of [`value`].
pub(super) fn slope(kind: UnaryKind, scalar: f64, x: f64) -> f64 {
    match kind {
        UnaryKind::Identity | UnaryKind::AddScalar | UnaryKind::SubScalar => 1.0,
        UnaryKind::Relu => f64::from(x > 0.0),
        UnaryKind::GeluTanh => {
            let (s, inner) = (
                logistic(gelu_argument(x)),
                gelu_argument(1.0) / 1.044_715 * (1.0 + 0.134_145 * bounded(x) * bounded(x)),
            );
            s + bounded(x) * s * logistic(-gelu_argument(x)) * inner
        }
        UnaryKind::GeluErf => normal_below(x) + bounded(x) * normal_density(x),
        UnaryKind::Silu => logistic(x) + bounded(x) * logistic(x) * logistic(-x),
        UnaryKind::Sigmoid => logistic(x) * logistic(-x),
        UnaryKind::Tanh => 1.0 - x.tanh() * x.tanh(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => 1.0 / x,
        UnaryKind::Sqrt => 0.5 / x.sqrt(),
        UnaryKind::Rsqrt => -0.5 / (x * x.sqrt()),
        UnaryKind::Sin => x.cos(),
        UnaryKind::Cos => -x.sin(),
        UnaryKind::Elu => {
            if x > 0.0 {
                1.0
            } else {
                x.exp()
            }
        }
        UnaryKind::Neg | UnaryKind::RsubScalar => -1.0,
        UnaryKind::Square => 2.0 * x,
        UnaryKind::Abs => f64::from(x > 0.0) - f64::from(x < 0.0),
        UnaryKind::MulScalar => scalar,
        UnaryKind::DivScalar => 1.0 / scalar,
        UnaryKind::PowScalar if scalar == 0.0 => 0.0,
        UnaryKind::PowScalar => scalar * x.powf(scalar - 1.0),
        UnaryKind::RdivScalar => -scalar / (x * x),
    }
}

/// `x` without its infinities: there a factor that has vanished decides.
fn bounded(x: f64) -> f64 {
    x.clamp(-1e40, 1e40)
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
