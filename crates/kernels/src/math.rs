//! Elementary functions of one `f32`, branch-free so that loops over them become vector code.
//!
//! Every function is a fixed sequence of IEEE operations and therefore gives the same bits on every instruction
//! set. Polynomials are minimax fits of the named function over the named interval, rounded to `f32`. NaN propagates,
//! infinities give the limits. Trigonometric functions and powers are left to the standard library.

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2, LOG2_E, SQRT_2};

/// `ln 2 - LN_2`: what the `f32` constant misses.
const LN_2_LOW: f32 = -1.904_654_2e-9;
/// Adding and subtracting 1.5 · 2^23 rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;
/// 2 · sqrt(2 / π): the slope at 0 of the logistic argument in the tanh form of GELU.
const GELU_SLOPE: f32 = 1.595_769_2;
/// The weight of the cube in the tanh form of GELU.
const GELU_CUBE: f32 = 0.044_715;
/// 1 / sqrt(2 π).
const DENSITY_AT_ZERO: f32 = 0.398_942_3;
/// Maps `|x|` to `t = 1 / (1 + TAIL_SCALE |x|)`, in which the tail of the normal distribution is nearly polynomial.
const TAIL_SCALE: f32 = 0.328_125;

/// `(e^r - 1 - r) / r²` for `|r| <= ln 2 / 2`; relative error of `e^r` 3e-9.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_7];
/// `(ln(1 + f) - f + f²/2) / f³` for `1 + f` in `[sqrt(1/2), sqrt(2)]`; relative error of the logarithm 6e-9.
const LOG: [f32; 8] = [
    0.333_333_3,
    -0.250_008_2,
    0.200_012_27,
    -0.166_233_57,
    0.142_017_6,
    -0.131_601_83,
    0.127_615_75,
    -0.076_344_93,
];
/// `Φ(-x) e^(x²/2)` in `t = 1 / (1 + TAIL_SCALE x)` for `0 <= x <= 15`; relative error 2e-8.
const TAIL: [f32; 10] = [
    6.497_481e-6,
    0.130_725_67,
    0.132_992_06,
    0.102_832_6,
    0.147_207_72,
    -0.108_766_07,
    0.294_538_6,
    -0.319_381_1,
    0.144_543_22,
    -0.024_699_185,
];

/// `erf(x) / x` in `x²` for `|x| <= 1`; relative error 4e-11.
const ERF: [f32; 8] = [
    FRAC_2_SQRT_PI,
    -0.376_126_38,
    0.112_837_83,
    -0.026_865_438,
    0.005_221_053_5,
    -0.000_848_439_64,
    0.000_112_682_54,
    -9.673_591e-6,
];

/// `e^x`, within 2 units in the last place.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Outside these bounds the result is 0 or infinite in `f32`.
    let (n, r) = split_exponent(clamp(x, -105.0, 90.0));
    // Two factors, because 2^n alone leaves the range of normal numbers at both ends.
    let half = n >> 1;
    (1.0 + expm1_small(r)) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `e^x` for `x <= 0`, or zero where that is below the normal numbers, on which processors are slow.
#[inline(always)]
pub fn exp_negative(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    let (n, r) = split_exponent(at_least(x, LOWEST));
    let power = (1.0 + expm1_small(r)) * power_of_two(n);
    if x < LOWEST { 0.0 } else { power }
}

/// `e^x - 1` for `x <= 0`, with small relative error near 0 too.
#[inline(always)]
pub fn expm1_negative(x: f32) -> f32 {
    let (n, r) = split_exponent(clamp(x, -30.0, 0.0));
    let scale = power_of_two(n);
    scale.mul_add(expm1_small(r), scale - 1.0)
}

/// The natural logarithm of `x`.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    let subnormal = x < f32::MIN_POSITIVE;
    let bits = if subnormal { x * 8_388_608.0 } else { x }.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF_BITS) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
    let n = exponent as f32 - if subnormal { 23.0 } else { 0.0 };
    let mantissa = (f * f).mul_add(f.mul_add(polynomial(LOG, f), -0.5), f);
    let finite = n.mul_add(LN_2, n.mul_add(LN_2_LOW, mantissa));
    let positive = if x < f32::INFINITY { finite } else { x };
    let nonnegative = if x == 0.0 { f32::NEG_INFINITY } else { positive };
    if x < 0.0 { f32::NAN } else { nonnegative }
}

/// The hyperbolic tangent of `x`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let e = expm1_negative(-2.0 * x.abs());
    (-e / (e + 2.0)).copysign(x)
}

/// The derivative of [`tanh`] at `x`.
#[inline(always)]
pub fn tanh_slope(x: f32) -> f32 {
    4.0 * logistic(2.0 * x).1
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    logistic(x).0
}

/// The derivative of [`sigmoid`] at `x`.
#[inline(always)]
pub fn sigmoid_slope(x: f32) -> f32 {
    logistic(x).1
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    at_least(x, -200.0) * logistic(x).0
}

/// The derivative of [`silu`] at `x`.
#[inline(always)]
pub fn silu_slope(x: f32) -> f32 {
    let (value, slope) = logistic(x);
    clamp(x, -200.0, 200.0).mul_add(slope, value)
}

/// GELU in its tanh form: `x/2 · (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh(u)) / 2 = sigmoid(2u), which keeps its relative precision where tanh(u) is near -1.
    let argument = x * (GELU_SLOPE * GELU_CUBE).mul_add(x * x, GELU_SLOPE);
    at_least(x, -100.0) * logistic(argument).0
}

/// The derivative of [`gelu_tanh`] at `x`.
#[inline(always)]
pub fn gelu_tanh_slope(x: f32) -> f32 {
    let x = clamp(x, -100.0, 100.0);
    let square = x * x;
    let (value, slope) = logistic(x * (GELU_SLOPE * GELU_CUBE).mul_add(square, GELU_SLOPE));
    let inner = (3.0 * GELU_SLOPE * GELU_CUBE).mul_add(square, GELU_SLOPE);
    (x * inner).mul_add(slope, value)
}

/// GELU in its exact form: `x · Φ(x)`.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    at_least(x, -15.0) * normal(x).0
}

/// The derivative of [`gelu_erf`] at `x`.
#[inline(always)]
pub fn gelu_erf_slope(x: f32) -> f32 {
    let (below, density) = normal(x);
    clamp(x, -15.0, 15.0).mul_add(density, below)
}

/// `max(x, 0)`.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// `ln(1 + e^(βx)) / β`, and `x` where `βx` exceeds `threshold`.
#[inline(always)]
pub fn softplus(x: f32, beta: f32, threshold: f32) -> f32 {
    let t = beta * x;
    let e = exp_negative(-t.abs());
    // ln(1 + e): the logarithm of the rounded sum, and what the rounding lost.
    let sum = 1.0 + e;
    let rest = log(sum) + (e - (sum - 1.0)) / sum;
    if t > threshold { x } else { (at_least(t, 0.0) + rest) / beta }
}

/// The derivative of [`softplus`] at `x`.
#[inline(always)]
pub fn softplus_slope(x: f32, beta: f32, threshold: f32) -> f32 {
    let t = beta * x;
    let slope = logistic(t).0;
    if t > threshold { 1.0 } else { slope }
}

/// `(x + 3) / 6` limited to 0..1.
#[inline(always)]
pub fn hard_sigmoid(x: f32) -> f32 {
    clamp(x + 3.0, 0.0, 6.0) / 6.0
}

/// `x · hard_sigmoid(x)`.
#[inline(always)]
pub fn hard_swish(x: f32) -> f32 {
    at_least(x, -3.0) * hard_sigmoid(x)
}

/// The derivative of [`hard_swish`] at `x`: 0 at -3, 1 at 3.
#[inline(always)]
pub fn hard_swish_slope(x: f32) -> f32 {
    let inner = x / 3.0 + 0.5;
    let above = if x >= 3.0 { 1.0 } else { inner };
    if x <= -3.0 { 0.0 } else { above }
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let inner = x * polynomial(ERF, x * x);
    let outer = 2.0f32.mul_add(-normal(-SQRT_2 * x.abs()).0, 1.0).copysign(x);
    if x.abs() < 1.0 { inner } else { outer }
}

/// The derivative of [`erf`] at `x`.
#[inline(always)]
pub fn erf_slope(x: f32) -> f32 {
    let x = clamp(x, -10.0, 10.0);
    let square = x * x;
    let rounded = exp(-square);
    FRAC_2_SQRT_PI * rounded.mul_add(-x.mul_add(x, -square), rounded)
}

/// `max(x, low)` that keeps NaN.
#[inline(always)]
pub fn at_least(x: f32, low: f32) -> f32 {
    if x < low { low } else { x }
}

/// `x` limited to `low..=high`, and `high` if `low` is greater; NaN stays NaN.
#[inline(always)]
pub fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = at_least(x, low);
    if x > high { high } else { x }
}

/// The integer `n` and the rest `|r| <= ln 2 / 2` with `x = n ln 2 + r`.
#[inline(always)]
fn split_exponent(x: f32) -> (i32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2, x));
    (shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32, r)
}

/// `e^r - 1` for `|r| <= ln 2 / 2`.
#[inline(always)]
fn expm1_small(r: f32) -> f32 {
    (r * r).mul_add(polynomial(EXP, r), r)
}

/// `2^n` for `-127 < n < 128`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Horner's rule, lowest coefficient first.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, coefficients[i]);
    }
    sum
}

/// The logistic function and its derivative at `x`, without overflow or cancellation.
#[inline(always)]
fn logistic(x: f32) -> (f32, f32) {
    let e = exp_negative(-x.abs());
    let upper = 1.0 / (1.0 + e);
    let lower = e * upper;
    (if x < 0.0 { lower } else { upper }, upper * lower)
}

/// The distribution function and the density of the standard normal distribution at `x`.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    let x = clamp(x, -15.0, 15.0);
    let square = x * x;
    let rest = x.mul_add(x, -square);
    let rounded = exp(-0.5 * square);
    let e = rounded.mul_add(-0.5 * rest, rounded);
    let tail = e * polynomial(TAIL, 1.0 / TAIL_SCALE.mul_add(x.abs(), 1.0));
    (if x < 0.0 { tail } else { 1.0 - tail }, e * DENSITY_AT_ZERO)
}

#[cfg(test)]
mod tests;
