//! Elements chosen by an index along one axis: `y[i, j, k] = x[i, index[i, j, k], k]` for axis 1. The index may be smaller
//! than x along the other axes, and of any extent along this one. Texts call it `gather`.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

use crate::integer;

/// See the head of the file.
pub struct GatherElements {
    /// The axis.
    pub axis: usize,
}

impl Operator for GatherElements {
    attributes!("gather" (input, index): axis);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.axis(0, self.axis)?;
        let (input, index) = (operands.float(0)?, operands.index(1)?);
        let smaller = |(dim, (extent, most)): (usize, (&usize, &usize))| dim == self.axis || extent <= most;
        let pairs = index.dims().iter().zip(input.dims());
        if index.rank() != input.rank() || !pairs.enumerate().all(smaller) {
            let wanted = format!("it must fit into input {input} outside axis {}", self.axis);
            return operands.wrong(1, wanted, "reshape it, or choose another axis");
        }
        Ok(vec![TensorType::f32(index.clone())])
    }

    /// The axis stays whole, and so do axes along which the index has fewer elements.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let (input, index) = (operands[0].dims(), operands[1].dims());
        let is_whole = |&dim: &usize| dim == self.axis || input[dim] != index[dim];
        let whole: Vec<usize> = (0..input.len()).filter(is_whole).collect();
        let dims = Cuts::pointwise(operands[0], &whole).operands.swap_remove(0);
        Cuts { shared: vec![1], ..Cuts::new(vec![dims.clone(); 2], vec![dims]) }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 1, below: operands[0].dims()[self.axis], ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("gather", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let reads = [tasks.read(1)].into_iter().chain(dy[0].clone()).collect();
        tasks.single(0, TaskOp::call("gather_grad", self.attrs()), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let mut from = index.to_vec();
            from[self.axis] = integer(operands[1].at(index));
            operands[0].at(&from)
        })]
    }
}
