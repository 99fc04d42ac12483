//! Another element type.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, DType, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct Cast {
    /// The element type of the result.
    pub to: DType,
}

impl Operator for Cast {
    attributes!("cast": to);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::new(self.to, operands.shape(0).clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::pointwise(operands[0], &[])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("cast", Attrs::new()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        dy[0].iter().for_each(|dy| tasks.give(0, dy.buffer));
    }

    /// Between floats the value stays unrounded, to an integer it is truncated, to a truth value tested for non-zero.
    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        vec![operands[0].map(|x| match self.to {
            DType::F32 | DType::Bf16 => x,
            DType::I32 | DType::I64 => x.trunc(),
            DType::Bool => f64::from(u8::from(x != 0.0)),
        })]
    }
}
