//! Writes the parallel graph: every layer with its groups, and before and after it the parallel operators that bring
//! operands and results into their layouts.
//!
//! Equal conversions of a value are shared where that keeps the order in which its gradient is added up. On one device it
//! is the chain of all its uses, later ones first. Copies turn into parts of a gradient that are added over devices, so each
//! use has its own: the sum over devices belongs to the use. What is only joined or cut is shared if its uses are the last
//! ones of the value; their sum is then the beginning of the same chain.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::graph::{Update, ValueId};
use phalanx_ir::parallel::{LayerPlacement, ParallelBuilder, ParallelGraph, ParallelType};
use phalanx_ir::{IdVec, Op, TensorType};

use super::decide::{Decided, Node, Place, Time, VarId, within};
use super::layout::{Layout, Machine, MeshAxis, Stage, chain};

/// One operand of one layer of the model, in all microbatches.
type Use = (Place, usize);

/// A value cut in another way on a stage.
type Cut = (VarId, Stage, Vec<Vec<MeshAxis>>);

/// Writes what was decided.
pub(super) fn emit(name: &str, machine: &mut Machine, decided: &Decided) -> ParallelGraph {
    let private = private_cuts(decided);
    let builder = ParallelBuilder::new(name);
    let (values, cuts, copies) = (IdVec::new(), BTreeMap::new(), BTreeMap::new());
    let mut emit = Emit { machine, decided, private, builder, values, cuts, copies };
    for node in &decided.nodes {
        emit.node(node);
    }
    for &(state, new) in &decided.updates {
        let [state, new] = [state, new].map(|var| emit.values[var]);
        emit.builder.update(Update { state, new });
    }
    let outputs = decided.outputs.iter().map(|&output| emit.values[output]).collect();
    emit.builder.finish(outputs)
}

/// Conversions that must not be shared between uses.
fn private_cuts(decided: &Decided) -> BTreeSet<Cut> {
    let mut uses: BTreeMap<VarId, Vec<Cut>> = BTreeMap::new();
    for node in &decided.nodes {
        for (&operand, wants) in node.operands.iter().zip(&node.wants) {
            uses.entry(operand).or_default().push((operand, node.stage, wants.dims.clone()));
        }
    }
    let mut private = BTreeSet::new();
    for (var, uses) in uses {
        let var = &decided.vars[var];
        // The uses from here on are all alike.
        let alike = uses.iter().rev().take_while(|cut| Some(*cut) == uses.last()).count();
        let first = uses.len() - alike;
        private.extend(match var {
            var if var.regather => uses,
            var if !var.ty.dtype.is_float() => Vec::new(),
            _ => uses[..first].to_vec(),
        });
    }
    private
}

struct Emit<'a> {
    machine: &'a mut Machine,
    decided: &'a Decided,
    private: BTreeSet<Cut>,
    builder: ParallelBuilder,
    /// The value of every variable so far.
    values: IdVec<VarId, ValueId>,
    /// For all users, or for one use.
    cuts: BTreeMap<(Cut, Option<Use>), ValueId>,
    copies: BTreeMap<(ValueId, Vec<MeshAxis>, Use), ValueId>,
}

/// A conversion to be written.
struct Conversion<'a> {
    name: &'a str,
    ty: &'a TensorType,
    stage: Stage,
    time: Time,
    /// What the last value is called, if not by its operator.
    last: Option<&'a str>,
}

impl Emit<'_> {
    fn node(&mut self, node: &Node) {
        let operands: Vec<ValueId> = (0..node.operands.len()).map(|slot| self.operand(node, slot)).collect();
        let decided = self.decided;
        let result = |(&var, gives): (&VarId, &Layout)| {
            let var = &decided.vars[var];
            let word = if gives.sum.is_empty() { "computed" } else { "partial" };
            let name =
                if var.layout == *gives { var.name.clone() } else { within(&var.name, var.time, word) };
            (name, tiling(self.machine, &var.ty, gives))
        };
        let results = node.results.iter().zip(&node.gives).map(result).collect();
        let placement = self.placement(node.stage, &node.axes, node.time);
        let placement = LayerPlacement { batch: node.batch, ..placement };
        let values = self.builder.add(node.op.clone(), &operands, results, placement);
        for ((&var, gives), value) in node.results.iter().zip(&node.gives).zip(values) {
            let var = &decided.vars[var];
            let steps = chain(self.machine, gives, &var.layout, false);
            let (stage, time) = (node.stage, var.time);
            let conversion =
                Conversion { name: &var.name, ty: &var.ty, stage, time, last: Some(var.name.as_str()) };
            let value = self.convert(value, steps, &conversion);
            self.values.push(value);
        }
    }

    /// An operand as the layer wants it.
    fn operand(&mut self, node: &Node, slot: usize) -> ValueId {
        let (id, wants) = (node.operands[slot], &node.wants[slot]);
        let var = &self.decided.vars[id];
        let conversion =
            Conversion { name: &var.name, ty: &var.ty, stage: node.stage, time: var.time, last: None };
        let used = (node.place, slot);
        let mut value = self.values[id];
        let cut = Layout { copy: Vec::new(), ..wants.clone() };
        if var.layout != cut {
            let key = (id, node.stage, cut.dims.clone());
            let is_private = self.private.contains(&key);
            let key = (key, is_private.then_some(used));
            value = match self.cuts.get(&key) {
                Some(&value) => value,
                None => {
                    let steps = chain(self.machine, &var.layout, &cut, var.regather);
                    let value = self.convert(value, steps, &conversion);
                    self.cuts.insert(key, value);
                    value
                }
            };
        }
        if wants.copy.is_empty() {
            return value;
        }
        let key = (value, wants.copy.clone(), used);
        if let Some(&copies) = self.copies.get(&key) {
            return copies;
        }
        let copies = self.convert(value, chain(self.machine, &cut, wants, false), &conversion);
        self.copies.insert(key, copies);
        copies
    }

    /// Applies a chain of parallel operators.
    fn convert(&mut self, mut value: ValueId, steps: Vec<(Op, Layout)>, to: &Conversion<'_>) -> ValueId {
        let last = steps.len();
        for (at, (op, layout)) in steps.into_iter().enumerate() {
            let word = match op {
                Op::Combine { .. } => "whole",
                Op::Repartition { .. } => "cut",
                Op::Replicate { .. } => "copies",
                _ => "sum",
            };
            let name = match to.last.filter(|_| at + 1 == last) {
                Some(name) => name.to_string(),
                None => within(to.name, to.time, word),
            };
            let result = (name, tiling(self.machine, to.ty, &layout));
            let placement = self.placement(to.stage, &layout.axes(), to.time);
            value = self.builder.add(op, &[value], vec![result], placement)[0];
        }
        value
    }

    fn placement(&mut self, stage: Stage, axes: &[MeshAxis], time: Time) -> LayerPlacement {
        LayerPlacement {
            groups: self.machine.groups(stage, axes),
            due: time.due,
            microbatch: time.microbatch,
            batch: None,
        }
    }
}

fn tiling(machine: &Machine, ty: &TensorType, layout: &Layout) -> ParallelType {
    machine.tiling(ty, layout).expect("every layout divides its tensor's extents")
}
