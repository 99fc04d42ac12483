//! Rows added to the places that an index names along one axis, which takes the place of the index's dimensions: what a
//! `Gather` does, backward. For axis 1 and an index `[a, b]`, `y[i, r, j]` is the sum of `x[i, a, b, j]` over all places
//! with `index[a, b] = r`, in ascending order inside each reduction block.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

use crate::gather::{axes, index_leaves};
use crate::integer;

/// See the head of the file.
pub struct ScatterAdd {
    /// The axis of the result that rows are added along.
    pub axis: usize,
    /// Its extent.
    pub size: usize,
}

impl Operator for ScatterAdd {
    attributes!("scatter_add" (input, index): axis, size);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let ScatterAdd { axis, size } = *self;
        let (input, index) = (operands.float(0)?, operands.index(1)?);
        let end = axis + index.rank();
        if input.rank() < end || input.dims()[axis..end] != *index.dims() {
            let wanted = format!("input {input} must have its extents from axis {axis} on");
            return operands.wrong(1, wanted, "reshape it, or choose another axis");
        }
        let dims = [&input.dims()[..axis], &[size], &input.dims()[end..]].concat();
        let shape = Shape::new(dims);
        if size == 0 || !shape.is_bounded() || shape.rank() > phalanx_ir::MAX_RANK {
            let wanted = format!("size={size} along axis {axis} gives no tensor");
            return operands.wrong(0, wanted, "use a positive size, or fewer dimensions");
        }
        Ok(vec![TensorType::f32(shape)])
    }

    /// A cut of the index gives partial sums.
    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        let rank = operands[1].rank();
        let [before, index, after] = axes(self.axis, rank, results[0].rank() - 1);
        let input = [&before[..], &index, &after].concat();
        let result = [&before[..], &[None], &after].concat();
        let sum = index.iter().flatten().copied().collect();
        Cuts { shared: vec![1], sum, ..Cuts::new(vec![input, index], vec![result]) }
    }

    fn index_bound(&self, _operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 1, below: self.size, ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let leaves = index_leaves(tasks, self.axis, true);
        let attrs = Attrs::new().with("axis", self.axis).with("leaves", leaves);
        let (reads, y) = (vec![tasks.read(1), tasks.read(0)], tasks.result(0));
        tasks.emit(TaskOp::call("scatter_add", attrs), reads, vec![y]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let reads = dy[0].clone().into_iter().chain([tasks.read(1)]).collect();
        tasks.single(0, TaskOp::call("gather_rows", Attrs::new().with("axis", self.axis)), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (input, index) = (operands[0], operands[1]);
        let (rank, shape) = (index.shape.rank(), &results[0]);
        let mut sums = Tensor::new(shape.clone(), vec![0.0; shape.elements()]);
        Tensor::from_fn(&input.shape, |at| {
            let row = integer(index.at(&at[self.axis..self.axis + rank]));
            let place = [&at[..self.axis], &[row], &at[self.axis + rank..]].concat();
            let place = place.iter().zip(shape.dims()).fold(0, |sum, (at, extent)| sum * extent + at);
            sums.data[place] += input.at(at);
            0.0
        });
        vec![sums]
    }
}
