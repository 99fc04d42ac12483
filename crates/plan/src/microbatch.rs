//! Cuts the batch into microbatches: the model is unrolled, once for each, parameters shared.
//!
//! Needs: a model, and which dimension of its inputs is the batch.
//! Gives: the same outputs. What depends on an input is computed per microbatch; where the batch is summed away (losses,
//! sums and means over it) the parts are added as a balanced tree, so that for powers of two the bits are those of
//! the whole batch. Layers of microbatch m are called `name.mb<m>`. What no input reaches is computed once, and cut where
//! it meets a part of the batch; numbers that an operator without operands draws are drawn part by part. A state is set
//! once, from the whole of its new value.
//!
//! The batch may be cut into blocks first, one for each device that shares it. A microbatch is then a part of every
//! block, so that no row changes its device.

use std::collections::BTreeMap;

use phalanx_ir::graph::{BuildError, Builder, Graph, Layer, LayerId, Update, ValueId};
use phalanx_ir::{Apart, Binary, Cuts, Dims, Id, IdVec, Op, Shape, Unary};
use phalanx_ops::{Broadcast, Concat, Layers, Split};

use crate::classes::Classes;
use crate::error::cuts;

/// Why a batch cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum MicrobatchError {
    /// An input's batch is not divisible.
    #[error(
        "input `{input}` is {ty}; its batch cannot be cut into {microbatches}{}: use {}",
        if *blocks == 1 { String::new() } else { format!(" parts of each of {blocks} blocks") },
        cuts(batch / blocks.max(&1))
    )]
    Indivisible { input: String, ty: String, batch: usize, microbatches: usize, blocks: usize },
    /// A layer mixes rows of the batch.
    #[error("layer `{layer}` ({op}) mixes rows of the batch, so the batch cannot be cut into microbatches")]
    Mixes { layer: String, op: String },
    /// The unrolled layer does not build: a bug.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// What became of a value.
#[derive(Clone)]
enum Fate {
    /// One value for all microbatches.
    Shared(ValueId),
    /// One value each, cut along this dimension.
    Parts(Vec<ValueId>, usize),
    /// The result of an operator without operands, added when it is known whether all of it is needed at once.
    Open,
}

/// A model with its microbatches unrolled.
pub(crate) struct Unrolled {
    /// The layers.
    pub(crate) graph: Graph,
    /// What is known about each of them.
    pub(crate) origins: IdVec<LayerId, Origin>,
}

/// Where a layer of the unrolled model comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The layer of the model; none for the cut of an input.
    pub(crate) layer: Option<LayerId>,
    /// The model's values that the results are, or are parts of; none for what is in between.
    pub(crate) values: Vec<ValueId>,
    /// The microbatch with which it is due.
    pub(crate) due: u32,
    /// It works on its microbatch alone.
    pub(crate) is_part: bool,
    /// The dimension of the results along which samples lie, if the shapes of a part say another: `[2]` to `[1, 2]`.
    pub(crate) batch: Option<usize>,
    /// It is an addend of a total: what devices have of it need not be added before the total is.
    pub(crate) is_addend: bool,
}

/// The model itself, as one microbatch.
pub(crate) fn whole_batch(model: &Graph) -> Unrolled {
    let origin = |(id, layer): (LayerId, &Layer<()>)| Origin {
        layer: Some(id),
        values: layer.results.clone(),
        due: 0,
        is_part: false,
        batch: None,
        is_addend: false,
    };
    Unrolled { graph: model.clone(), origins: model.layers().iter().map(origin).collect() }
}

/// The unrolled model.
pub(crate) fn split_batch(
    classes: &Classes<'_>,
    microbatches: usize,
    blocks: usize,
) -> Result<Unrolled, MicrobatchError> {
    let (model, builder) = (classes.model, Builder::new(classes.model.name()));
    let (fates, origins) = (IdVec::new(), IdVec::new());
    let mut unroll = Unroll {
        model,
        classes,
        microbatches,
        blocks,
        builder,
        fates,
        origins,
        layer: None,
        cut: BTreeMap::new(),
        untrained: untrained(model),
    };
    for id in model.layers().ids() {
        unroll.layer = Some(id);
        for fate in unroll.layer(id)? {
            unroll.fates.push(fate);
        }
    }
    let outputs: Result<Vec<ValueId>, _> =
        model.outputs().iter().map(|&output| unroll.whole(output)).collect();
    let outputs = outputs?;
    for &Update { state, new } in model.updates() {
        let new = match unroll.fates[new] {
            Fate::Parts(..) => unroll.whole(new)?,
            _ => unroll.shared_value(new)?,
        };
        let state = unroll.shared_value(state)?;
        unroll.builder.update(state, new)?;
    }
    Ok(Unrolled { graph: unroll.builder.finish(outputs), origins: unroll.origins })
}

/// For every value whether no parameter reaches it.
fn untrained(model: &Graph) -> IdVec<ValueId, bool> {
    let mut untrained: IdVec<ValueId, bool> = IdVec::new();
    for (_, layer) in model.layers().iter() {
        let of_layer =
            !matches!(layer.op, Op::Param(_)) && layer.operands.iter().all(|&operand| untrained[operand]);
        layer.results.iter().for_each(|_| _ = untrained.push(of_layer));
    }
    untrained
}

struct Unroll<'a> {
    model: &'a Graph,
    classes: &'a Classes<'a>,
    microbatches: usize,
    blocks: usize,
    builder: Builder,
    fates: IdVec<ValueId, Fate>,
    /// What is known about each layer added so far.
    origins: IdVec<LayerId, Origin>,
    /// The layer at hand.
    layer: Option<LayerId>,
    /// The parts, along a dimension, of values that are not computed part by part.
    cut: BTreeMap<(ValueId, usize), Vec<ValueId>>,
    /// Whether no parameter reaches a value, so that it has no gradient.
    untrained: IdVec<ValueId, bool>,
}

impl<'a> Unroll<'a> {
    fn layer(&mut self, id: LayerId) -> Result<Vec<Fate>, MicrobatchError> {
        let layer = &self.model.layers()[id];
        let name = self.model.layer_name(id).to_string();
        let is_fed = |&operand: &ValueId| {
            matches!(self.model.op_of(operand), Op::Input) && self.model.ty(operand).dtype.is_index()
        };
        if let Op::Input = layer.op {
            return Ok(vec![self.input(&name, layer.results[0])?]);
        }
        if let Some(op) = self.along_batch(layer) {
            return self.parts(&name, layer, &op, (&[0], &[]));
        }
        if layer.op.is_leaf() {
            let ty = self.model.ty(layer.results[0]).clone();
            let leaf = self.builder.leaf(&name, layer.op.clone(), ty)?;
            self.tag(0, &layer.results);
            return Ok(vec![Fate::Shared(leaf)]);
        }
        if layer.op.is_source() {
            return Ok(vec![Fate::Open; layer.results.len()]);
        }
        if !layer.operands.iter().any(|&operand| matches!(self.fates[operand], Fate::Parts(..))) {
            return self.shared(&name, layer);
        }
        match self.over_batch(layer) {
            Over::Rows(op, dims, cut) => self.parts(&name, layer, &op, (&dims, &cut)),
            // The whole input is still there under its own name; counting it at once frees every microbatch from waiting.
            Over::Sum(op, after, _) if after.is_empty() && layer.operands.iter().all(is_fed) => {
                let whole = |&value: &ValueId| self.builder.find(&self.model.values()[value].name);
                let operands = layer.operands.iter().map(whole).collect::<Option<Vec<_>>>();
                let count = self.builder.add_one(&name, op, &operands.expect("inputs keep their names"))?;
                self.tag(0, &layer.results);
                Ok(vec![Fate::Shared(count)])
            }
            Over::Sum(op, after, cut) => {
                let first = self.origins.len();
                let parts = self.parts(&name, layer, &op, (&[0], &cut))?;
                (first..self.origins.len())
                    .for_each(|at| self.origins[LayerId::from_index(at)].is_addend = true);
                self.total(&name, parts, after)
            }
            Over::Mixed => Err(MicrobatchError::Mixes { layer: name, op: layer.op.to_text().0.into() }),
        }
    }

    fn input(&mut self, name: &str, value: ValueId) -> Result<Fate, MicrobatchError> {
        let ty = self.model.ty(value).clone();
        let axis = self.classes.batch_dim(value);
        let batch = ty.shape.dims().get(axis).copied().unwrap_or(0);
        let (microbatches, blocks) = (self.microbatches, self.blocks);
        if batch == 0 || !batch.is_multiple_of(microbatches.saturating_mul(blocks)) {
            let (input, ty) = (name.to_string(), ty.to_string());
            return Err(MicrobatchError::Indivisible { input, ty, batch, microbatches, blocks });
        }
        let whole = self.builder.input(name, ty)?;
        self.tag(0, &[value]);
        let sizes = vec![batch / microbatches; microbatches];
        let parts = self.builder.add(&format!("{name}.mb"), Split { axis, sizes, blocks }, &[whole])?;
        self.layer = None;
        self.tag(0, &[]);
        Ok(Fate::Parts(parts, axis))
    }

    /// What a value that is stretched along the outermost dimension is for one microbatch, if that is the batch: the same
    /// for each.
    fn along_batch(&self, layer: &Layer<()>) -> Option<Op> {
        let (source, result) = (layer.operands.first()?, layer.results[0]);
        layer.op.get::<Broadcast>()?;
        let [from, to] = [*source, result].map(|value| &self.model.ty(value).shape);
        let is_stretched = from.rank() < to.rank() || from.dims().first() == Some(&1);
        let is_batch = to.rank() > 0 && self.classes.batch().contains(&self.classes.of(result, 0));
        let is_shared = matches!(self.fates[*source], Fate::Shared(_));
        let extent =
            to.dims().first().filter(|extent| extent.is_multiple_of(self.microbatches * self.blocks))?;
        let part = to.with(0, extent / self.microbatches);
        layer.op.operator()?.resized(&part).filter(|_| is_stretched && is_batch && is_shared)
    }

    /// A layer that no input reaches, or only through totals: computed once.
    fn shared(&mut self, name: &str, layer: &Layer<()>) -> Result<Vec<Fate>, MicrobatchError> {
        let operands =
            layer.operands.iter().map(|&value| self.shared_value(value)).collect::<Result<Vec<_>, _>>()?;
        let tag = operands.iter().map(|&operand| self.tag_of(operand)).max().unwrap_or(0);
        let results = self.builder.add(name, layer.op.clone(), &operands)?;
        self.tag(tag, &layer.results);
        Ok(results.into_iter().map(Fate::Shared).collect())
    }

    /// A layer on each part. Its results are cut along `dims`; the operands `cut`, a slot and a dimension each, are cut first.
    fn parts(
        &mut self,
        name: &str,
        layer: &Layer<()>,
        op: &Op,
        (dims, cut): (&[usize], &[(usize, usize)]),
    ) -> Result<Vec<Fate>, MicrobatchError> {
        let operand = |(slot, &value): (usize, &ValueId)| match &self.fates[value] {
            Fate::Parts(parts, _) => Ok(parts.clone()),
            _ => match cut.iter().find(|(cut, _)| *cut == slot) {
                Some(&(_, dim)) => self.cut(value, dim),
                None => Ok(vec![self.shared_value(value)?; self.microbatches]),
            },
        };
        let all =
            layer.operands.iter().enumerate().map(operand).collect::<Result<Vec<_>, MicrobatchError>>()?;
        let own = |(slot, &value): (usize, &ValueId)| match self.fates[value] {
            Fate::Parts(_, dim) => Some(dim),
            _ => cut.iter().find(|(cut, _)| *cut == slot).map(|&(_, dim)| dim),
        };
        let own: Vec<_> = layer.operands.iter().enumerate().map(own).collect();
        let mut fates = vec![Vec::new(); layer.results.len()];
        for part in 0..self.microbatches {
            let operands: Vec<ValueId> = all.iter().map(|parts| parts[part]).collect();
            let results = self.builder.add(&format!("{name}.mb{part}"), op.clone(), &operands)?;
            let batch = Some(dims[0]).filter(|&dim| self.shown_batch(op, &operands, &results, &own) != dim);
            let origin = self.tag(part as u32, &layer.results);
            (origin.is_part, origin.batch) = (true, batch);
            results.into_iter().zip(&mut fates).for_each(|(result, parts)| parts.push(result));
        }
        Ok(fates.into_iter().zip(dims).map(|(parts, &dim)| Fate::Parts(parts, dim)).collect())
    }

    /// Where the samples of a part lie as far as its operator and shapes show, if those of its operands lie at `own`.
    fn shown_batch(
        &self,
        op: &Op,
        operands: &[ValueId],
        results: &[ValueId],
        own: &[Option<usize>],
    ) -> usize {
        let shapes = |values: &[ValueId]| -> Vec<Shape> {
            values.iter().map(|&value| self.builder.shape(value).clone()).collect()
        };
        let (operands, results) = (shapes(operands), shapes(results));
        let [operands, results]: [Vec<&Shape>; 2] = [operands.iter().collect(), results.iter().collect()];
        let cuts = op.operator().map(|operator| operator.cuts(&operands, &results));
        cuts.and_then(|cuts| cuts.carried(own, 0)).unwrap_or(0)
    }

    /// The sum of the parts, then `after`.
    fn total(&mut self, name: &str, fates: Vec<Fate>, after: Vec<Op>) -> Result<Vec<Fate>, MicrobatchError> {
        let Some(Fate::Parts(parts, _)) = fates.into_iter().next() else {
            unreachable!("a layer over the batch has one result a microbatch");
        };
        let sums = format!("{name}.sum");
        let results = self.layer.map_or(Vec::new(), |layer| self.model.layers()[layer].results.clone());
        let names = if !after.is_empty() { [sums.as_str(); 2] } else { [name, &sums] };
        let mut total = self.tree(names, &parts)?;
        self.origins[self.builder.layer_of(total)].is_addend = false;
        for op in after {
            total = self.builder.add_one(name, op, &[total])?;
            self.tag(self.microbatches as u32 - 1, &[]);
        }
        self.origins[self.builder.layer_of(total)].values = results;
        Ok(vec![Fate::Shared(total)])
    }

    /// The sum of the parts as a balanced tree; the names are of the last addition and of those before it.
    fn tree(&mut self, [last, inner]: [&str; 2], parts: &[ValueId]) -> Result<ValueId, MicrobatchError> {
        if let [only] = parts {
            return Ok(*only);
        }
        let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
        let (left, right) = (self.tree([inner, inner], left)?, self.tree([inner, inner], right)?);
        let tag = self.tag_of(right);
        let sum = self.builder.binary(last, Binary::Add, left, right)?;
        self.tag(tag, &[]).is_addend = true;
        Ok(sum)
    }

    /// An output as one value under its own name: parts are joined.
    fn whole(&mut self, output: ValueId) -> Result<ValueId, MicrobatchError> {
        let value = &self.model.values()[output];
        match self.fates[output].clone() {
            Fate::Shared(shared) if self.builder.find(&value.name) == Some(shared) => Ok(shared),
            Fate::Open => self.shared_value(output),
            // One of several results, which the builder names after their layer.
            Fate::Shared(shared) => {
                let due = self.tag_of(shared);
                let named = self.builder.unary(&value.name, Unary::Identity, shared)?;
                self.layer = Some(value.layer);
                self.tag(due, &[output]);
                Ok(named)
            }
            Fate::Parts(parts, axis) => {
                let joint = Concat { axis, blocks: self.blocks };
                let joined = self.builder.add_one(&value.name, joint, &parts)?;
                self.layer = Some(value.layer);
                self.tag(self.microbatches as u32 - 1, &[output]);
                Ok(joined)
            }
        }
    }

    /// A value that is not computed part by part.
    fn shared_value(&mut self, value: ValueId) -> Result<ValueId, MicrobatchError> {
        match &self.fates[value] {
            Fate::Shared(shared) => Ok(*shared),
            Fate::Parts(..) => unreachable!("a layer with parts has parts"),
            Fate::Open => {
                let (id, layer) = self.source_of(value);
                let at_hand = self.layer.replace(id);
                let drawn = self.builder.add_one(self.model.layer_name(id), layer.op.clone(), &[])?;
                self.tag(0, &layer.results);
                self.layer = at_hand;
                self.fates[value] = Fate::Shared(drawn);
                Ok(drawn)
            }
        }
    }

    /// The parts along `dim` of a value that is not computed part by part: what is drawn is drawn so, all else is cut.
    fn cut(&mut self, value: ValueId, dim: usize) -> Result<Vec<ValueId>, MicrobatchError> {
        if let Some(parts) = self.cut.get(&(value, dim)) {
            return Ok(parts.clone());
        }
        let at_hand = self.layer;
        let shape = self.model.ty(value).shape.clone();
        let part = shape.with(dim, shape.dims()[dim] / self.microbatches);
        let (id, layer) = self.source_of(value);
        let drawn = layer.op.operator().and_then(|operator| operator.resized(&part)).filter(|_| dim == 0);
        let parts = match (&self.fates[value], drawn) {
            (Fate::Open, Some(op)) => {
                self.layer = Some(id);
                let drawn = self.parts(self.model.layer_name(id), layer, &op, (&[0], &[]))?.pop();
                let Some(Fate::Parts(parts, _)) = drawn else {
                    unreachable!("an operator without operands has one result");
                };
                parts
            }
            _ => {
                let whole = self.shared_value(value)?;
                let name = format!("{}.mb", self.model.values()[value].name);
                let sizes = vec![part.dims()[dim]; self.microbatches];
                let split = Split { axis: dim, sizes, blocks: self.blocks };
                let parts = self.builder.add(&name, split, &[whole])?;
                self.layer = None;
                self.tag(self.tag_of(whole), &[]);
                parts
            }
        };
        self.layer = at_hand;
        self.cut.insert((value, dim), parts.clone());
        Ok(parts)
    }

    fn source_of(&self, value: ValueId) -> (LayerId, &'a Layer<()>) {
        let id = self.model.values()[value].layer;
        (id, &self.model.layers()[id])
    }

    /// Notes the origin of the layer just added.
    fn tag(&mut self, due: u32, values: &[ValueId]) -> &mut Origin {
        let (layer, values) = (self.layer, values.to_vec());
        let id =
            self.origins.push(Origin { layer, values, due, is_part: false, batch: None, is_addend: false });
        &mut self.origins[id]
    }

    fn tag_of(&self, value: ValueId) -> u32 {
        self.origins[self.builder.layer_of(value)].due
    }

    /// How a layer with operands cut along the batch behaves along it.
    fn over_batch(&self, layer: &Layer<()>) -> Over {
        let shapes = |values: &[ValueId]| -> Vec<Shape> {
            values.iter().map(|&value| self.model.ty(value).shape.clone()).collect()
        };
        let (operands, results) = (shapes(&layer.operands), shapes(&layer.results));
        let refs: Vec<&Shape> = operands.iter().collect();
        let behaviour = |op: &Op| {
            op.operator().and_then(|operator| {
                self.along(&operator.cuts(&refs, &results.iter().collect::<Vec<_>>()), layer, &refs, &results)
            })
        };
        match (behaviour(&layer.op), layer.op.operator().and_then(|operator| operator.apart(&refs))) {
            (Some((Along::Rows(dims), cut)), _) => {
                let part = results[0].with(dims[0], results[0].dims()[dims[0]] / self.microbatches);
                let resized = layer.op.operator().and_then(|operator| operator.resized(&part));
                Over::Rows(resized.unwrap_or_else(|| layer.op.clone()), dims, cut)
            }
            (Some((Along::Sum, cut)), _) => Over::Sum(layer.op.clone(), Vec::new(), cut),
            (None, Some(Apart { sum, after, .. })) if after.iter().all(|part| part.operand.is_none()) => {
                match behaviour(&sum) {
                    Some((Along::Sum, cut)) => {
                        Over::Sum(sum, after.into_iter().map(|part| part.op).collect(), cut)
                    }
                    _ => Over::Mixed,
                }
            }
            _ => Over::Mixed,
        }
    }

    /// How an operator with these cuts behaves along the batch, the dimension along which operands are cut into parts; `None`
    /// if it mixes rows. With it come the operands that must be cut first, a slot and a dimension each.
    fn along(
        &self,
        cuts: &Cuts,
        layer: &Layer<()>,
        operands: &[&Shape],
        results: &[Shape],
    ) -> Option<(Along, Vec<(usize, usize)>)> {
        let part = |slot: usize| match self.fates[layer.operands[slot]] {
            Fate::Parts(_, dim) => Some(dim),
            Fate::Shared(_) | Fate::Open => None,
        };
        let (first, dim) = (0..operands.len()).find_map(|slot| Some((slot, part(slot)?)))?;
        let batch = (*cuts.operands.get(first)?.get(dim)?)?;
        let place = |dims: &Dims| dims.iter().position(|axis| *axis == Some(batch));
        let must_be_cut = |slot: usize| match part(slot) {
            None if self.untrained[layer.operands[slot]] => Some((slot, place(&cuts.operands[slot])?)),
            _ => None,
        };
        let cut: Vec<(usize, usize)> = (0..operands.len()).filter_map(must_be_cut).collect();
        let fits = |slot: usize| match part(slot) {
            Some(dim) => cuts.operands[slot].get(dim) == Some(&Some(batch)),
            None => must_be_cut(slot).is_some() || !cuts.operands[slot].contains(&Some(batch)),
        };
        let limits = &cuts.limits(operands, &results.iter().collect::<Vec<_>>())[batch];
        let divides = limits.iter().all(|limit| limit.is_multiple_of(self.microbatches * self.blocks));
        let is_free = batch >= cuts.contracted
            && !cuts.counted.contains(&batch)
            && cuts.blocks.iter().all(|&(axis, _)| axis != batch);
        if !(is_free && divides && (0..operands.len()).all(fits)) {
            return None;
        }
        match cuts.results.iter().map(place).collect() {
            Some(dims) => Some((Along::Rows(dims), cut)),
            None => cuts.sum.contains(&batch).then_some((Along::Sum, cut)),
        }
    }
}

/// What a cut of the batch does to a result.
enum Along {
    /// It cuts it, along a dimension of each result.
    Rows(Vec<usize>),
    /// It gives partial sums.
    Sum,
}

/// How a layer behaves along the batch.
enum Over {
    /// Row by row: this operator on each part, the dimension along which each result is cut, and operands to be cut before.
    Rows(Op, Vec<usize>, Vec<(usize, usize)>),
    /// Summed: this operator on each part, the parts added, then functions of the sum; operands to be cut before.
    Sum(Op, Vec<Op>, Vec<(usize, usize)>),
    /// Neither.
    Mixed,
}
