//! Decides, layer by layer, what every task axis is and how every operand must lie. Nothing is moved yet.
//!
//! Layers that cannot be done on partial sums in one go become several: a linear layer with cut input features adds its
//! bias and applies its function after the sum, a mean over a cut dimension divides after it.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, LayerId, Update, ValueId};
use phalanx_ir::parallel::Microbatch;
use phalanx_ir::{Apart, Id, IdVec, Op, Part, TensorType};

use super::layout::{Layout, Machine, MeshAxis, Stage};
use super::resolve::Constraint;
use super::signature::{Signature, Tasks};
use crate::classes::Classes;
use crate::microbatch::{Origin, Unrolled};
use crate::{Plan, PlanError};

phalanx_ir::id! {
    /// A value whose layout is decided.
    pub struct VarId("var");
}

/// A value whose layout is decided.
#[derive(Clone)]
pub(super) struct Var {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// How it lies.
    pub(super) layout: Layout,
    /// How its users see it: for a parameter stored cut, before that cut.
    pub(super) seen: Layout,
    /// Joined anew in the backward pass.
    pub(super) regather: bool,
    pub(super) time: Time,
}

/// With which microbatch something is due, and on which it works.
#[derive(Clone, Copy)]
pub(super) struct Time {
    pub(super) due: u32,
    pub(super) microbatch: Option<Microbatch>,
}

/// A layer with its tasks.
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) operands: Vec<VarId>,
    /// What each operand must be.
    pub(super) wants: Vec<Layout>,
    /// The mesh axes that count the tasks.
    pub(super) axes: Vec<MeshAxis>,
    pub(super) results: Vec<VarId>,
    /// What each result is before it is brought into its layout.
    pub(super) gives: Vec<Layout>,
    pub(super) stage: Stage,
    pub(super) time: Time,
    /// The same for the same use in all microbatches.
    pub(super) place: Place,
    /// The dimension along which samples lie, where operator and shapes do not say it.
    pub(super) batch: Option<usize>,
    /// A source whose layout is that of its uses.
    follows_uses: bool,
}

/// Which layer of the model, and which of the layers that it became.
pub(super) type Place = (usize, usize);

/// A model with all layouts decided.
#[derive(Default)]
pub(super) struct Decided {
    pub(super) nodes: Vec<Node>,
    pub(super) vars: IdVec<VarId, Var>,
    pub(super) outputs: Vec<VarId>,
    /// States with what they become.
    pub(super) updates: Vec<(VarId, VarId)>,
}

/// What layouts are decided from.
pub(super) struct Context<'a> {
    pub(super) model: &'a Graph,
    pub(super) classes: &'a Classes<'a>,
    pub(super) plan: &'a Plan,
    pub(super) machine: &'a Machine,
    pub(super) constraints: &'a IdVec<ValueId, Constraint>,
    pub(super) stages: &'a [Stage],
    pub(super) blocks: usize,
}

/// Decides about every layer of the unrolled model.
pub(super) fn decide(context: &Context<'_>, unrolled: &Unrolled) -> Result<Decided, PlanError> {
    let mut decided = Decided::default();
    let mut vars: IdVec<ValueId, VarId> = IdVec::new();
    for (id, layer) in unrolled.graph.layers().iter() {
        let origin = &unrolled.origins[id];
        // Parts of one layer have one place; what is in between has its own, behind those of the model.
        let own = context.model.layers().len() + id.index();
        let layer_place = origin.layer.filter(|_| origin.is_part).map_or(own, LayerId::index);
        let mut decide = Decide { context, decided: &mut decided, origin, place: (layer_place, 0) };
        let result = |&value: &ValueId| {
            (unrolled.graph.values()[value].name.clone(), unrolled.graph.ty(value).clone())
        };
        let results: Vec<_> = layer.results.iter().map(result).collect();
        let operands: Vec<_> = layer.operands.iter().map(|&value| vars[value]).collect();
        for var in decide.layer(&layer.op, &operands, results)? {
            vars.push(var);
        }
    }
    decided.outputs = unrolled.graph.outputs().iter().map(|&output| vars[output]).collect();
    let pair = |update: &Update| (vars[update.state], vars[update.new]);
    decided.updates = unrolled.graph.updates().iter().map(pair).collect();
    decided.follow_uses();
    Ok(decided)
}

impl Decided {
    /// Cuts sources that no rule is about as all their uses want them, so that nothing is cut or moved in every step: what
    /// is made on its devices or set once like all its readers see it, a state like its new value.
    fn follow_uses(&mut self) {
        let (mut wants, mut new): (BTreeMap<VarId, Vec<_>>, BTreeMap<VarId, _>) = Default::default();
        for node in &self.nodes {
            for (&operand, layout) in node.operands.iter().zip(&node.wants) {
                wants.entry(operand).or_default().push(&layout.dims);
            }
        }
        for &(state, value) in &self.updates {
            new.insert(state, &self.vars[value].layout);
        }
        let mut cuts: Vec<(usize, Vec<Vec<MeshAxis>>)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.follows_uses) {
            let uses = wants.get(&node.results[0]).map_or(&[][..], |uses| uses);
            let dims = match (&node.op, new.get(&node.results[0])) {
                (Op::State(_), new) => {
                    new.filter(|new| new.sum.is_empty() && new.copy.is_empty()).map(|new| &new.dims)
                }
                _ => uses.first().copied().filter(|first| uses.iter().all(|dims| dims == first)),
            };
            cuts.extend(dims.map(|dims| (at, dims.clone())));
        }
        for (at, dims) in cuts {
            let layout = Layout::cut(dims);
            let node = &mut self.nodes[at];
            (node.axes, node.gives) = (layout.axes(), vec![layout.clone()]);
            let var = &mut self.vars[node.results[0]];
            (var.seen, var.layout) = (layout.clone(), layout);
        }
    }
}

/// One layer being decided about.
struct Decide<'a> {
    context: &'a Context<'a>,
    decided: &'a mut Decided,
    origin: &'a Origin,
    place: Place,
}

type Results = Vec<(String, TensorType)>;

impl Decide<'_> {
    fn layer(&mut self, op: &Op, operands: &[VarId], results: Results) -> Result<Vec<VarId>, PlanError> {
        if op.is_source() {
            return Ok(vec![self.leaf(op, results)?]);
        }
        let is_cut =
            |sum: &Op, count| !self.tasks(sum, &operands[..count], &results).results[0].sum.is_empty();
        let shapes: Vec<_> = operands.iter().map(|&operand| &self.decided.vars[operand].ty.shape).collect();
        match op.operator().and_then(|operator| operator.apart(&shapes)) {
            Some(apart) if is_cut(&apart.sum, apart.operands) => self.after_sum(apart, operands, results),
            _ => self.add(op.clone(), operands, results),
        }
    }

    /// A layer of partial sums, then layers on their sum; the last has the name.
    fn after_sum(
        &mut self,
        apart: Apart,
        operands: &[VarId],
        results: Results,
    ) -> Result<Vec<VarId>, PlanError> {
        let (name, ty) = results[0].clone();
        let Apart { sum, operands: count, after } = apart;
        let mut sum =
            self.add(sum, &operands[..count], vec![(within(&name, self.time(), "sum"), ty.clone())])?;
        let last = after.len() - 1;
        for (at, Part { op, operand, word }) in after.into_iter().enumerate() {
            self.place.1 += 1;
            let name = if at == last { name.clone() } else { within(&name, self.time(), word) };
            let operands: Vec<_> = sum.into_iter().chain(operand.map(|slot| operands[slot])).collect();
            sum = self.add(op, &operands, vec![(name, ty.clone())])?;
        }
        Ok(sum)
    }

    fn leaf(&mut self, op: &Op, results: Results) -> Result<VarId, PlanError> {
        let (name, ty) = results.into_iter().next().expect("a leaf has one result");
        let constraint = self.constraint(0);
        self.check_cuts(&constraint, &name, &ty)?;
        let whole = vec![Vec::new(); ty.shape.rank()];
        let mut seen = Layout::cut(whole);
        constraint.shard.iter().for_each(|(&dim, axes)| seen.dims[dim].clone_from(axes));
        let mut layout = seen.clone();
        constraint.store.iter().for_each(|(&dim, axes)| layout.dims[dim].extend(axes));
        let (axes, gives, regather) =
            (layout.axes(), vec![layout.clone()], constraint.regather && !constraint.store.is_empty());
        let var = self.decided.vars.push(Var { name, ty, layout, seen, regather, time: self.time() });
        let is_free = constraint.shard.is_empty() && constraint.store.is_empty();
        let follows_uses = is_free && !matches!(op, Op::Input | Op::Param(_) | Op::Constant(_));
        self.push(Node { axes, gives, results: vec![var], follows_uses, ..self.node(op.clone()) });
        Ok(var)
    }

    /// Adds one layer with the tasks nearest to its operands' layouts.
    fn add(&mut self, op: Op, operands: &[VarId], results: Results) -> Result<Vec<VarId>, PlanError> {
        let mut tasks = self.tasks(&op, operands, &results);
        let sum = self.carried_sum(&op, operands, &results);
        let slots = tasks.operands.iter_mut().chain(&mut tasks.results).filter(|_| !sum.is_empty());
        slots.for_each(|layout| layout.sum.clone_from(&sum));
        let mut vars = Vec::new();
        for (index, ((name, ty), gives)) in results.into_iter().zip(&tasks.results).enumerate() {
            let layout = self.layout(index, &name, &ty, gives)?;
            let time =
                if self.origin.layer.is_none() { self.time_of(Some(index as u32)) } else { self.time() };
            let seen = layout.clone();
            vars.push(self.decided.vars.push(Var { name, ty, layout, seen, regather: false, time }));
        }
        let axes = std::iter::once(sum).chain(tasks.axes).flatten().collect();
        let (operands, wants, gives) = (operands.to_vec(), tasks.operands, tasks.results);
        self.push(Node { operands, wants, axes, gives, results: vars.clone(), ..self.node(op) });
        Ok(vars)
    }

    fn signature(&self, op: &Op, operands: &[VarId], results: &Results) -> Signature {
        let shapes: Vec<_> = operands.iter().map(|&operand| &self.decided.vars[operand].ty.shape).collect();
        Signature::new(op, &shapes, &results.iter().map(|(_, ty)| &ty.shape).collect::<Vec<_>>())
    }

    fn tasks(&self, op: &Op, operands: &[VarId], results: &Results) -> Tasks {
        let seen: Vec<_> = operands.iter().map(|&operand| &self.decided.vars[operand].seen).collect();
        self.signature(op, operands, results).assign(self.context.machine, &seen)
    }

    /// The partial sums that both operands of an addition are, if it is one of a total's.
    fn carried_sum(&self, op: &Op, operands: &[VarId], results: &Results) -> Vec<MeshAxis> {
        match *operands {
            [a, b] if self.signature(op, operands, results).is_linear() => {
                let [a, b] = [a, b].map(|var| &self.decided.vars[var].seen.sum);
                if a == b { a.clone() } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    /// How a result lies in the end: summed, and cut as the rules say.
    fn layout(&self, index: usize, name: &str, ty: &TensorType, gives: &Layout) -> Result<Layout, PlanError> {
        let mut layout = gives.clone();
        if !self.origin.is_addend {
            layout.sum.clear();
        }
        let constraint = self.constraint(index);
        for (&dim, axes) in &constraint.shard {
            layout.dims.iter_mut().for_each(|own| own.retain(|axis| !axes.contains(axis)));
            layout.dims[dim].clone_from(axes);
        }
        self.check_cuts(&constraint, name, ty)?;
        Ok(layout)
    }

    /// That what the rules say divides the extents of this part of a tensor.
    fn check_cuts(&self, constraint: &Constraint, name: &str, ty: &TensorType) -> Result<(), PlanError> {
        for (&dim, axes) in &constraint.shard {
            let (extent, degree) = (ty.shape.dims()[dim], self.context.machine.degree(axes));
            if !extent.is_multiple_of(degree) {
                let (tensor, ty) = (name.to_string(), ty.to_string());
                let names: Vec<_> =
                    axes.iter().map(|&axis| self.context.plan.mesh.axes[axis].0.as_str()).collect();
                let axes = names.join(" ");
                return Err(PlanError::Indivisible { tensor, ty, dim, extent, degree, axes });
            }
        }
        Ok(())
    }

    fn constraint(&self, index: usize) -> Constraint {
        self.origin
            .values
            .get(index)
            .map_or_else(Constraint::default, |&value| self.context.constraints[value].clone())
    }

    fn time(&self) -> Time {
        self.time_of(self.origin.is_part.then_some(self.origin.due))
    }

    fn time_of(&self, index: Option<u32>) -> Time {
        let (count, blocks) = (self.context.plan.microbatches as u32, self.context.blocks as u32);
        let due = index.unwrap_or(self.origin.due);
        Time { due, microbatch: index.map(|index| Microbatch { index, count, blocks }) }
    }

    /// A node without operands and results, at the place and time of the layer at hand.
    fn node(&self, op: Op) -> Node {
        let stage = self.origin.layer.and_then(|layer| self.context.stages[layer.index()]);
        let (time, place) = (self.time(), self.place);
        let (operands, wants, axes, results, gives) = Default::default();
        let batch = match (&op, self.origin.values.first()) {
            (Op::Input, Some(&input)) => Some(self.context.classes.batch_dim(input)).filter(|&dim| dim > 0),
            _ => self.origin.batch,
        };
        Node { op, operands, wants, axes, results, gives, stage, time, place, batch, follows_uses: false }
    }

    fn push(&mut self, node: Node) {
        self.decided.nodes.push(node);
    }
}

/// A name for something on the way to or from `name`; the suffix of the microbatch stays at its end.
pub(super) fn within(name: &str, time: Time, word: &str) -> String {
    let suffix = time.microbatch.map_or(String::new(), |microbatch| format!(".mb{}", microbatch.index));
    match name.strip_suffix(&suffix) {
        Some(base) => format!("{base}.{word}{suffix}"),
        None => format!("{name}.{word}"),
    }
}
