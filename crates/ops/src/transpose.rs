//! Dimensions reordered.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes, each,
};

/// See the head of the file.
pub struct Transpose {
    /// Output dimension i is input dimension perm\[i\].
    pub perm: Vec<usize>,
}

impl Operator for Transpose {
    attributes!("transpose": perm);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let input = operands.ty(0);
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..input.shape.rank()) {
            let (text, rank) = (Shape::new(&self.perm[..]), input.shape.rank());
            let wanted = format!("perm={text} must name each of its {rank} dimensions once");
            return operands.wrong(0, wanted, "write a permutation");
        }
        let dims: Vec<_> = self.perm.iter().map(|&axis| input.shape.dims()[axis]).collect();
        Ok(vec![TensorType::new(input.dtype, Shape::new(dims))])
    }

    fn cuts(&self, _operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let input = self.inverse().into_iter().map(Some).collect();
        Cuts { linear: true, exact: true, ..Cuts::new(vec![input], vec![each(0..self.perm.len())]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("transpose", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::call("transpose", Transpose { perm: self.inverse() }.attrs());
        tasks.single(0, op, dy[0].clone().into_iter().collect());
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let from: Vec<usize> = self.inverse().into_iter().map(|dim| index[dim]).collect();
            operands[0].at(&from)
        })]
    }
}

impl Transpose {
    fn inverse(&self) -> Vec<usize> {
        let mut inverse = vec![0; self.perm.len()];
        self.perm.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
        inverse
    }
}
