//! Functions of one element: `unary` and its gradient.
//!
//! `unary` reads `x[n]`, writes `y[n]`. `unary_grad` reads `x[n]` (the input of the forward) and `dy[n]`, writes `dx[n]` and adds
//! to it if `accumulate`; the slope of an activation is taken at x rounded to `bf16` if `rounded`. At a
//! kink it is what [`Unary`] says, else 0.

mod exact;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Activation, Unary};

use crate::bf16::rounded;
use crate::spmd::{Launch, by_work};
use crate::{Kernel, Sizes, Work, dispatch, math, params, signature};

params! {
    /// The parameters of `unary`.
    pub struct UnaryParams {
        /// Number of elements.
        pub n: usize,
        /// The function.
        pub kind: Unary,
    }
}

params! {
    /// The parameters of `unary_grad`.
    pub struct UnaryGradParams {
        /// Number of elements.
        pub n: usize,
        /// The function whose gradient is meant.
        pub kind: Unary,
        /// Whether dx is added to instead of overwritten.
        pub accumulate: bool,
        /// Whether the slope, of an activation, is taken at x rounded to `bf16`.
        pub rounded: bool,
    }
}

/// Elements per share boundary: a cache line.
const LINE: usize = 16;

/// `y[i] = f(x[i])`, computed in `f64`.
pub fn unary_reference(y: &mut [f32], x: &[f32], params: UnaryParams) {
    for i in 0..params.n {
        y[i] = exact::value(params.kind, f64::from(x[i])) as f32;
    }
}

/// `dx[i] = dy[i] · f'(x[i])`, computed in `f64`; added to dx if `accumulate`.
pub fn unary_grad_reference(dx: &mut [f32], x: &[f32], dy: &[f32], params: UnaryGradParams) {
    for i in 0..params.n {
        let point = if params.rounded { rounded(x[i]) } else { x[i] };
        let slope = exact::slope(params.kind, f64::from(point));
        let before = if params.accumulate { f64::from(dx[i]) } else { 0.0 };
        dx[i] = (before + f64::from(dy[i]) * slope) as f32;
    }
}

/// The fast version of [`unary_reference`].
pub fn unary(y: &mut [f32], x: &[f32], params: UnaryParams, launch: &mut Launch<'_>) {
    let (y, x) = (&mut y[..params.n], &x[..params.n]);
    launch.for_each_part(y, LINE, |first, y| apply(params.kind, y, &x[first..first + y.len()]));
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
    apply(Unary::Act(activation), out, x);
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
    pub(crate) fn apply(kind: Unary, y: &mut [f32], x: &[f32]) {
        match kind {
            Unary::Identity | Unary::Act(Activation::None) => y.copy_from_slice(x),
            Unary::Act(Activation::Relu) => map(y, x, math::relu),
            Unary::Act(Activation::GeluTanh) => map(y, x, math::gelu_tanh),
            Unary::Act(Activation::GeluErf) => map(y, x, math::gelu_erf),
            Unary::Act(Activation::Silu) => map(y, x, math::silu),
            Unary::Act(Activation::Sigmoid) => map(y, x, math::sigmoid),
            Unary::Act(Activation::Tanh) => map(y, x, math::tanh),
            Unary::Exp => map(y, x, math::exp),
            Unary::Log => map(y, x, math::log),
            Unary::Sqrt => map(y, x, |x| x.sqrt()),
            Unary::Rsqrt => map(y, x, |x| 1.0 / x.sqrt()),
            Unary::Sin => map(y, x, |x| f64::from(x).sin() as f32),
            Unary::Cos => map(y, x, |x| f64::from(x).cos() as f32),
            Unary::Elu(alpha) => map(y, x, |x| if x > 0.0 { x } else { alpha * math::expm1_negative(x) }),
            Unary::Neg => map(y, x, |x| -x),
            Unary::Square => map(y, x, |x| x * x),
            Unary::Abs => map(y, x, |x| x.abs()),
            Unary::AddScalar(scalar) => map(y, x, |x| x + scalar),
            Unary::SubScalar(scalar) => map(y, x, |x| x - scalar),
            Unary::MulScalar(scalar) => map(y, x, |x| x * scalar),
            Unary::DivScalar(scalar) => map(y, x, |x| x / scalar),
            Unary::PowScalar(2.0) => map(y, x, |x| x * x),
            Unary::PowScalar(3.0) => map(y, x, |x| x * x * x),
            Unary::PowScalar(scalar) => map(y, x, |x| power(x, scalar)),
            Unary::Clamp(low, high) => map(y, x, |x| math::clamp(x, low, high)),
            Unary::LeakyRelu(slope) => map(y, x, |x| if x > 0.0 { x } else { slope * x }),
            Unary::Softplus(beta, threshold) => map(y, x, |x| math::softplus(x, beta, threshold)),
            Unary::HardSwish => map(y, x, math::hard_swish),
            Unary::HardSigmoid => map(y, x, math::hard_sigmoid),
            Unary::Erf => map(y, x, math::erf),
        }
    }
}

dispatch! {
    /// `dx[i] = dy[i] · f'(x[i])` on the calling core, added to dx if `accumulate`.
    pub(crate) fn apply_grad(params: UnaryGradParams, dx: &mut [f32], x: &[f32], dy: &[f32]) {
        let acc = params.accumulate;
        match params.kind {
            Unary::Act(activation) if params.rounded => rounded_grad(activation, dx, x, dy, acc),
            Unary::Identity | Unary::Act(Activation::None) | Unary::AddScalar(_) | Unary::SubScalar(_) => {
                scale(dx, x, dy, acc, |_| 1.0)
            }
            Unary::Act(Activation::Relu) => scale(dx, x, dy, acc, relu_slope),
            Unary::Act(Activation::GeluTanh) => scale(dx, x, dy, acc, math::gelu_tanh_slope),
            Unary::Act(Activation::GeluErf) => scale(dx, x, dy, acc, math::gelu_erf_slope),
            Unary::Act(Activation::Silu) => scale(dx, x, dy, acc, math::silu_slope),
            Unary::Act(Activation::Sigmoid) => scale(dx, x, dy, acc, math::sigmoid_slope),
            Unary::Act(Activation::Tanh) => scale(dx, x, dy, acc, math::tanh_slope),
            Unary::Exp => scale(dx, x, dy, acc, math::exp),
            Unary::Log => scale(dx, x, dy, acc, |x| 1.0 / x),
            Unary::Sqrt => scale(dx, x, dy, acc, |x| 0.5 / x.sqrt()),
            Unary::Rsqrt => scale(dx, x, dy, acc, |x| -0.5 / (x * x.sqrt())),
            Unary::Sin => scale(dx, x, dy, acc, |x| f64::from(x).cos() as f32),
            Unary::Cos => scale(dx, x, dy, acc, |x| -f64::from(x).sin() as f32),
            Unary::Elu(alpha) => {
                scale(dx, x, dy, acc, |x| if x > 0.0 { 1.0 } else { alpha * math::exp(x) })
            }
            Unary::Neg => scale(dx, x, dy, acc, |_| -1.0),
            Unary::Square => scale(dx, x, dy, acc, |x| 2.0 * x),
            Unary::Abs => scale(dx, x, dy, acc, sign),
            Unary::MulScalar(scalar) => scale(dx, x, dy, acc, |_| scalar),
            Unary::DivScalar(scalar) => scale(dx, x, dy, acc, |_| 1.0 / scalar),
            Unary::PowScalar(0.0) => scale(dx, x, dy, acc, |_| 0.0),
            Unary::PowScalar(2.0) => scale(dx, x, dy, acc, |x| 2.0 * x),
            Unary::PowScalar(3.0) => scale(dx, x, dy, acc, |x| 3.0 * (x * x)),
            Unary::PowScalar(scalar) => scale(dx, x, dy, acc, |x| scalar * power(x, scalar - 1.0)),
            Unary::Clamp(low, high) => scale(dx, x, dy, acc, |x| inside(x, low, high)),
            Unary::LeakyRelu(slope) => scale(dx, x, dy, acc, |x| if x > 0.0 { 1.0 } else { slope }),
            Unary::Softplus(beta, threshold) => {
                scale(dx, x, dy, acc, |x| math::softplus_slope(x, beta, threshold))
            }
            Unary::HardSwish => scale(dx, x, dy, acc, math::hard_swish_slope),
            Unary::HardSigmoid => scale(dx, x, dy, acc, |x| inside(x, -3.0, 3.0) * (1.0 / 6.0)),
            Unary::Erf => scale(dx, x, dy, acc, math::erf_slope),
        }
    }
}

/// `dx[i] = dy[i] · activation'(x[i])`, the slope at rounded points.
#[inline(always)]
fn rounded_grad(activation: Activation, dx: &mut [f32], x: &[f32], dy: &[f32], accumulate: bool) {
    match activation {
        Activation::None => scale(dx, x, dy, accumulate, |_| 1.0),
        Activation::Relu => scale(dx, x, dy, accumulate, |x| relu_slope(rounded(x))),
        Activation::GeluTanh => scale(dx, x, dy, accumulate, |x| math::gelu_tanh_slope(rounded(x))),
        Activation::GeluErf => scale(dx, x, dy, accumulate, |x| math::gelu_erf_slope(rounded(x))),
        Activation::Silu => scale(dx, x, dy, accumulate, |x| math::silu_slope(rounded(x))),
        Activation::Sigmoid => scale(dx, x, dy, accumulate, |x| math::sigmoid_slope(rounded(x))),
        Activation::Tanh => scale(dx, x, dy, accumulate, |x| math::tanh_slope(rounded(x))),
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

/// 1 strictly between two bounds, else 0.
#[inline(always)]
fn inside(x: f32, low: f32, high: f32) -> f32 {
    let above = if x > low { 1.0 } else { 0.0 };
    if x < high { above } else { 0.0 }
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

impl Kernel for UnaryParams {
    signature!("unary": x => y by unary_reference, unary);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(UnaryParams { n: task.write(0)?.elements(), kind: task.attr("kind")? })
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(if self.kind == Unary::Identity { 0.0 } else { sizes.result(0) }, false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

impl Kernel for UnaryGradParams {
    signature!("unary_grad": x, dy => dx by unary_grad_reference, unary_grad);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (n, kind): (usize, Unary) = (task.write(0)?.elements(), task.attr("kind")?);
        let rounded = task.is("rounded");
        match (rounded, kind) {
            (true, Unary::Act(_)) | (false, _) => {
                Ok(UnaryGradParams { n, kind, accumulate: task.is("accumulate"), rounded })
            }
            _ => Err(format!("only slopes of activations are taken at rounded points, not that of {kind}")),
        }
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let flops = if self.kind == Unary::Identity { 0.0 } else { 2.0 * sizes.result(0) };
        sizes.work(flops, self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

#[cfg(test)]
mod tests;
