//! Elements zeroed at random, the others scaled up; counter-based on the element's index.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

/// See the head of the file.
pub struct Dropout {
    /// The probability of zero.
    pub rate: f32,
}

impl Operator for Dropout {
    attributes!("dropout": rate);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::pointwise(operands[0], &[])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let op = TaskOp::Dropout { mask: tasks.mask(self.rate), accumulate: false };
        let (x, hyper) = (tasks.read(0), tasks.hyper());
        let y = tasks.result(0);
        tasks.emit(op, vec![x, hyper], vec![y]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::Dropout { mask: tasks.mask(self.rate), accumulate: false };
        let hyper = tasks.hyper();
        tasks.single(0, op, dy[0].clone().into_iter().chain([hyper]).collect());
    }

    /// The identity, which is its expected value.
    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        vec![operands[0].clone()]
    }
}
