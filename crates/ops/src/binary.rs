//! An element-wise function of two tensors, stretched to a common shape.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Binary, Cuts, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, Unary,
};

/// See the head of the file.
pub struct BinaryOp(pub Binary);

impl Operator for BinaryOp {
    fn names() -> Vec<&'static str> {
        Binary::ALL.iter().map(|kind| kind.word()).collect()
    }

    fn parse(name: &str, _attrs: &mut Attrs) -> Result<Self, String> {
        name.parse().map(BinaryOp).map_err(|()| format!("unknown operator `{name}`"))
    }

    fn name(&self) -> &'static str {
        self.0.word()
    }

    fn attrs(&self) -> Attrs {
        Attrs::new()
    }

    fn slots(&self) -> Slots {
        Slots::exactly(&["lhs", "rhs"])
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (lhs, rhs) = (operands.float(0)?, operands.float(1)?);
        match lhs.broadcast(rhs) {
            Some(shape) => Ok(vec![TensorType::f32(shape)]),
            None => operands.wrong(
                1,
                format!("it must stretch with lhs {lhs}: extents equal or 1 from the innermost on"),
                "reshape or transpose one of them",
            ),
        }
    }

    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        let linear = matches!(self.0, Binary::Add | Binary::Sub);
        Cuts { linear, ..Cuts::stretched(operands, results[0]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::Binary { kind: self.0 });
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = &dy[0] else { return };
        for side in 0..2 {
            if !tasks.wants(side) {
                continue;
            }
            let full = match (self.0, side) {
                (Binary::Add, _) | (Binary::Sub, 0) => dy.clone(),
                _ => self.full(tasks, side, dy),
            };
            tasks.unstretch(side, full);
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let [a, b] = [0, 1].map(|slot| operands[slot].at_stretched(index));
            match self.0 {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                Binary::Max => a.max(b),
                Binary::Min => a.min(b),
            }
        })]
    }
}

impl BinaryOp {
    /// The gradient of one operand, in the result's shape.
    fn full(&self, tasks: &mut dyn LayerTasks, side: usize, dy: &Operand) -> Operand {
        let kind = self.0;
        let full = tasks.stretched_grad(side, dy);
        let (op, reads) = match kind {
            Binary::Sub => (TaskOp::Unary { kind: Unary::Neg }, vec![dy.clone()]),
            _ => {
                let (a, b) = (tasks.read_again(0), tasks.read_again(1));
                // The gradient of a numerator does not look at it; naming the denominator twice keeps it from waiting
                // for the numerator.
                let same = tasks.operand(0).1 == tasks.operand(1).1;
                let a = if kind == Binary::Div && side == 0 && same { b.clone() } else { a };
                (TaskOp::BinaryGrad { kind, side }, vec![a, b, dy.clone()])
            }
        };
        tasks.emit(op, reads, vec![full.clone()]);
        full
    }
}
