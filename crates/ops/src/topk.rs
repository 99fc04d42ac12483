//! The largest elements of each innermost row, in descending order, and where they stand. Of equal ones the first comes
//! first.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, DType, LayerTasks, Op, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

use crate::GatherElements;

/// See the head of the file.
pub struct TopK {
    /// How many of each row.
    pub k: usize,
}

impl Operator for TopK {
    attributes!("topk": k);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (shape, k) = (operands.float(0)?, self.k);
        if shape.rank() == 0 || k == 0 || k > shape.last() {
            let wanted = format!("k={k} elements are taken from each of its rows");
            return operands.wrong(0, wanted, format!("use k in 1..={}", shape.last()));
        }
        let shape = shape.with(shape.rank() - 1, k);
        Ok(vec![TensorType::f32(shape.clone()), TensorType::new(DType::I64, shape)])
    }

    /// Rows may be cut.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let mut cuts = Cuts::rows(operands[0], 1, 1);
        cuts.results.push(cuts.results[0].clone());
        cuts
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let (x, values, indices) = (tasks.read(0), tasks.result(0), tasks.result(1));
        let op = TaskOp::call("topk", self.attrs());
        tasks.emit(op, vec![x], vec![values, indices]);
    }

    /// Each value's gradient goes to where it came from, as that of a gather.
    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let axis = tasks.operand(0).1.dims().len() - 1;
        let (_, attrs) = Op::from(GatherElements { axis }).to_text();
        let reads = [tasks.read_result(1)].into_iter().chain(dy[0].clone()).collect();
        tasks.single(0, TaskOp::call("gather_grad", attrs), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in operands[0].data.chunks(operands[0].shape.last()) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            values.extend(order[..self.k].iter().map(|&at| row[at]));
            indices.extend(order[..self.k].iter().map(|&at| at as f64));
        }
        vec![Tensor::new(results[0].clone(), values), Tensor::new(results[1].clone(), indices)]
    }
}
