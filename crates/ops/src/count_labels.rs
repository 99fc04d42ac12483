//! How many labels are not the ignored one, as a float.

use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

/// See the head of the file.
pub struct CountLabels {
    /// The label not counted.
    pub ignore: i64,
}

impl Operator for CountLabels {
    attributes!("count_labels" (labels): ignore);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.index(0).map(|_| vec![TensorType::f32([])])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let sum = (0..operands[0].rank()).collect();
        Cuts { results: vec![Vec::new()], sum, single: true, ..Cuts::pointwise(operands[0], &[]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("count_labels", self.attrs()));
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let counted = operands[0].data.iter().filter(|&&label| label != self.ignore as f64);
        vec![Tensor::scalar(counted.count() as f64)]
    }
}
