//! Functions of one element: `unary` and its gradient.
//!
//! `unary` reads `x[n]`, writes `y[n]`. `unary_grad` reads `x[n]` (the input of the forward) and `dy[n]`, writes `dx[n]` and adds
//! to it if `accumulate`. The slope at a kink is 0. `scalar` is the second operand of the `..Scalar` kinds.

mod exact;

use phalanx_ir::names;

use crate::call::{Call, Kernel, no_workspace};
use crate::spmd::{Launch, by_work};
use crate::{dispatch, math, params, word_enum};

word_enum! {
    /// A function that other kernels can apply to what they write.
    pub enum Activation {
        /// The identity.
        None,
        /// `max(x, 0)`.
        Relu,
        /// GELU in its tanh form.
        GeluTanh,
        /// GELU in its exact form.
        GeluErf,
        /// `x · sigmoid(x)`.
        Silu,
        /// The logistic function.
        Sigmoid,
        /// The hyperbolic tangent.
        Tanh,
    }
}

word_enum! {
    /// A function of one element.
    pub enum UnaryKind {
        /// `x`.
        Identity,
        /// `max(x, 0)`.
        Relu,
        /// GELU in its tanh form.
        GeluTanh,
        /// GELU in its exact form.
        GeluErf,
        /// `x · sigmoid(x)`.
        Silu,
        /// The logistic function.
        Sigmoid,
        /// The hyperbolic tangent.
        Tanh,
        /// `e^x`.
        Exp,
        /// The natural logarithm.
        Log,
        /// The square root.
        Sqrt,
        /// `1 / sqrt(x)`.
        Rsqrt,
        /// The sine.
        Sin,
        /// The cosine.
        Cos,
        /// `x` above 0, `e^x - 1` below.
        Elu,
        /// `-x`.
        Neg,
        /// `x²`.
        Square,
        /// `|x|`.
        Abs,
        /// `x + scalar`.
        AddScalar,
        /// `x - scalar`.
        SubScalar,
        /// `x · scalar`.
        MulScalar,
        /// `x / scalar`.
        DivScalar,
        /// `x^scalar`.
        PowScalar,
        /// `scalar - x`.
        RsubScalar,
        /// `scalar / x`.
        RdivScalar,
    }
}

params! {
    /// The parameters of `unary`.
    pub struct UnaryParams {
        /// Number of elements.
        pub n: usize,
        /// The function.
        pub kind: UnaryKind,
        /// The second operand of the scalar kinds.
        pub scalar: f32,
    }
}

params! {
    /// The parameters of `unary_grad`.
    pub struct UnaryGradParams {
        /// Number of elements.
        pub n: usize,
        /// The function whose gradient is meant.
        pub kind: UnaryKind,
        /// The second operand of the scalar kinds.
        pub scalar: f32,
        /// Whether dx is added to instead of overwritten.
        pub accumulate: bool,
    }
}

impl Activation {
    /// The same function as a kind of `unary`.
    pub fn kind(self) -> UnaryKind {
        match self {
            Activation::None => UnaryKind::Identity,
            Activation::Relu => UnaryKind::Relu,
            Activation::GeluTanh => UnaryKind::GeluTanh,
            Activation::GeluErf => UnaryKind::GeluErf,
            Activation::Silu => UnaryKind::Silu,
            Activation::Sigmoid => UnaryKind::Sigmoid,
            Activation::Tanh => UnaryKind::Tanh,
        }
    }
}

/// Elements per share boundary: a cache line.
const LINE: usize = 16;

/// `y[i] = f(x[i])`, computed in `f64`.
pub fn unary_reference(y: &mut [f32], x: &[f32], params: UnaryParams) {
    for i in 0..params.n {
        y[i] = exact::value(params.kind, f64::from(params.scalar), f64::from(x[i])) as f32;
    }
}

/// `dx[i] = dy[i] · f'(x[i])`, computed in `f64`; added to dx if `accumulate`.
pub fn unary_grad_reference(dx: &mut [f32], x: &[f32], dy: &[f32], params: UnaryGradParams) {
    for i in 0..params.n {
        let slope = exact::slope(params.kind, f64::from(params.scalar), f64::from(x[i]));
        let before = if params.accumulate { f64::from(dx[i]) } else { 0.0 };
        dx[i] = (before + f64::from(dy[i]) * slope) as f32;
    }
}

/// The fast version of [`unary_reference`].
pub fn unary(y: &mut [f32], x: &[f32], params: UnaryParams, launch: &mut Launch<'_>) {
    let (y, x) = (&mut y[..params.n], &x[..params.n]);
    launch
        .for_each_part(y, LINE, |first, y| apply(params.kind, params.scalar, y, &x[first..first + y.len()]));
}

/// The fast version of [`unary_grad_reference`].
pub fn unary_grad(dx: &mut [f32], x: &[f32], dy: &[f32], params: UnaryGradParams, launch: &mut Launch<'_>) {
    let (dx, x, dy) = (&mut dx[..params.n], &x[..params.n], &dy[..params.n]);
    launch.for_each_part(dx, LINE, |first, dx| {
        let range = first..first + dx.len();
        apply_grad(params, dx, &x[range.clone()], &dy[range]);
    });
}

/// `out[i] = activation(x[i])` on the calling core.
pub fn activate(activation: Activation, out: &mut [f32], x: &[f32]) {
    apply(activation.kind(), 0.0, out, x);
}

dispatch! {
    /// `x[i] = activation(x[i])` on the calling core.
    pub fn activate_in_place(activation: Activation, x: &mut [f32]) {
        match activation {
            Activation::None => {}
            Activation::Relu => map_in_place(x, math::relu),
            Activation::GeluTanh => map_in_place(x, math::gelu_tanh),
            Activation::GeluErf => map_in_place(x, math::gelu_erf),
            Activation::Silu => map_in_place(x, math::silu),
            Activation::Sigmoid => map_in_place(x, math::sigmoid),
            Activation::Tanh => map_in_place(x, math::tanh),
        }
    }
}

dispatch! {
    /// `dy[i] = dy[i] · activation'(x[i])` on the calling core.
    pub fn slope_in_place(activation: Activation, dy: &mut [f32], x: &[f32]) {
        match activation {
            Activation::None => {}
            Activation::Relu => scale_in_place(dy, x, relu_slope),
            Activation::GeluTanh => scale_in_place(dy, x, math::gelu_tanh_slope),
            Activation::GeluErf => scale_in_place(dy, x, math::gelu_erf_slope),
            Activation::Silu => scale_in_place(dy, x, math::silu_slope),
            Activation::Sigmoid => scale_in_place(dy, x, math::sigmoid_slope),
            Activation::Tanh => scale_in_place(dy, x, math::tanh_slope),
        }
    }
}

dispatch! {
    /// `y[i] = f(x[i])` on the calling core.
    pub(crate) fn apply(kind: UnaryKind, scalar: f32, y: &mut [f32], x: &[f32]) {
        match kind {
            UnaryKind::Identity => y.copy_from_slice(x),
            UnaryKind::Relu => map(y, x, math::relu),
            UnaryKind::GeluTanh => map(y, x, math::gelu_tanh),
            UnaryKind::GeluErf => map(y, x, math::gelu_erf),
            UnaryKind::Silu => map(y, x, math::silu),
            UnaryKind::Sigmoid => map(y, x, math::sigmoid),
            UnaryKind::Tanh => map(y, x, math::tanh),
            UnaryKind::Exp => map(y, x, math::exp),
            UnaryKind::Log => map(y, x, math::log),
            UnaryKind::Sqrt => map(y, x, |x| x.sqrt()),
            UnaryKind::Rsqrt => map(y, x, |x| 1.0 / x.sqrt()),
            UnaryKind::Sin => map(y, x, |x| f64::from(x).sin() as f32),
            UnaryKind::Cos => map(y, x, |x| f64::from(x).cos() as f32),
            UnaryKind::Elu => map(y, x, |x| if x > 0.0 { x } else { math::expm1_negative(x) }),
            UnaryKind::Neg => map(y, x, |x| -x),
            UnaryKind::Square => map(y, x, |x| x * x),
            UnaryKind::Abs => map(y, x, |x| x.abs()),
            UnaryKind::AddScalar => map(y, x, |x| x + scalar),
            UnaryKind::SubScalar => map(y, x, |x| x - scalar),
            UnaryKind::MulScalar => map(y, x, |x| x * scalar),
            UnaryKind::DivScalar => map(y, x, |x| x / scalar),
            UnaryKind::PowScalar if scalar == 2.0 => map(y, x, |x| x * x),
            UnaryKind::PowScalar if scalar == 3.0 => map(y, x, |x| x * x * x),
            UnaryKind::PowScalar => map(y, x, |x| power(x, scalar)),
            UnaryKind::RsubScalar => map(y, x, |x| scalar - x),
            UnaryKind::RdivScalar => map(y, x, |x| scalar / x),
        }
    }
}

dispatch! {
    /// `dx[i] = dy[i] · f'(x[i])` on the calling core, added to dx if `accumulate`.
    pub(crate) fn apply_grad(params: UnaryGradParams, dx: &mut [f32], x: &[f32], dy: &[f32]) {
        let (scalar, acc) = (params.scalar, params.accumulate);
        match params.kind {
            UnaryKind::Identity | UnaryKind::AddScalar | UnaryKind::SubScalar => scale(dx, x, dy, acc, |_| 1.0),
            UnaryKind::Relu => scale(dx, x, dy, acc, relu_slope),
            UnaryKind::GeluTanh => scale(dx, x, dy, acc, math::gelu_tanh_slope),
            UnaryKind::GeluErf => scale(dx, x, dy, acc, math::gelu_erf_slope),
            UnaryKind::Silu => scale(dx, x, dy, acc, math::silu_slope),
            UnaryKind::Sigmoid => scale(dx, x, dy, acc, math::sigmoid_slope),
            UnaryKind::Tanh => scale(dx, x, dy, acc, math::tanh_slope),
            UnaryKind::Exp => scale(dx, x, dy, acc, math::exp),
            UnaryKind::Log => scale(dx, x, dy, acc, |x| 1.0 / x),
            UnaryKind::Sqrt => scale(dx, x, dy, acc, |x| 0.5 / x.sqrt()),
            UnaryKind::Rsqrt => scale(dx, x, dy, acc, |x| -0.5 / (x * x.sqrt())),
            UnaryKind::Sin => scale(dx, x, dy, acc, |x| f64::from(x).cos() as f32),
            UnaryKind::Cos => scale(dx, x, dy, acc, |x| -f64::from(x).sin() as f32),
            UnaryKind::Elu => scale(dx, x, dy, acc, |x| if x > 0.0 { 1.0 } else { math::exp(x) }),
            UnaryKind::Neg | UnaryKind::RsubScalar => scale(dx, x, dy, acc, |_| -1.0),
            UnaryKind::Square => scale(dx, x, dy, acc, |x| 2.0 * x),
            UnaryKind::Abs => scale(dx, x, dy, acc, sign),
            UnaryKind::MulScalar => scale(dx, x, dy, acc, |_| scalar),
            UnaryKind::DivScalar => scale(dx, x, dy, acc, |_| 1.0 / scalar),
            UnaryKind::PowScalar if scalar == 0.0 => scale(dx, x, dy, acc, |_| 0.0),
            UnaryKind::PowScalar if scalar == 2.0 => scale(dx, x, dy, acc, |x| 2.0 * x),
            UnaryKind::PowScalar if scalar == 3.0 => scale(dx, x, dy, acc, |x| 3.0 * (x * x)),
            UnaryKind::PowScalar => scale(dx, x, dy, acc, |x| scalar * power(x, scalar - 1.0)),
            UnaryKind::RdivScalar => scale(dx, x, dy, acc, |x| -scalar / (x * x)),
        }
    }
}

#[inline(always)]
fn map(y: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

#[inline(always)]
fn map_in_place(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

#[inline(always)]
fn scale(dx: &mut [f32], x: &[f32], dy: &[f32], accumulate: bool, slope: impl Fn(f32) -> f32) {
    let elements = dx.iter_mut().zip(x).zip(dy);
    if accumulate {
        elements.for_each(|((dx, &x), &dy)| *dx += dy * slope(x));
    } else {
        elements.for_each(|((dx, &x), &dy)| *dx = dy * slope(x));
    }
}

#[inline(always)]
fn scale_in_place(dy: &mut [f32], x: &[f32], slope: impl Fn(f32) -> f32) {
    for (dy, &x) in dy.iter_mut().zip(x) {
        *dy *= slope(x);
    }
}

#[inline(always)]
fn relu_slope(x: f32) -> f32 {
    if x > 0.0 { 1.0 } else { 0.0 }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    let up = if x > 0.0 { 1.0 } else { 0.0 };
    if x < 0.0 { -1.0 } else { up }
}

#[inline(always)]
fn power(x: f32, exponent: f32) -> f32 {
    f64::from(x).powf(f64::from(exponent)) as f32
}

fn call_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    unary_reference(y, call.read(0), UnaryParams::from_words(call.params));
}

fn call_fast(call: &mut Call<'_>) {
    let y = call.write(0);
    unary(y, call.read(0), UnaryParams::from_words(call.params), &mut call.launch);
}

fn call_grad_reference(call: &mut Call<'_>) {
    let dx = call.write(0);
    unary_grad_reference(dx, call.read(0), call.read(1), UnaryGradParams::from_words(call.params));
}

fn call_grad_fast(call: &mut Call<'_>) {
    let dx = call.write(0);
    unary_grad(dx, call.read(0), call.read(1), UnaryGradParams::from_words(call.params), &mut call.launch);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: None,
        work: None,
        name: "unary",
        arguments: |_| names!(x => y),
        fast: call_fast,
        reference: call_reference,
        blocks: |params, cores| by_work(UnaryParams::from_words(params).n, cores),
        workspace: no_workspace,
    },
    Kernel {
        task: None,
        work: None,
        name: "unary_grad",
        arguments: |_| names!(x, dy => dx),
        fast: call_grad_fast,
        reference: call_grad_reference,
        blocks: |params, cores| by_work(UnaryGradParams::from_words(params).n, cores),
        workspace: no_workspace,
    },
];

#[cfg(test)]
mod tests;
