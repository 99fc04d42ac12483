//! The model of an operator case.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, Binary, DType, Init, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, BinaryOp, Broadcast, Cast, Concat, Embedding, Gather, LayerNorm, Layers, Linear, Matmul,
    ReduceOp, Reshape, Reverse, RmsNorm, Rotary, Softmax, Split, TopK, Transpose, UnaryOp,
};
use serde::de::DeserializeOwned;

use super::{Case, GoldenError};

/// The model, or `None` if its operator does not exist here.
pub fn graph(case: &Case) -> Result<Option<Graph>, GoldenError> {
    let mut maker = Maker { case, model: Builder::new("case") };
    for (slot, tensor) in &case.inputs {
        let dtype = if tensor.dtype == "i64" { DType::I64 } else { DType::F32 };
        let op = if case.input_grads.contains_key(slot) { Op::Param(Init::Zeros) } else { Op::Input };
        maker.model.leaf(slot, op, TensorType::new(dtype, Shape::new(tensor.shape.clone())))?;
    }
    let Some(results) = maker.operator()? else { return Ok(None) };
    maker.finish(results).map(Some)
}

struct Maker<'a> {
    case: &'a Case,
    model: Builder,
}

impl Maker<'_> {
    fn attr<T: DeserializeOwned>(&self, key: &str) -> Result<T, GoldenError> {
        let value = self.case.attrs.get(key).cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(|error| self.wrong(format!("attribute `{key}`: {error}")))
    }

    fn wrong(&self, message: String) -> GoldenError {
        GoldenError::Case { id: self.case.id.clone(), message }
    }

    fn slot(&self, name: &str) -> Result<ValueId, GoldenError> {
        self.model.find(name).ok_or_else(|| self.wrong(format!("operand `{name}` is missing")))
    }

    fn slots(&self, names: &[&str]) -> Result<Vec<ValueId>, GoldenError> {
        names.iter().map(|name| self.slot(name)).collect()
    }

    fn one(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, GoldenError> {
        Ok(self.model.add_one("y", op, operands)?)
    }

    /// The operator's results in the order of the case's output slots.
    fn operator(&mut self) -> Result<Option<Vec<ValueId>>, GoldenError> {
        let result = match self.case.op.as_str() {
            "linear" => self.linear()?,
            "matmul" => {
                let (transpose_a, transpose_b) = (self.attr("transpose_a")?, self.attr("transpose_b")?);
                let operands = self.slots(&["a", "b"])?;
                self.one(Op::from(Matmul { transpose_a, transpose_b }), &operands)?
            }
            "element_unary" => {
                let kind: String = self.attr("kind")?;
                let Some(Ok(unary)) = Unary::from_parts(&kind, || Err(())) else { return Ok(None) };
                let x = self.slot("input")?;
                self.one(Op::from(UnaryOp(unary)), &[x])?
            }
            "element_scalar" => {
                let (kind, scalar): (String, f32) = (self.attr("kind")?, self.attr("scalar")?);
                let unary = Unary::from_parts(&format!("{kind}_scalar"), || Ok::<_, GoldenError>(scalar));
                let Some(unary) = unary else { return Ok(None) };
                let x = self.slot("input")?;
                self.one(Op::from(UnaryOp(unary?)), &[x])?
            }
            "element_binary" => {
                let Ok(kind) = self.attr::<String>("kind")?.parse::<Binary>() else { return Ok(None) };
                let operands = self.slots(&["lhs", "rhs"])?;
                self.one(Op::from(BinaryOp(kind)), &operands)?
            }
            "softmax" => self.simple(Op::from(Softmax { axis: self.attr("dim")? }), &["input"])?,
            "layer_norm" => {
                let axes: Vec<usize> = self.attr("axes")?;
                let rank = self.case.inputs.get("input").map_or(0, |tensor| tensor.shape.len());
                if !axes.iter().copied().eq(rank.saturating_sub(axes.len())..rank) {
                    return Ok(None);
                }
                let op = Op::from(LayerNorm { axes: axes.len(), eps: self.attr("eps")? });
                self.simple(op, &["input", "gamma", "beta"])?
            }
            "rms_norm" => self.simple(Op::from(RmsNorm { eps: self.attr("eps")? }), &["input", "gamma"])?,
            "rotary" => self.rotary()?,
            "attention" => self.attention()?,
            "embedding" => {
                let bag = self.attr::<String>("aggregate")? == "sum";
                self.simple(Op::from(Embedding { bag, padding: None }), &["input", "weight"])?
            }
            "concat" => {
                let count = self.case.inputs.len();
                let names: Vec<_> = (0..count).map(|index| format!("input_{index}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.simple(Op::from(Concat { axis: self.attr("axis")?, blocks: 1 }), &names)?
            }
            "split" => {
                let op = Op::from(Split { axis: self.attr("axis")?, sizes: self.attr("sizes")?, blocks: 1 });
                let x = self.slot("input")?;
                return Ok(Some(self.model.add("y", op, &[x])?));
            }
            "reduce" => {
                let Ok(kind) = self.attr::<String>("kind")?.parse::<Reduce>() else { return Ok(None) };
                let (axes, keep) = (self.attr("axes")?, self.attr("keepdims")?);
                self.simple(Op::from(ReduceOp { kind, axes, keep }), &["input"])?
            }
            "reshape" => self.simple(
                Op::from(Reshape { shape: Shape::new(self.attr::<Vec<usize>>("shape")?) }),
                &["input"],
            )?,
            "flat" => self.flat()?,
            "transpose" => self.simple(Op::from(Transpose { perm: self.attr("perm")? }), &["input"])?,
            "broadcast" => self.simple(
                Op::from(Broadcast { shape: Shape::new(self.attr::<Vec<usize>>("target")?) }),
                &["input"],
            )?,
            "gather" => self.simple(Op::from(Gather { axis: self.attr("dim")? }), &["input", "index"])?,
            "reverse" => self.simple(Op::from(Reverse { axes: vec![self.attr("axis")?] }), &["input"])?,
            "topk" => {
                let x = self.slot("input")?;
                let mut results = self.model.add("y", TopK { k: self.attr("k")? }, &[x])?;
                // A case names its outputs in alphabetical order: indices, values.
                results.reverse();
                return Ok(Some(results));
            }
            "cross_entropy" => {
                let (logits, labels) = (self.slot("logits")?, self.slot("labels")?);
                self.model.cross_entropy("y", logits, labels, self.attr("ignore_index")?)?
            }
            "mse" => {
                let (prediction, target) = (self.slot("prediction")?, self.slot("target")?);
                self.model.mse("y", prediction, target)?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![result]))
    }

    fn simple(&mut self, op: Op, names: &[&str]) -> Result<ValueId, GoldenError> {
        let operands = self.slots(names)?;
        self.one(op, &operands)
    }

    fn linear(&mut self) -> Result<ValueId, GoldenError> {
        let name: String = self.attr("activation")?;
        let activation: Activation =
            name.parse().map_err(|()| self.wrong(format!("activation `{name}` is unknown")))?;
        let bias: bool = self.attr("use_bias")?;
        let names: &[&str] = if bias { &["input", "weight", "bias"] } else { &["input", "weight"] };
        self.simple(Op::from(Linear { transposed: false, activation }), names)
    }

    /// Swaps the time and head dimensions: cases use [batch, heads, time, dim].
    fn swap(&mut self, x: ValueId) -> Result<ValueId, GoldenError> {
        self.one(Op::from(Transpose { perm: vec![0, 2, 1, 3] }), &[x])
    }

    fn rotary(&mut self) -> Result<ValueId, GoldenError> {
        let x = self.slot("input")?;
        let x = self.swap(x)?;
        let y = self.one(Op::from(Rotary::new(self.attr("base")?)), &[x])?;
        self.swap(y)
    }

    fn attention(&mut self) -> Result<ValueId, GoldenError> {
        let mut operands = self.slots(&["query", "key", "value"])?;
        for operand in &mut operands {
            *operand = self.swap(*operand)?;
        }
        let y = self.one(
            Op::from(Attention { causal: self.attr("causal")?, scale: self.attr("scale")? }),
            &operands,
        )?;
        self.swap(y)
    }

    fn flat(&mut self) -> Result<ValueId, GoldenError> {
        let (start, end): (usize, usize) = (self.attr("start")?, self.attr("end")?);
        let x = self.slot("input")?;
        let dims = self.model.shape(x).dims();
        if start > end || end > dims.len() {
            return Err(self.wrong(format!("[{start}, {end}) is not a range of dimensions")));
        }
        let joined = (start < end).then(|| dims[start..end].iter().product());
        let flat: Vec<usize> =
            dims[..start].iter().copied().chain(joined).chain(dims[end..].iter().copied()).collect();
        self.one(Op::from(Reshape { shape: Shape::new(flat) }), &[x])
    }

    /// Ends the model: loss = Σ outputs · given gradients.
    fn finish(mut self, results: Vec<ValueId>) -> Result<Graph, GoldenError> {
        if results.len() != self.case.outputs.len() {
            let (found, wanted) = (results.len(), self.case.outputs.len());
            return Err(self.wrong(format!("{wanted} outputs expected, the operator gives {found}")));
        }
        let mut outputs = Vec::new();
        let mut loss = None;
        for (result, slot) in results.into_iter().zip(self.case.outputs.keys()) {
            if !self.model.ty(result).dtype.is_float() {
                let cast = Cast { to: DType::F32 };
                outputs.push(self.model.add_one(&format!("{slot}.out"), cast, &[result])?);
                continue;
            }
            // Adding zero copies a result that is an operand under another name.
            let named = self.model.unary(&format!("{slot}.out"), Unary::AddScalar(0.0), result)?;
            let given = self
                .model
                .input(&format!("{slot}.given"), TensorType::f32(self.model.shape(named).clone()))?;
            let term = self.term(named, given)?;
            loss = Some(match loss {
                None => term,
                Some(sum) => self.model.binary("loss", Binary::Add, sum, term)?,
            });
            outputs.push(named);
        }
        let loss = loss.ok_or_else(|| self.wrong("the case has no outputs".into()))?;
        outputs.insert(0, loss);
        Ok(self.model.finish(outputs))
    }

    fn term(&mut self, result: ValueId, given: ValueId) -> Result<ValueId, BuildError> {
        let product = self.model.binary("product", Binary::Mul, result, given)?;
        let axes = (0..self.model.shape(product).rank()).collect();
        self.model.add_one("loss", Op::from(ReduceOp { kind: Reduce::Sum, axes, keep: false }), &[product])
    }
}
