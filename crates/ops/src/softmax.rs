//! Softmax along one axis.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

use crate::attention::exponential_weights;

/// See the head of the file.
pub struct Softmax {
    /// The axis that sums to one.
    pub axis: usize,
}

impl Operator for Softmax {
    attributes!("softmax": axis);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.axis(0, self.axis)?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::pointwise(operands[0], &[self.axis])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("softmax", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let reads = [tasks.read_result(0)].into_iter().chain(dy[0].clone()).collect();
        tasks.single(0, TaskOp::call("softmax_grad", self.attrs()), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let (x, axis) = (operands[0], self.axis);
        vec![Tensor::from_fn(&x.shape, |index| {
            let mut other = index.to_vec();
            let mut element = |k| {
                other[axis] = k;
                x.at(&other)
            };
            let row: Vec<f64> = (0..x.shape.dims()[axis]).map(&mut element).collect();
            exponential_weights(&row)[index[axis]]
        })]
    }
}
