//! Elements in reverse order along some axes.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

/// See the head of the file.
pub struct Reverse {
    /// The axes.
    pub axes: Vec<usize>,
}

impl Operator for Reverse {
    attributes!("reverse": axes);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        self.axes.iter().try_for_each(|&axis| operands.axis(0, axis))?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    /// The reversed axes stay whole: their blocks would change places.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts { linear: true, exact: true, ..Cuts::pointwise(operands[0], &self.axes) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("reverse", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::call("reverse", self.attrs());
        tasks.single(0, op, dy[0].clone().into_iter().collect());
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let turned = |(dim, &at): (usize, &usize)| match self.axes.contains(&dim) {
                true => results[0].dims()[dim] - 1 - at,
                false => at,
            };
            operands[0].at(&index.iter().enumerate().map(turned).collect::<Vec<_>>())
        })]
    }
}
