//! Elements joined along some axes.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Apart, Cuts, LayerTasks, OpError, Operands, Operator, Part, Reduce, Shape, Tensor, TensorType, Unary,
    attributes,
};

use crate::UnaryOp;

/// See the head of the file.
pub struct ReduceOp {
    /// What becomes of them.
    pub kind: Reduce,
    /// The axes that disappear, ascending.
    pub axes: Vec<usize>,
    /// Reduced axes stay with extent 1.
    pub keep: bool,
}

impl Operator for ReduceOp {
    attributes!("reduce": kind, axes, keep = false);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (shape, axes) = (operands.float(0)?, &self.axes);
        if !axes.is_sorted_by(|a, b| a < b) || axes.iter().any(|&axis| axis >= shape.rank()) {
            let text = Shape::new(&axes[..]);
            let wanted = format!("axes={text} must ascend below its rank {}", shape.rank());
            return operands.wrong(0, wanted, "list each axis once, in order");
        }
        let dims = shape.dims().iter().enumerate();
        let dims = dims.filter_map(|(axis, &extent)| match axes.contains(&axis) {
            true => self.keep.then_some(1),
            false => Some(extent),
        });
        Ok(vec![TensorType::f32(Shape::new(dims.collect::<Vec<_>>()))])
    }

    /// A cut of a summed dimension gives partial sums; a mean or largest element needs its dimensions whole.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let axes = &self.axes;
        let whole: &[usize] = if self.kind == Reduce::Sum { &[] } else { axes };
        let cuts = Cuts::pointwise(operands[0], whole);
        let input = &cuts.operands[0];
        let sum = axes.iter().filter_map(|&dim| input[dim]).collect();
        let kept = (0..input.len()).filter(|dim| self.keep || !axes.contains(dim));
        let result = kept.map(|dim| if axes.contains(&dim) { None } else { input[dim] }).collect();
        Cuts { results: vec![result], sum, ..cuts }
    }

    /// A mean is a scaled sum.
    fn apart(&self, operands: &[&Shape]) -> Option<Apart> {
        if self.kind != Reduce::Mean {
            return None;
        }
        let count: usize = self.axes.iter().map(|&axis| operands[0].dims()[axis]).product();
        let sum = ReduceOp { kind: Reduce::Sum, axes: self.axes.clone(), keep: self.keep }.into();
        let scale = UnaryOp(Unary::MulScalar(1.0 / count as f32)).into();
        Some(Apart { sum, operands: 1, after: vec![Part { op: scale, operand: None, word: "scaled" }] })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let (x, batch) = (tasks.read(0), tasks.operand_batch(0));
        let (x, op) = tasks.sum_task(self.kind, x, &self.axes, batch);
        let y = tasks.result(0);
        tasks.emit(op, vec![x], vec![y]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let attrs = Attrs::new().with("kind", self.kind).with_list("axes", &self.axes);
        let op = TaskOp::call("reduce_grad", attrs);
        let reads = match self.kind {
            Reduce::Max => vec![tasks.read_again(0), tasks.read_result(0), dy],
            // A sum's gradient does not look at the values; naming dy keeps them from living longer.
            Reduce::Sum | Reduce::Mean => vec![dy.clone(), dy.clone(), dy],
        };
        tasks.single(0, op, reads);
    }

    /// The result may keep the reduced axes with extent 1 or not: the order of its elements is the same.
    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let x = operands[0];
        let dims = x.shape.dims();
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); results[0].elements()];
        Tensor::from_fn(&x.shape, |index| {
            let kept = (0..dims.len()).filter(|axis| !self.axes.contains(axis));
            let position = kept.fold(0, |position, axis| position * dims[axis] + index[axis]);
            groups[position].push(x.at(index));
            0.0
        });
        let join = |group: &Vec<f64>| match self.kind {
            Reduce::Sum => group.iter().sum(),
            Reduce::Mean => group.iter().sum::<f64>() / group.len() as f64,
            Reduce::Max => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        };
        vec![Tensor::new(results[0].clone(), groups.iter().map(join).collect::<Vec<_>>())]
    }
}
