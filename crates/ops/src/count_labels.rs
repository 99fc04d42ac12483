//! How many labels are not the ignored one, as a float; or the sum of their weights. Weights get no gradient.

use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, attributes,
};

use crate::cross_entropy::sum_losses;
use crate::integer;

/// See the head of the file.
pub struct CountLabels {
    /// The label not counted.
    pub ignore: i64,
}

impl Operator for CountLabels {
    attributes!("count_labels": ignore);

    fn slots(&self) -> Slots {
        Slots { needed: &["labels"], optional: &["weights"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.index(0)?;
        if operands.len() == 2 && operands.float(1)?.rank() != 1 {
            return operands.wrong(1, "there is one weight a class", "reshape it to [classes]");
        }
        Ok(vec![TensorType::f32([])])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let sum = (0..operands[0].rank()).collect();
        let mut cuts =
            Cuts { results: vec![Vec::new()], sum, single: true, ..Cuts::pointwise(operands[0], &[]) };
        if operands.len() == 2 {
            cuts.operands.push(vec![None]);
            cuts.shared = vec![1];
        }
        cuts
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        let weights = operands.get(1)?;
        Some(IndexBound { slot: 0, below: weights.last(), ignore: Some(self.ignore) })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        if tasks.rule().operands.len() == 1 {
            return tasks.plain(TaskOp::call("count_labels", self.attrs()));
        }
        let (shape, map) = (tasks.operand(0).1.global().shape, tasks.rule().operands[0].clone());
        let name = format!("{}.rows", tasks.layer());
        let weights = tasks.temp(&name, &TensorType::f32(shape), map);
        let reads = tasks.reads();
        tasks.emit(TaskOp::call("label_weights", self.attrs()), reads, vec![weights.clone()]);
        sum_losses(tasks, weights);
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let counted = operands[0].data.iter().filter(|&&label| label != self.ignore as f64);
        let weight = |&label: &f64| operands.get(1).map_or(1.0, |weights| weights.data[integer(label)]);
        vec![Tensor::scalar(counted.map(weight).sum())]
    }
}
