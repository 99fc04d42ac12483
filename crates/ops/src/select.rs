//! Elements of one tensor where a condition holds, of another where it does not; all three are stretched to a common shape.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, DType, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct Where;

impl Operator for Where {
    attributes!("where" (condition, lhs, rhs):);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        if operands.dtype(0) != DType::Bool {
            return operands.wrong(0, "a condition is bool", "compare it, or insert `cast to=bool`");
        }
        let (condition, lhs, rhs) = (operands.shape(0), operands.float(1)?, operands.float(2)?);
        let stretch = "extents equal or 1 from the innermost on";
        let Some(both) = lhs.broadcast(rhs) else {
            let wanted = format!("it must stretch with lhs {lhs}: {stretch}");
            return operands.wrong(2, wanted, "reshape or transpose one of them");
        };
        match both.broadcast(condition) {
            Some(shape) => Ok(vec![TensorType::f32(shape)]),
            None => {
                let wanted = format!("it must stretch with {both}: {stretch}");
                operands.wrong(0, wanted, "reshape or transpose it")
            }
        }
    }

    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        Cuts { shared: vec![0], ..Cuts::stretched(operands, results[0]).claimed_by([1, 2, 0]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("where", Attrs::new()));
    }

    /// A gradient goes to the side that was chosen. The other gets zeros, whatever the gradient is.
    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = &dy[0] else { return };
        for side in 0..2 {
            if !tasks.wants(1 + side) {
                continue;
            }
            let full = tasks.stretched_grad(1 + side, dy);
            let op = TaskOp::call("where_grad", Attrs::new().with("side", side));
            let condition = tasks.read_again(0);
            tasks.emit(op, vec![condition, dy.clone()], vec![full.clone()]);
            tasks.unstretch(1 + side, full);
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let [condition, lhs, rhs] = [0, 1, 2].map(|slot| operands[slot].at_stretched(index));
            if condition != 0.0 { lhs } else { rhs }
        })]
    }
}
