//! Comparisons of two tensors, stretched to a common shape, or of a tensor with a number; the results are truth values.
//! `and` and `or` join truth values in the same way. No gradient passes.

use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    CompareKind, Cuts, DType, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType,
};

/// See the head of the file.
pub struct Compare {
    /// Which comparison.
    pub kind: CompareKind,
    /// The right side, if it is a number; rounded to f32 for a tensor of floats.
    pub scalar: Option<f64>,
}

impl Operator for Compare {
    fn names() -> Vec<&'static str> {
        CompareKind::ALL.iter().map(|kind| kind.word()).collect()
    }

    fn parse(name: &str, attrs: &mut Attrs) -> Result<Self, String> {
        let kind = name.parse().map_err(|()| format!("unknown operator `{name}`"))?;
        Ok(Compare { kind, scalar: attrs.take_if("scalar")? })
    }

    fn name(&self) -> &'static str {
        self.kind.word()
    }

    fn attrs(&self) -> Attrs {
        self.scalar.iter().fold(Attrs::new(), |attrs, scalar| attrs.with("scalar", scalar))
    }

    fn slots(&self) -> Slots {
        Slots::exactly(if self.scalar.is_some() { &["lhs"] } else { &["lhs", "rhs"] })
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (lhs, dtype) = (operands.shape(0), operands.dtype(0));
        if self.kind.is_logical() && (dtype != DType::Bool || self.scalar.is_some()) {
            return operands.wrong(0, "`and` and `or` join two tensors of bool", "insert `cast to=bool`");
        }
        if dtype == DType::Bf16 {
            return operands.wrong(0, "bf16 is for storage", "insert `cast to=f32` before it");
        }
        if let Some(scalar) = self.scalar {
            if dtype != DType::F32 && scalar.fract() != 0.0 {
                let wanted = format!("integers are compared with an integer, not with {scalar}");
                return operands.wrong(0, wanted, "round the scalar, or insert `cast to=f32`");
            }
            return Ok(vec![TensorType::new(DType::Bool, lhs.clone())]);
        }
        if operands.dtype(1) != dtype {
            return operands.wrong(
                1,
                format!("it must be {dtype} like lhs"),
                format!("insert `cast to={dtype}`"),
            );
        }
        match lhs.broadcast(operands.shape(1)) {
            Some(shape) => Ok(vec![TensorType::new(DType::Bool, shape)]),
            None => operands.wrong(
                1,
                format!("it must stretch with lhs {lhs}: extents equal or 1 from the innermost on"),
                "reshape or transpose one of them",
            ),
        }
    }

    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        Cuts::stretched(operands, results[0])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("compare", self.attrs().with("kind", self.kind)));
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let lhs = operands[0].at_stretched(index);
            let rhs = match self.scalar {
                // Only floats are compared with a fraction, which the nearest float stands for.
                Some(scalar) if scalar.fract() != 0.0 => f64::from(scalar as f32),
                Some(scalar) => scalar,
                None => operands[1].at_stretched(index),
            };
            f64::from(u8::from(self.kind.holds(lhs, rhs)))
        })]
    }
}
