//! Positions as rotations of `[batch, time, heads, dim]`, halves paired.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, RopeScaling, Shape, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct Rotary {
    /// The base of the geometric row of frequencies.
    pub base: f32,
    /// What becomes of the frequencies.
    pub scaling: RopeScaling,
}

impl Rotary {
    /// Frequencies as the base says.
    pub fn new(base: f32) -> Self {
        Rotary { base, scaling: RopeScaling::None }
    }
}

impl Operator for Rotary {
    attributes!("rotary": base, scaling = RopeScaling::None);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let shape = operands.float(0)?;
        if shape.rank() == 4 && shape.last().is_multiple_of(2) {
            return Ok(vec![TensorType::f32(shape.clone())]);
        }
        let wanted = "rotary pairs halves of [batch, time, heads, dim] with even dim";
        operands.wrong(0, wanted, "reshape it to that")
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::pointwise(operands[0], &[3])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("rotary", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::call("rotary", self.attrs().with("inverse", true));
        tasks.single(0, op, dy[0].clone().into_iter().collect());
    }

    /// Turns elements i and i + dim/2 at time t by the angle t · base^(-2i/dim), the frequency scaled.
    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let x = operands[0];
        let dim = x.shape.last();
        let half = dim / 2;
        vec![Tensor::from_fn(&x.shape, |index| {
            let (time, i) = (index[1], index[3]);
            let frequency = f64::from(self.base).powf(-2.0 * (i % half) as f64 / dim as f64);
            let angle = time as f64 * self.scaling.scaled(frequency);
            let partner = x.at(&[index[0], index[1], index[2], (i + half) % dim]);
            let sign = if i < half { -1.0 } else { 1.0 };
            x.at(index) * angle.cos() + sign * partner * angle.sin()
        })]
    }
}
