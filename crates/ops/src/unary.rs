//! An element-wise function of one tensor.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Activation, Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, Unary,
};

/// See the head of the file.
pub struct UnaryOp(pub Unary);

impl Operator for UnaryOp {
    fn names() -> Vec<&'static str> {
        Unary::all(0.0).into_iter().map(Unary::word).collect()
    }

    fn parse(name: &str, attrs: &mut Attrs) -> Result<Self, String> {
        let unknown = || Err(format!("unknown operator `{name}`"));
        let scalar = |key: &'static str, default| match default {
            Some(default) => attrs.take_or(key, default),
            None => attrs.take(key),
        };
        Unary::from_parts(name, scalar).unwrap_or_else(unknown).map(UnaryOp)
    }

    fn name(&self) -> &'static str {
        self.0.word()
    }

    fn attrs(&self) -> Attrs {
        self.0.written().fold(Attrs::new(), |attrs, (key, scalar)| attrs.with(key, scalar))
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        match self.0 {
            Unary::Softplus(beta, _) if beta == 0.0 || !beta.is_finite() => {
                operands.wrong(0, format!("softplus is divided by beta={beta}"), "use a beta that is not 0")
            }
            _ => Ok(vec![TensorType::f32(operands.float(0)?.clone())]),
        }
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let linear = matches!(self.0, Unary::Identity | Unary::Neg);
        Cuts { linear, exact: linear, ..Cuts::pointwise(operands[0], &[]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        match self.0 {
            Unary::Identity => tasks.alias(),
            kind => tasks.plain(TaskOp::Unary { kind }),
        }
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        match self.0 {
            Unary::Identity => tasks.give(0, dy.buffer),
            kind => {
                let x = tasks.read_again(0);
                // As where a linear layer has the activation.
                let rounded = matches!(kind, Unary::Act(_)) && tasks.precision().rounds();
                tasks.single(0, TaskOp::UnaryGrad { kind, accumulate: false, rounded }, vec![x, dy]);
            }
        }
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        vec![operands[0].map(|x| unary(self.0, x))]
    }
}

/// An activation in double precision.
pub(crate) fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / SQRT_2)),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}

fn unary(unary: Unary, x: f64) -> f64 {
    match unary {
        Unary::Identity => x,
        Unary::Act(act) => activation(act, x),
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
        Unary::AddScalar(s) => x + f64::from(s),
        Unary::SubScalar(s) => x - f64::from(s),
        Unary::MulScalar(s) => x * f64::from(s),
        Unary::DivScalar(s) => x / f64::from(s),
        Unary::PowScalar(s) => x.powf(f64::from(s)),
        Unary::Clamp(low, high) => x.max(f64::from(low)).min(f64::from(high)),
        Unary::Softplus(beta, threshold) => match f64::from(beta) * x {
            t if t > f64::from(threshold) => x,
            t => (t.max(0.0) + (-t.abs()).exp().ln_1p()) / f64::from(beta),
        },
        Unary::HardSwish => x * hard_sigmoid(x),
        Unary::HardSigmoid => hard_sigmoid(x),
        Unary::Erf => erf(x),
    }
}

fn hard_sigmoid(x: f64) -> f64 {
    (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// The error function: 2/√π · e^-x² · Σ 2ⁿ x^(2n+1) / (1·3·5…(2n+1)), whose terms all have one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_tabulated_values() {
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (-2.0, -0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (7.0, 1.0),
        ];
        for (x, expected) in table {
            assert!((erf(x) - expected).abs() < 1e-14, "erf({x}) = {}", erf(x));
        }
    }
}
