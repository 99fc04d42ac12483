//! Stretched to a larger shape.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, LayerTasks, MAX_RANK, Op, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes, each,
};

/// See the head of the file.
pub struct Broadcast {
    /// The larger shape.
    pub shape: Shape,
}

impl Operator for Broadcast {
    attributes!("broadcast": shape);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (from, to) = (operands.float(0)?, &self.shape);
        let legal = to.rank() <= MAX_RANK && to.elements() > 0;
        if legal && from.broadcast(to).as_ref() == Some(to) {
            return Ok(vec![TensorType::f32(to.clone())]);
        }
        let fix = "only extents of 1 can grow, innermost aligned";
        operands.wrong(0, format!("it cannot be stretched to {to}"), fix)
    }

    /// Stretched dimensions are whole in the result.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let (from, to) = (operands[0].rank(), self.shape.rank());
        let result = [vec![None; to - from], each(0..from)].concat();
        Cuts { linear: true, ..Cuts::new(vec![each(0..from)], vec![result]) }
    }

    fn resized(&self, result: &Shape) -> Option<Op> {
        Some(Broadcast { shape: result.clone() }.into())
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("broadcast", Attrs::new()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        dy[0].iter().for_each(|dy| tasks.unstretch(0, dy.clone()));
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| operands[0].at_stretched(index))]
    }
}
