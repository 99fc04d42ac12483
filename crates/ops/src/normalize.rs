//! Rows normalized by given statistics of the channels: (x - mean) / √(variance + eps) · γ + β.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, attributes, each,
};

/// See the head of the file.
pub struct Normalize {
    /// Added to variances.
    pub eps: f32,
}

impl Operator for Normalize {
    attributes!("normalize": eps);

    fn slots(&self) -> Slots {
        Slots { needed: &["input", "mean", "variance"], optional: &["gamma", "beta"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let shape = operands.float(0)?.clone();
        (1..operands.len()).try_for_each(|slot| operands.inner_weight(slot, 1))?;
        Ok(vec![TensorType::f32(shape)])
    }

    /// Every dimension may be cut; the vectors run along the innermost.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let rank = operands[0].rank();
        let vectors = vec![vec![Some(rank - 1)]; operands.len() - 1];
        Cuts::new([vec![each(0..rank)], vectors].concat(), vec![each(0..rank)])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let attrs = self.task_attrs(tasks);
        tasks.plain(TaskOp::call("normalize", attrs));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let attrs = self.task_attrs(tasks);
        // Beta is of no use to its gradient.
        let vectors = tasks.rule().operands.len().min(4);
        let Some(dy) = dy[0].clone() else { return };
        let batch = tasks.batch_row(1);
        let x = tasks.read_again(0);
        let [x, dy] = [x, dy].map(|operand| tasks.batch_first(operand, batch));
        let given: Vec<_> = (1..vectors).map(|slot| tasks.read_again(slot)).collect();
        let reads = [x].into_iter().chain(given).chain([dy]).collect();
        // Of an image only the batch is cut: its positions are rows like any.
        let is_image = tasks.output(0).1.dims().len() > 3;
        let sum = if is_image { tasks.flat_row_sum(1) } else { tasks.row_sum(1) };
        tasks.norm_grad_by(sum, 1, reads, |sum| TaskOp::call("normalize_grad", sum.put(attrs.clone())));
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let of =
                |slot: usize, default: f64| operands.get(slot).map_or(default, |t| t.at_stretched(index));
            let deviation = of(0, 0.0) - of(1, 0.0);
            deviation / (of(2, 1.0) + f64::from(self.eps)).sqrt() * of(3, 1.0) + of(4, 0.0)
        })]
    }
}

impl Normalize {
    fn task_attrs(&self, tasks: &dyn LayerTasks) -> Attrs {
        let affine = tasks.rule().operands.len() == 5;
        Attrs::new().with("eps", self.eps).with_unless(false, "affine", affine)
    }
}
