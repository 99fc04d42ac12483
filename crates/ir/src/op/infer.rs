//! Shape rules: from operand types to result types, or to an error that says how to mend the operand.

use super::Op;
use crate::{DType, MAX_ELEMENTS, MAX_RANK, OpError, Shape, TensorType};

impl Op {
    /// The types of the results for operands of these types. Leaf operators have their type given, not inferred.
    pub fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let results = self.results(operands)?;
        match results.iter().find(|ty| !ty.shape.is_bounded()) {
            Some(ty) => Err(OpError {
                slot: "result".into(),
                found: ty.to_string(),
                wanted: format!("a tensor has at most {MAX_ELEMENTS} elements"),
                fix: "make an extent smaller".into(),
            }),
            None => Ok(results),
        }
    }

    fn results(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.check_count(operands.len())?;
        let operands = Operands { op: self, types: operands };
        match self {
            Op::Apply(operator) => operator.infer(&operands),
            _ if self.is_leaf() => Ok(Vec::new()),
            _ => {
                let wanted = format!("{} belongs to parallel graphs", self.to_text().0);
                operands.wrong(0, wanted, "leave it to the plan")
            }
        }
    }

    /// Checks a leaf operator with its given type: what is wrong with it and what would mend it.
    pub(crate) fn check_leaf(&self, ty: &TensorType) -> Result<(), (&'static str, &'static str)> {
        match self {
            _ if ty.shape.rank() > MAX_RANK => Err(("has more than 6 dimensions", "reshape it")),
            _ if !ty.shape.is_bounded() => Err(("has too many elements", "make an extent smaller")),
            _ if ty.shape.elements() == 0 => Err(("has no elements", "every extent must be positive")),
            Op::Param(_) | Op::State(_) | Op::Constant(_) if ty.dtype != DType::F32 => {
                Err(("must be f32", "cast its uses instead"))
            }
            Op::Table(table) => table.check(ty),
            _ => Ok(()),
        }
    }

    /// The types of the results of a layer whose results are written as `written`: a leaf's own, if it may have it.
    pub(crate) fn infer_or_keep(
        &self,
        operands: &[TensorType],
        written: &[TensorType],
    ) -> Result<Vec<TensorType>, OpError> {
        let inferred = self.infer(operands)?;
        if !self.is_leaf() {
            return Ok(inferred);
        }
        let ty = written.first().cloned();
        if let Some(Err((wanted, fix))) = ty.as_ref().map(|ty| self.check_leaf(ty)) {
            let found = ty.map_or(String::new(), |ty| ty.to_string());
            let [slot, wanted, fix] = ["result", wanted, fix].map(String::from);
            return Err(OpError { slot, found, wanted, fix });
        }
        Ok(ty.into_iter().collect())
    }

    fn check_count(&self, count: usize) -> Result<(), OpError> {
        let slots = self.slots();
        let (least, most) = (slots.needed.len(), slots.needed.len() + slots.optional.len());
        if (least..=most).contains(&count) || (slots.variadic && count >= least) {
            return Ok(());
        }
        let mut names: Vec<_> = slots.needed.iter().chain(slots.optional).copied().collect();
        if names.is_empty() {
            names.push("none");
        }
        Err(OpError {
            slot: self.slot(count.min(most)),
            found: format!("one of {count} operands"),
            wanted: format!("{} takes {}", self.to_text().0, names.join(", ")),
            fix: "give exactly these".into(),
        })
    }
}

/// The operands of one application of an operator, for its shape rule.
pub struct Operands<'a> {
    op: &'a Op,
    types: &'a [TensorType],
}

impl Operands<'_> {
    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "operators have operands")]
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// The type of `slot`.
    pub fn ty(&self, slot: usize) -> &TensorType {
        &self.types[slot]
    }

    /// The element type of `slot`.
    pub fn dtype(&self, slot: usize) -> DType {
        self.types[slot].dtype
    }

    /// The shape of `slot`.
    pub fn shape(&self, slot: usize) -> &Shape {
        &self.types[slot].shape
    }

    /// An error about `slot`: what was wanted and what would mend it.
    pub fn wrong<T>(
        &self,
        slot: usize,
        wanted: impl Into<String>,
        fix: impl Into<String>,
    ) -> Result<T, OpError> {
        Err(OpError {
            slot: self.op.slot(slot),
            found: self.types[slot].to_string(),
            wanted: wanted.into(),
            fix: fix.into(),
        })
    }

    /// The shape of `slot`, which must hold 32-bit floats.
    pub fn float(&self, slot: usize) -> Result<&Shape, OpError> {
        if self.types[slot].dtype == DType::F32 {
            return Ok(&self.types[slot].shape);
        }
        self.wrong(slot, "arithmetic needs f32", "insert `cast to=f32` before it")
    }

    /// The shape of `slot`, which must hold integers.
    pub fn index(&self, slot: usize) -> Result<&Shape, OpError> {
        if self.types[slot].dtype.is_index() {
            return Ok(&self.types[slot].shape);
        }
        self.wrong(slot, "indices need i64 or i32", "insert `cast to=i64` before it")
    }

    /// Checks that `slot` has dimension `axis`.
    pub fn axis(&self, slot: usize, axis: usize) -> Result<(), OpError> {
        let rank = self.shape(slot).rank();
        if axis < rank {
            return Ok(());
        }
        self.wrong(
            slot,
            format!("axis {axis} must be below its rank {rank}"),
            format!("use an axis in 0..{rank}"),
        )
    }

    /// Checks that the weight in `slot` has the extents of the innermost `axes` dimensions of operand 0.
    pub fn inner_weight(&self, slot: usize, axes: usize) -> Result<(), OpError> {
        let input = self.shape(0);
        if input.rank() < axes {
            return self.wrong(0, "a normalized tensor has at least one dimension", "reshape it to [1]");
        }
        let wanted = &input.dims()[input.rank() - axes..];
        if self.float(slot)?.dims() == wanted {
            return Ok(());
        }
        let wanted = Shape::new(wanted);
        self.wrong(slot, format!("input {input} is normalized over {wanted}"), format!("make it {wanted}"))
    }
}
