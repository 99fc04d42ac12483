//! Sums of squared deviations of each channel from a center, over all other dimensions: n times the variance if the center
//! is the mean.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

/// See the head of the file.
pub struct SquaredDeviations;

impl Operator for SquaredDeviations {
    attributes!("squared_deviations" (input, center):);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let shape = operands.float(0)?;
        if shape.rank() < 2 {
            return operands.wrong(0, "needs [batch, …, channels]", "reshape it");
        }
        operands.inner_weight(1, 1)?;
        Ok(vec![TensorType::f32(operands.shape(1).clone())])
    }

    /// A cut of the batch gives partial sums; between batch and channels all is whole.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let between = vec![None; operands[0].rank() - 2];
        let input = [vec![Some(0)], between, vec![Some(1)]].concat();
        Cuts { sum: vec![0], ..Cuts::new(vec![input, vec![Some(1)]], vec![vec![Some(1)]]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let attrs = task_attrs(tasks);
        tasks.plain(TaskOp::call("squared_deviations", attrs));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let attrs = task_attrs(tasks);
        let reads = [tasks.read_again(0), tasks.read_again(1)].into_iter().chain(dy[0].clone()).collect();
        tasks.joint(TaskOp::call("squared_deviations_grad", attrs), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let [x, center] = operands else { unreachable!("it has two operands") };
        let mut sums = vec![0.0; results[0].elements()];
        for (at, x) in x.data.iter().enumerate() {
            let channel = at % sums.len();
            sums[channel] += (x - center.data[channel]).powi(2);
        }
        vec![Tensor::new(results[0].clone(), sums)]
    }
}

fn task_attrs(tasks: &mut dyn LayerTasks) -> Attrs {
    let ty = tasks.operand(0).1.clone();
    Attrs::new().with("leaves", tasks.row_leaves(&ty))
}
