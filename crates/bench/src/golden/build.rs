//! The model of an operator case.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{
    Activation, Binary, DType, Init, Op, Pooling, Reduce, ScaleFactors, Shape, TensorType, Unary,
};
use phalanx_ops::{
    Attention, BatchNormOptions, BinaryOp, Broadcast, Cast, Compare, Concat, Conv, CrossEntropy, Embedding,
    Gather, GatherElements, LayerNorm, Layers, Linear, Matmul, MoeLayer, Pool, ReduceOp, Reshape, Resize,
    Reverse, RmsNorm, Rotary, ScatterAdd, Softmax, Split, TopK, Transpose, UnaryOp, Where,
};
use serde::de::DeserializeOwned;

use super::attrs::CaseAttrs;
use super::{Case, GoldenError};

/// The model, or `None` if its operator does not exist here.
pub fn graph(case: &Case) -> Result<Option<Graph>, GoldenError> {
    let mut maker = Maker { case, attrs: CaseAttrs::new(case), model: Builder::new("case") };
    for (slot, tensor) in &case.inputs {
        let dtype = match tensor.dtype.as_str() {
            "i64" => DType::I64,
            "bool" => DType::Bool,
            _ => DType::F32,
        };
        let op = if case.input_grads.contains_key(slot) { Op::Param(Init::Zeros) } else { Op::Input };
        maker.model.leaf(slot, op, TensorType::new(dtype, Shape::new(tensor.shape.clone())))?;
    }
    let Some(results) = maker.operator()? else { return Ok(None) };
    maker.attrs.finish()?;
    maker.finish(results).map(Some)
}

/// Padding that is the same on both sides.
fn twice(padding: Vec<usize>) -> Vec<usize> {
    padding.into_iter().flat_map(|zeros| [zeros; 2]).collect()
}

struct Maker<'a> {
    case: &'a Case,
    attrs: CaseAttrs<'a>,
    model: Builder,
}

impl Maker<'_> {
    fn attr<T: DeserializeOwned>(&self, key: &str) -> Result<T, GoldenError> {
        self.attrs.get(key)
    }

    fn wrong(&self, message: String) -> GoldenError {
        self.case.wrong(message)
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
                let scalar = |key: &'static str, default: Option<f32>| match default {
                    Some(default) if !self.case.attrs.contains_key(key) => Ok(default),
                    _ => self.attr(key),
                };
                let Some(unary) = Unary::from_parts(&kind, scalar) else { return Ok(None) };
                let unary = unary?;
                let x = self.slot("input")?;
                self.one(Op::from(UnaryOp(unary)), &[x])?
            }
            "element_scalar" => {
                let (kind, scalar): (String, f32) = (self.attr("kind")?, self.attr("scalar")?);
                let unary = Unary::from_parts(&format!("{kind}_scalar"), |_, _| Ok::<_, GoldenError>(scalar));
                let Some(unary) = unary else { return Ok(None) };
                let x = self.slot("input")?;
                self.one(Op::from(UnaryOp(unary?)), &[x])?
            }
            "element_binary" => {
                let Ok(kind) = self.attr::<String>("kind")?.parse::<Binary>() else { return Ok(None) };
                let operands = self.slots(&["lhs", "rhs"])?;
                self.one(Op::from(BinaryOp(kind)), &operands)?
            }
            "softmax" => {
                self.simple(Op::from(Softmax { axis: self.attrs.axis("dim", "input")? }), &["input"])?
            }
            "layer_norm" => {
                let axes = self.attrs.axes("axes", "input")?;
                let rank = self.case.inputs.get("input").map_or(0, |tensor| tensor.shape.len());
                if !axes.iter().copied().eq(rank.saturating_sub(axes.len())..rank) {
                    return Ok(None);
                }
                let op = Op::from(LayerNorm { axes: axes.len(), eps: self.attr("eps")? });
                self.some(op, &["input", "gamma", "beta"])?
            }
            "batch_norm" => self.batch_norm()?,
            "rms_norm" => self.simple(Op::from(RmsNorm { eps: self.attr("eps")? }), &["input", "gamma"])?,
            "rotary" if self.attrs.or("layout", "half".to_string())? != "half" => return Ok(None),
            "rotary" => self.rotary()?,
            "attention" => self.attention()?,
            "embedding" => {
                let bag = self.attr::<String>("aggregate")? == "sum";
                let padding = self.attr("padding_idx")?;
                self.simple(Op::from(Embedding { bag, padding }), &["input", "weight"])?
            }
            "concat" => {
                let count = self.case.inputs.len();
                let names: Vec<_> = (0..count).map(|index| format!("input_{index}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.simple(
                    Op::from(Concat { axis: self.attrs.axis("axis", "input_0")?, blocks: 1 }),
                    &names,
                )?
            }
            "split" => {
                let op = Op::from(Split {
                    axis: self.attrs.axis("axis", "input")?,
                    sizes: self.attr("sizes")?,
                    blocks: 1,
                });
                let x = self.slot("input")?;
                return Ok(Some(self.model.add("y", op, &[x])?));
            }
            "reduce" => {
                let Ok(kind) = self.attr::<String>("kind")?.parse::<Reduce>() else { return Ok(None) };
                let (axes, keep) = (self.attrs.axes("axes", "input")?, self.attr("keepdims")?);
                self.simple(Op::from(ReduceOp { kind, axes, keep }), &["input"])?
            }
            "reshape" => {
                let x = self.slot("input")?;
                let shape = self.attrs.shape("shape", self.model.shape(x).elements())?;
                self.one(Op::from(Reshape { shape: Shape::new(shape) }), &[x])?
            }
            "flat" => self.flat()?,
            "transpose" => {
                let perm = self.attrs.places("perm", "input")?;
                self.simple(Op::from(Transpose { perm }), &["input"])?
            }
            "broadcast" => self.simple(
                Op::from(Broadcast { shape: Shape::new(self.attr::<Vec<usize>>("target")?) }),
                &["input"],
            )?,
            "gather" => self.simple(
                Op::from(GatherElements { axis: self.attrs.axis("dim", "input")? }),
                &["input", "index"],
            )?,
            "gather_rows" => {
                self.simple(Op::from(Gather { axis: self.attrs.axis("dim", "input")? }), &["input", "index"])?
            }
            "scatter_add" => {
                let op = ScatterAdd { axis: self.attrs.axis("dim", "input")?, size: self.attr("size")? };
                self.simple(Op::from(op), &["input", "index"])?
            }
            "reverse" => {
                self.simple(Op::from(Reverse { axes: vec![self.attrs.axis("axis", "input")?] }), &["input"])?
            }
            "topk" => {
                let x = self.slot("input")?;
                let mut results = self.model.add("y", TopK { k: self.attr("k")? }, &[x])?;
                // A case names its outputs in alphabetical order: indices, values.
                results.reverse();
                return Ok(Some(results));
            }
            "where" => self.simple(Op::from(Where), &["condition", "lhs", "rhs"])?,
            "compare" => {
                let Ok(kind) = self.attr::<String>("kind")?.parse() else { return Ok(None) };
                self.some(Op::from(Compare { kind, scalar: self.attr("scalar")? }), &["lhs", "rhs"])?
            }
            "cross_entropy" | "dense_cross_entropy" | "mse" if !self.is_mean()? => return Ok(None),
            "cross_entropy" => {
                let rows = [self.slot("logits")?, self.slot("labels")?];
                let smoothing = self.attrs.or("label_smoothing", 0.0)?;
                let ignore = self.attr("ignore_index")?;
                let loss = CrossEntropy { ignore, smoothing };
                self.model.smooth_cross_entropy("y", rows, self.model.find("weights"), loss)?
            }
            "dense_cross_entropy" => {
                let (logits, labels) = (self.slot("logits")?, self.slot("labels")?);
                self.model.dense_cross_entropy("y", logits, labels)?
            }
            "multi_head_attention" => self.multi_head_attention()?,
            "experts" => {
                let name: String = self.attr("activation")?;
                let Ok(activation) = name.parse() else { return Ok(None) };
                let (x, routing) = (self.slot("input")?, [self.slot("ids")?, self.slot("weights")?]);
                let (up, down) = (self.slot("up")?, self.slot("down")?);
                let (gate, capacity) = (self.model.find("gate"), self.attr("capacity")?);
                let layer = MoeLayer { activation, up, gate, down, capacity };
                self.model.experts("y", x, routing, layer)?
            }
            "mse" => {
                let (prediction, target) = (self.slot("prediction")?, self.slot("target")?);
                self.model.mse("y", prediction, target)?
            }
            name => match self.image(name)? {
                Some(result) => result,
                None => return Ok(None),
            },
        };
        Ok(Some(vec![result]))
    }

    fn simple(&mut self, op: Op, names: &[&str]) -> Result<ValueId, GoldenError> {
        let operands = self.slots(names)?;
        self.one(op, &operands)
    }

    /// On those of the operands that the case has.
    fn some(&mut self, op: Op, names: &[&str]) -> Result<ValueId, GoldenError> {
        let operands: Vec<ValueId> = names.iter().filter_map(|name| self.model.find(name)).collect();
        self.one(op, &operands)
    }

    fn linear(&mut self) -> Result<ValueId, GoldenError> {
        let activation = self.activation()?;
        let bias: bool = self.attr("use_bias")?;
        let names: &[&str] = if bias { &["input", "weight", "bias"] } else { &["input", "weight"] };
        self.simple(Op::from(Linear { transposed: false, activation }), names)
    }

    /// The activation of a layer; none if nothing is said.
    fn activation(&self) -> Result<Activation, GoldenError> {
        let name = self.attrs.or("activation", Activation::None.to_string())?;
        name.parse().map_err(|()| self.wrong(format!("activation `{name}` is unknown")))
    }

    /// Whether a loss is the mean over its rows.
    fn is_mean(&self) -> Result<bool, GoldenError> {
        Ok(self.attrs.or("reduction", "mean".to_string())? == "mean")
    }

    /// Cases have the channels behind the batch, the operator has them last.
    fn batch_norm(&mut self) -> Result<ValueId, GoldenError> {
        let (x, gamma, beta) = (self.slot("input")?, self.slot("gamma")?, self.slot("beta")?);
        let rank = self.model.shape(x).rank();
        if rank < 2 {
            return Err(self.wrong(format!("a batch norm takes at least 2 dimensions, not {rank}")));
        }
        let perm = [&[0][..], &(2..rank).collect::<Vec<_>>(), &[1]].concat();
        let back = [&[0, rank - 1][..], &(1..rank - 1).collect::<Vec<_>>()].concat();
        let x = self.one(Op::from(Transpose { perm }), &[x])?;
        let (eps, training) = (self.attr("eps")?, self.attr("training")?);
        let options = BatchNormOptions { eps, training, ..BatchNormOptions::default() };
        let y = self.model.batch_norm("norm", x, Some([gamma, beta]), options)?;
        let y = self.one(Op::from(Transpose { perm: back }), &[y])?;
        match self.attr("relu")? {
            true => self.one(Op::from(UnaryOp(Unary::Act(Activation::Relu))), &[y]),
            false => Ok(y),
        }
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
        let attention = Attention {
            causal: self.attr("causal")?,
            scale: self.attr("scale")?,
            window: self.attrs.or("window", 0)?,
            softcap: self.attrs.or("softcap", 0.0)?,
            rate: 0.0,
            mask: self.attrs.or("mask", false)?,
        };
        // The shapes say it, too.
        let _heads: Option<usize> = self.attr("heads")?;
        operands.extend(self.model.find("bias"));
        let y = self.one(Op::from(attention), &operands)?;
        self.swap(y)
    }

    /// Projections of query, key and value, attention of heads, and a projection of what it gives.
    fn multi_head_attention(&mut self) -> Result<ValueId, GoldenError> {
        let (heads, width): (usize, usize) = (self.attr("heads")?, self.attr("embed_dim")?);
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(self.wrong(format!("{heads} heads do not divide a width of {width}")));
        }
        let dim = width / heads;
        let mut operands = Vec::new();
        for name in ["query", "key", "value"] {
            let x = self.slot(name)?;
            let projected = self.projected(x, &name[..1])?;
            let mut dims = self.model.shape(projected).dims().to_vec();
            dims.pop();
            dims.extend([heads, dim]);
            operands.push(self.model.reshape("y", projected, Shape::new(dims))?);
        }
        let attention = Attention::new(false, 1.0 / (dim as f32).sqrt());
        let y = self.one(Op::from(attention), &operands)?;
        let mut dims = self.model.shape(y).dims().to_vec();
        dims.truncate(2);
        dims.push(width);
        let joined = self.model.reshape("y", y, Shape::new(dims))?;
        self.projected(joined, "o")
    }

    /// x times the weight of this letter, plus its bias if there is one.
    fn projected(&mut self, x: ValueId, letter: &str) -> Result<ValueId, GoldenError> {
        let (weight, bias) = (self.slot(&format!("w_{letter}"))?, self.model.find(&format!("b_{letter}")));
        Ok(self.model.linear("y", x, weight, bias)?)
    }

    /// Operators on images, whose cases are [batch, channels, space…]; `None` if there is none of that name.
    fn image(&mut self, name: &str) -> Result<Option<ValueId>, GoldenError> {
        let op = match name {
            "conv2d" => {
                // The filter says it, too.
                let _kernel: Vec<usize> = self.attr("kernel")?;
                Op::from(Conv {
                    stride: self.attr("stride")?,
                    dilation: self.attrs.or("dilation", Vec::new())?,
                    padding: twice(self.attr("padding")?),
                    groups: self.attr("groups")?,
                    activation: self.activation()?,
                    ..Conv::default()
                })
            }
            "pool2d" => Op::from(Pool {
                kind: self.pooling("mode")?,
                kernel: self.attr("kernel")?,
                stride: self.attr("stride")?,
                padding: twice(self.attr("padding")?),
                ceil: self.attrs.or("ceil_mode", false)?,
                count_padding: self.attrs.or("count_include_pad", true)?,
                adaptive: Vec::new(),
            }),
            _ if name.starts_with("conv") => Op::from(Conv {
                stride: self.attr("stride")?,
                dilation: self.attr("dilation")?,
                padding: self.attr("padding")?,
                groups: self.attr("groups")?,
                adjoint: self.attr("adjoint")?,
                output_padding: self.attr("output_padding")?,
                activation: self.activation()?,
            }),
            _ if name.starts_with("pool") => Op::from(Pool {
                kind: self.pooling("kind")?,
                kernel: self.attr("kernel")?,
                stride: self.attr("stride")?,
                padding: self.attr("padding")?,
                ceil: self.attr("ceil")?,
                count_padding: self.attr("count_padding")?,
                adaptive: self.attr("adaptive")?,
            }),
            "resize" => {
                let kind: String = self.attr("kind")?;
                let unknown = || self.wrong(format!("interpolation `{kind}` is unknown"));
                Op::from(Resize {
                    kind: kind.parse().map_err(|()| unknown())?,
                    align: self.attr("align")?,
                    size: self.attr("size")?,
                    scale: ScaleFactors(self.attr("scale")?),
                })
            }
            _ => return Ok(None),
        };
        let x = self.slot("input")?;
        let rank = self.model.shape(x).rank();
        let last = (0..rank).map(|dim| [0, 2, 3, 4, 5][..rank - 1].get(dim).copied().unwrap_or(1)).collect();
        let mut operands = vec![self.one(Op::from(Transpose { perm: last }), &[x])?];
        operands.extend(["filter", "bias"].iter().filter_map(|name| self.model.find(name)));
        let y = self.one(op, &operands)?;
        let first = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        self.one(Op::from(Transpose { perm: first }), &[y]).map(Some)
    }

    fn pooling(&self, key: &str) -> Result<Pooling, GoldenError> {
        let name: String = self.attr(key)?;
        name.parse().map_err(|()| self.wrong(format!("pool `{name}` is unknown")))
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
                let cast = self.model.add_one(&format!("{slot}.out"), cast, &[result])?;
                outputs.push(cast);
                if self.case.output_grads.is_empty() {
                    // Something must be the loss.
                    let axes = (0..self.model.shape(cast).rank()).collect();
                    let sum = ReduceOp { kind: Reduce::Sum, axes, keep: false };
                    loss = Some(self.model.add_one("loss", sum, &[cast])?);
                }
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
