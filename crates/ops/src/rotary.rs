//! Positions as rotations of `[batch, time, heads, dim]`, halves paired. Without the operand `positions`, `[batch, time]`,
//! they count from 0.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, RopeScaling, Shape, Slots, Tensor, TensorType, attributes,
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

    fn slots(&self) -> Slots {
        Slots { needed: &["input"], optional: &["positions"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let shape = operands.float(0)?;
        if shape.rank() != 4 || !shape.last().is_multiple_of(2) {
            let wanted = "rotary pairs halves of [batch, time, heads, dim] with even dim";
            return operands.wrong(0, wanted, "reshape it to that");
        }
        let steps = Shape::new(&shape.dims()[..2]);
        if operands.len() == 2 && *operands.index(1)? != steps {
            let wanted = format!("each of the steps {steps} of input {shape} has a position");
            return operands.wrong(1, wanted, format!("make it {steps}"));
        }
        Ok(vec![TensorType::f32(shape.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let cuts = Cuts::pointwise(operands[0], &[3]);
        let dims = cuts.results[0].clone();
        let counted = if operands.len() == 1 { dims[1].into_iter().collect() } else { Vec::new() };
        let slots = [dims.clone(), dims[..2].to_vec()].into_iter().take(operands.len()).collect();
        Cuts { shared: vec![1], counted, ..Cuts::new(slots, vec![dims]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call(kernel(tasks), self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::call(kernel(tasks), self.attrs().with("inverse", true));
        let positions = (tasks.rule().operands.len() == 2).then(|| tasks.read(1));
        tasks.single(0, op, dy[0].clone().into_iter().chain(positions).collect());
    }

    /// Turns elements i and i + dim/2 at position t by the angle t · base^(-2i/dim), the frequency scaled.
    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let x = operands[0];
        let dim = x.shape.last();
        let half = dim / 2;
        vec![Tensor::from_fn(&x.shape, |index| {
            let i = index[3];
            let time = operands.get(1).map_or(index[1] as f64, |positions| positions.at(&index[..2]));
            let frequency = f64::from(self.base).powf(-2.0 * (i % half) as f64 / dim as f64);
            let angle = time * self.scaling.scaled(frequency);
            let partner = x.at(&[index[0], index[1], index[2], (i + half) % dim]);
            let sign = if i < half { -1.0 } else { 1.0 };
            x.at(index) * angle.cos() + sign * partner * angle.sin()
        })]
    }
}

/// The kernel that takes positions, if there are any, or the one that counts.
fn kernel(tasks: &dyn LayerTasks) -> &'static str {
    if tasks.rule().operands.len() == 2 { "rotary_at" } else { "rotary" }
}
