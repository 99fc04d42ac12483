//! Root-mean-square normalization of the innermost dimension.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes};

/// See the head of the file.
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

impl Operator for RmsNorm {
    attributes!("rms_norm" (input, gamma): eps);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.inner_weight(1, 1)?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::rows(operands[0], 1, operands.len())
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.norm(TaskOp::call("rms_norm", self.attrs()), 1, &["rstd"]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let (batch, rows) = (tasks.batch_row(1), tasks.row_map(1));
        let by_row = [tasks.read_again(0), tasks.kept(0, rows), dy];
        let [x, rstd, dy] = by_row.map(|operand| tasks.batch_first(operand, batch));
        let gamma = tasks.read_again(1);
        tasks.norm_grad(1, vec![x, gamma, rstd, dy], |sum| {
            TaskOp::call("rms_norm_grad", sum.put(Attrs::new()))
        });
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let (x, gamma, eps) = (operands[0], operands[1], f64::from(self.eps));
        let n = x.shape.last();
        let mut data = Vec::new();
        for row in x.data.chunks(n) {
            let mean_square = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
            data.extend(row.iter().zip(&gamma.data).map(|(x, gamma)| x / (mean_square + eps).sqrt() * gamma));
        }
        vec![Tensor::new(x.shape.clone(), data)]
    }
}
