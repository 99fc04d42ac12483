//! Whole rows chosen by index along one axis: the index, of any shape, takes the place of the axis. For axis 1 and an index
//! `[a, b]`, `y[i, a, b, j] = x[i, index[a, b], j]`. What `ScatterAdd` undoes.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, MAX_RANK, OpError, Operands, Operator, Shape, Tensor, TensorType,
    attributes, each,
};

use crate::integer;

/// See the head of the file.
pub struct Gather {
    /// The axis.
    pub axis: usize,
}

impl Operator for Gather {
    attributes!("gather_rows" (input, index): axis);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.axis(0, self.axis)?;
        let (input, index) = (operands.float(0)?.dims(), operands.index(1)?.dims());
        let dims = [&input[..self.axis], index, &input[self.axis + 1..]].concat();
        if dims.len() > MAX_RANK {
            let wanted = format!("rows of input {} give more than {MAX_RANK} dimensions", operands.shape(0));
            return operands.wrong(1, wanted, "reshape it");
        }
        Ok(vec![TensorType::f32(Shape::new(dims))])
    }

    /// A cut of the axis gives partial sums, all but one of them zero; a cut of the index wants copies of the input.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let [before, index, after] = axes(self.axis, operands[1].rank(), operands[0].rank() - 1);
        let input = [&before[..], &[Some(0)], &after].concat();
        let result = [&before[..], &index, &after].concat();
        let cuts = Cuts::new(vec![input, index], vec![result]);
        Cuts {
            shared: vec![1],
            wants_copies: Some("an index cut into {} wants {} copies of the input"),
            ..cuts.contracting()
        }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 1, below: operands[0].dims()[self.axis], ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("gather_rows", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let leaves = index_leaves(tasks, self.axis, false);
        let reads = [tasks.read(1)].into_iter().chain(dy[0].clone()).collect();
        let op = TaskOp::call("gather_rows_grad", self.attrs().with("leaves", leaves));
        tasks.single(0, op, reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let rank = operands[1].shape.rank();
        vec![Tensor::from_fn(&results[0], |at| {
            let row = integer(operands[1].at(&at[self.axis..self.axis + rank]));
            operands[0].at(&[&at[..self.axis], &[row], &at[self.axis + rank..]].concat())
        })]
    }
}

/// The axes before the gathered one, of an index of rank `index`, and those after it, if there are so many beside the gathered
/// one, which is 0.
pub(crate) fn axes(axis: usize, index: usize, others: usize) -> [Vec<Option<usize>>; 3] {
    [each(1..axis + 1), each(axis + 1..axis + 1 + index), each(axis + 1 + index..index + others + 1)]
}

/// Leaves of a sum over the dimensions of the index, which stand from `axis` on in result 0, or in operand 0 if it is the one
/// that is scattered.
pub(crate) fn index_leaves(tasks: &mut dyn LayerTasks, axis: usize, scattered: bool) -> usize {
    let ty = if scattered { tasks.operand(0).1.clone() } else { tasks.output(0).1.clone() };
    let rank = tasks.operand(1).1.dims().len();
    match (rank, axis) {
        (0, _) => 1,
        (_, 0) => tasks.flat_leaves(&ty.dims()[..rank]),
        _ => {
            let batch = if scattered { tasks.operand_batch(0) } else { tasks.result_batch() };
            tasks.leaves_along(&ty, &(axis..axis + rank).collect::<Vec<_>>(), batch)
        }
    }
}
