//! Shape rules: from operand types to result types, or to an error that says how to mend the operand.

use super::{Op, Reduce};
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
        let rule = Rule { op: self, operands };
        let one = |result: Result<TensorType, OpError>| result.map(|ty| vec![ty]);
        match self {
            Op::Input | Op::Param(_) | Op::Constant(_) => Ok(Vec::new()),
            Op::Embedding { bag } => one(rule.embedding(*bag)),
            Op::Linear { transposed, .. } => one(rule.linear(*transposed)),
            Op::Matmul { transpose_a, transpose_b } => one(rule.matmul(*transpose_a, *transpose_b)),
            Op::Unary(_) | Op::Dropout { .. } => one(rule.float(0)),
            Op::Binary(_) => one(rule.binary()),
            Op::Softmax { axis } => one(rule.axis(0, *axis).and_then(|()| rule.float(0))),
            Op::LayerNorm { axes, .. } => one(rule.layer_norm(*axes)),
            Op::RmsNorm { .. } => one(rule.norm_weight(1, 1).and_then(|()| rule.float(0))),
            Op::Rotary { .. } => one(rule.rotary()),
            Op::Attention { causal, .. } => one(rule.attention(*causal)),
            Op::Reshape(shape) => one(rule.reshape(shape)),
            Op::Broadcast(shape) => one(rule.broadcast(shape)),
            Op::Transpose(perm) => one(rule.transpose(perm)),
            Op::Split { axis, sizes, blocks } => rule.split(*axis, sizes, *blocks),
            Op::Concat { axis, blocks } => one(rule.concat(*axis, *blocks)),
            Op::Reduce { kind, axes, keep } => one(rule.reduce(*kind, axes, *keep)),
            Op::Cast(dtype) => Ok(vec![TensorType::new(*dtype, operands[0].shape.clone())]),
            Op::CrossEntropy { .. } => one(rule.cross_entropy()),
            Op::CountLabels { .. } => one(rule.index(0).map(|()| TensorType::f32([]))),
            Op::Repartition { .. } | Op::Combine { .. } | Op::Replicate { .. } | Op::Reduction { .. } => {
                let wanted = format!("{} belongs to parallel graphs", self.to_text().0);
                rule.wrong(0, wanted, "leave it to the plan")
            }
        }
    }

    /// Checks a leaf operator with its given type: what is wrong with it and what would mend it.
    pub(crate) fn check_leaf(&self, ty: &TensorType) -> Result<(), (&'static str, &'static str)> {
        match self {
            _ if ty.shape.rank() > MAX_RANK => Err(("has more than 6 dimensions", "reshape it")),
            _ if !ty.shape.is_bounded() => Err(("has too many elements", "make an extent smaller")),
            _ if ty.shape.elements() == 0 => Err(("has no elements", "every extent must be positive")),
            Op::Param(_) | Op::Constant(_) if ty.dtype != DType::F32 => {
                Err(("must be f32", "cast its uses instead"))
            }
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
        if count == least || count == most || (slots.variadic && count >= least) {
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

/// One application of an operator, for the rules below.
struct Rule<'a> {
    op: &'a Op,
    operands: &'a [TensorType],
}

impl Rule<'_> {
    fn shape(&self, slot: usize) -> &Shape {
        &self.operands[slot].shape
    }

    /// An error about `slot`.
    fn wrong<T>(&self, slot: usize, wanted: impl Into<String>, fix: impl Into<String>) -> Result<T, OpError> {
        Err(OpError {
            slot: self.op.slot(slot),
            found: self.operands[slot].to_string(),
            wanted: wanted.into(),
            fix: fix.into(),
        })
    }

    /// The type of `slot`, which must hold 32-bit floats.
    fn float(&self, slot: usize) -> Result<TensorType, OpError> {
        if self.operands[slot].dtype == DType::F32 {
            return Ok(self.operands[slot].clone());
        }
        self.wrong(slot, "arithmetic needs f32", "insert `cast to=f32` before it")
    }

    fn index(&self, slot: usize) -> Result<(), OpError> {
        if self.operands[slot].dtype.is_index() {
            return Ok(());
        }
        self.wrong(slot, "indices need i64 or i32", "insert `cast to=i64` before it")
    }

    fn axis(&self, slot: usize, axis: usize) -> Result<(), OpError> {
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

    fn embedding(&self, bag: bool) -> Result<TensorType, OpError> {
        self.index(0)?;
        let weight = self.float(1)?;
        let [_, features] = *weight.shape.dims() else {
            return self.wrong(1, "a table is [entries, features]", "reshape it to two dimensions");
        };
        let mut dims = self.shape(0).dims().to_vec();
        if bag && dims.pop().is_none() {
            return self.wrong(
                0,
                "bag sums over the innermost index dimension",
                "use bag=false for a scalar index",
            );
        }
        dims.push(features);
        if dims.len() > MAX_RANK {
            return self.wrong(
                0,
                format!("rows of features give more than {MAX_RANK} dimensions"),
                "reshape it",
            );
        }
        Ok(TensorType::f32(Shape::new(dims)))
    }

    fn linear(&self, transposed: bool) -> Result<TensorType, OpError> {
        let input = self.float(0)?.shape;
        let weight = self.float(1)?.shape;
        let [rows, cols] = *weight.dims() else {
            return self.wrong(1, "a linear weight has two dimensions", "reshape it");
        };
        let (inner, outer) = if transposed { (rows, cols) } else { (cols, rows) };
        if input.rank() == 0 {
            return self.wrong(0, "a linear input has at least one dimension", "reshape it to [1]");
        }
        if input.last() != inner {
            let wanted =
                format!("its innermost extent must equal the {inner} input features of weight {weight}");
            let fix = if input.last() == outer {
                format!("flip `transposed` (now {transposed})")
            } else {
                format!("make the weight take {} features or the input have {inner}", input.last())
            };
            return self.wrong(0, wanted, fix);
        }
        if self.operands.len() == 3 && self.float(2)?.shape.dims() != [outer] {
            return self.wrong(
                2,
                format!("weight {weight} gives {outer} features"),
                format!("make it [{outer}]"),
            );
        }
        Ok(TensorType::f32(input.with(input.rank() - 1, outer)))
    }

    fn matmul(&self, transpose_a: bool, transpose_b: bool) -> Result<TensorType, OpError> {
        let (a, b) = (self.float(0)?.shape, self.float(1)?.shape);
        if a.rank() < 2 {
            return self.wrong(0, "a matrix has two dimensions or more", "reshape it");
        }
        if a.rank() != b.rank() || a.dims()[..a.rank() - 2] != b.dims()[..a.rank() - 2] {
            return self.wrong(
                1,
                format!("all but the last two dimensions must equal those of a {a}"),
                "broadcast it",
            );
        }
        let matrix = |shape: &Shape, transpose: bool| {
            let (rows, cols) = (shape.dims()[shape.rank() - 2], shape.last());
            if transpose { (cols, rows) } else { (rows, cols) }
        };
        let ((m, inner), (other, n)) = (matrix(&a, transpose_a), matrix(&b, transpose_b));
        if inner != other {
            let wanted = format!("it is summed over {other} while a {a} is summed over {inner}");
            return self.wrong(1, wanted, "flip transpose_a or transpose_b, or change the operand");
        }
        Ok(TensorType::f32(a.with(a.rank() - 2, m).with(a.rank() - 1, n)))
    }

    fn binary(&self) -> Result<TensorType, OpError> {
        let (lhs, rhs) = (self.float(0)?.shape, self.float(1)?.shape);
        match lhs.broadcast(&rhs) {
            Some(shape) => Ok(TensorType::f32(shape)),
            None => self.wrong(
                1,
                format!("it must stretch with lhs {lhs}: extents equal or 1 from the innermost on"),
                "reshape or transpose one of them",
            ),
        }
    }

    fn layer_norm(&self, axes: usize) -> Result<TensorType, OpError> {
        let rank = self.shape(0).rank();
        if axes == 0 || axes > rank {
            return self.wrong(
                0,
                format!("{axes} innermost dimensions are normalized"),
                format!("use axes in 1..={rank}"),
            );
        }
        for slot in 1..self.operands.len() {
            self.norm_weight(slot, axes)?;
        }
        self.float(0)
    }

    /// The weight in `slot` must have the extents of the input's innermost `axes` dimensions.
    fn norm_weight(&self, slot: usize, axes: usize) -> Result<(), OpError> {
        let input = self.shape(0);
        if input.rank() < axes {
            return self.wrong(0, "a normalized tensor has at least one dimension", "reshape it to [1]");
        }
        let wanted = &input.dims()[input.rank() - axes..];
        if self.float(slot)?.shape.dims() == wanted {
            return Ok(());
        }
        let wanted = Shape::new(wanted);
        self.wrong(slot, format!("input {input} is normalized over {wanted}"), format!("make it {wanted}"))
    }

    fn rotary(&self) -> Result<TensorType, OpError> {
        let ty = self.float(0)?;
        if ty.shape.rank() == 4 && ty.shape.last().is_multiple_of(2) {
            return Ok(ty);
        }
        self.wrong(0, "rotary pairs halves of [batch, time, heads, dim] with even dim", "reshape it to that")
    }

    fn attention(&self, causal: bool) -> Result<TensorType, OpError> {
        let query = self.float(0)?;
        let [batch, time, heads, dim] = *query.shape.dims() else {
            return self.wrong(0, "attention takes [batch, time, heads, dim]", "reshape or transpose it");
        };
        let key = self.float(1)?.shape;
        let [key_batch, key_time, key_heads, key_dim] = *key.dims() else {
            return self.wrong(1, "attention takes [batch, time, heads, dim]", "reshape or transpose it");
        };
        if key_batch != batch || key_dim != dim {
            return self.wrong(
                1,
                format!("batch and dim must equal those of query {}", query.shape),
                "reshape it",
            );
        }
        if key_heads == 0 || !heads.is_multiple_of(key_heads) {
            let wanted =
                format!("its {key_heads} heads must divide the {heads} heads of query {}", query.shape);
            return self.wrong(1, wanted, format!("use a divisor of {heads} key heads"));
        }
        if causal && key_time != time {
            let wanted =
                format!("causal attention needs as many keys as the {time} queries of {}", query.shape);
            return self.wrong(1, wanted, "give both the same time, or causal=false");
        }
        if self.float(2)?.shape != key {
            return self.wrong(2, format!("it must have the shape of key {key}"), format!("make it {key}"));
        }
        Ok(query)
    }

    fn reshape(&self, shape: &Shape) -> Result<TensorType, OpError> {
        let (from, to) = (self.shape(0).elements(), shape.elements());
        if shape.rank() > MAX_RANK {
            return self.wrong(0, format!("shape={shape} has more than {MAX_RANK} dimensions"), "merge some");
        }
        if from != to {
            let wanted = format!("shape={shape} has {to} elements, not {from}");
            return self.wrong(0, wanted, format!("choose extents whose product is {from}"));
        }
        Ok(TensorType::new(self.operands[0].dtype, shape.clone()))
    }

    fn broadcast(&self, shape: &Shape) -> Result<TensorType, OpError> {
        let ty = self.float(0)?;
        let legal = shape.rank() <= MAX_RANK && shape.elements() > 0;
        if legal && ty.shape.broadcast(shape).as_ref() == Some(shape) {
            return Ok(TensorType::f32(shape.clone()));
        }
        self.wrong(
            0,
            format!("it cannot be stretched to {shape}"),
            "only extents of 1 can grow, innermost aligned",
        )
    }

    fn transpose(&self, perm: &[usize]) -> Result<TensorType, OpError> {
        let input = &self.operands[0];
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..input.shape.rank()) {
            let wanted = format!(
                "perm={} must name each of its {} dimensions once",
                Shape::new(perm),
                input.shape.rank()
            );
            return self.wrong(0, wanted, "write a permutation");
        }
        let dims: Vec<_> = perm.iter().map(|&axis| input.shape.dims()[axis]).collect();
        Ok(TensorType::new(input.dtype, Shape::new(dims)))
    }

    fn split(&self, axis: usize, sizes: &[usize], blocks: usize) -> Result<Vec<TensorType>, OpError> {
        self.axis(0, axis)?;
        if sizes.iter().any(|size| blocks == 0 || !size.is_multiple_of(blocks)) {
            let wanted = format!("sizes={} must be multiples of blocks={blocks}", Shape::new(sizes));
            return self.wrong(0, wanted, "use another number of blocks");
        }
        let input = &self.operands[0];
        let extent = input.shape.dims()[axis];
        let total = sizes.iter().fold(0_usize, |total, &size| total.saturating_add(size));
        if extent != total || sizes.is_empty() || sizes.contains(&0) {
            let wanted =
                format!("sizes={} add up to {total} along axis {axis} of extent {extent}", Shape::new(sizes));
            return self.wrong(0, wanted, format!("use positive sizes that add up to {extent}"));
        }
        Ok(sizes.iter().map(|&size| TensorType::new(input.dtype, input.shape.with(axis, size))).collect())
    }

    fn concat(&self, axis: usize, blocks: usize) -> Result<TensorType, OpError> {
        self.axis(0, axis)?;
        let first = &self.operands[0];
        let mut extent = 0;
        for (slot, operand) in self.operands.iter().enumerate() {
            let same = operand.dtype == first.dtype
                && operand.shape.rank() == first.shape.rank()
                && operand.shape.with(axis, 0) == first.shape.with(axis, 0);
            if !same {
                return self.wrong(
                    slot,
                    format!("it must equal input_0 {first} outside axis {axis}"),
                    "reshape or cast it",
                );
            }
            if blocks == 0 || !operand.shape.dims()[axis].is_multiple_of(blocks) {
                let wanted = format!("its extent along axis {axis} must be a multiple of blocks={blocks}");
                return self.wrong(slot, wanted, "use another number of blocks");
            }
            extent += operand.shape.dims()[axis];
        }
        Ok(TensorType::new(first.dtype, first.shape.with(axis, extent)))
    }

    fn reduce(&self, _kind: Reduce, axes: &[usize], keep: bool) -> Result<TensorType, OpError> {
        let shape = self.float(0)?.shape;
        if !axes.is_sorted_by(|a, b| a < b) || axes.iter().any(|&axis| axis >= shape.rank()) {
            let wanted = format!("axes={} must ascend below its rank {}", Shape::new(axes), shape.rank());
            return self.wrong(0, wanted, "list each axis once, in order");
        }
        let dims = shape.dims().iter().enumerate();
        let dims = dims.filter_map(|(axis, &extent)| match axes.contains(&axis) {
            true => keep.then_some(1),
            false => Some(extent),
        });
        Ok(TensorType::f32(Shape::new(dims.collect::<Vec<_>>())))
    }

    fn cross_entropy(&self) -> Result<TensorType, OpError> {
        let logits = self.float(0)?.shape;
        self.index(1)?;
        let Some((_, rows)) = logits.dims().split_last() else {
            return self.wrong(0, "logits have a class dimension", "reshape it");
        };
        if self.shape(1).dims() != rows {
            let rows = Shape::new(rows);
            return self.wrong(1, format!("logits {logits} need one label a row"), format!("make it {rows}"));
        }
        Ok(TensorType::f32([]))
    }
}
