//! Makes forward and backward tasks of a parallel graph.
//!
//! Needs: a verified parallel graph.
//! Gives: forward tasks in layer order, then backward tasks in reverse; each of the four parallel operators is a movement
//! in both directions. Gradients flow only from the first output to parameters. The gradient of a value used several
//! times is an explicit sum: for every use a balanced tree over microbatches, then a chain over the uses in the order in
//! which the backward walk meets them. The gradient of the first output is a buffer that no task writes yet (`insert-loss`
//! does). All gradients are f32, whatever the value's storage type. States are set after that, when nothing reads them
//! any more.
//!
//! Bits: a sum along an axis is a tree over leaves that the whole tensor defines; a tile that owns an aligned subtree
//! computes its root. Where a tile does not, the layer is reported unless the options allow other bits.

mod batches;
mod layer;
mod leaves;
mod make;
mod places;
mod states;
mod sums;

pub use layer::mask_salt;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use phalanx_ir::graph::{LayerId, ValueId};
use phalanx_ir::parallel::{DeviceGroup, ParallelGraph, TilingRule};
use phalanx_ir::sharded::ShardedGraph;
use phalanx_ir::tasks::{BufferId, Role};
use phalanx_ir::{DType, Id, IdVec, Op, TensorType};

use crate::{FrozenParameters, Goal, LowerError, LowerOptions};

pub(crate) use make::hyper;
use sums::{Contribution, Order};

/// State of the walk.
struct Expander<'a> {
    graph: &'a ParallelGraph,
    options: &'a LowerOptions,
    sharded: ShardedGraph,
    /// The tasks of each layer.
    rules: IdVec<LayerId, Arc<TilingRule>>,
    /// The buffer of each value computed so far.
    buffers: IdVec<ValueId, Option<BufferId>>,
    /// What the forward tasks of a layer keep for its backward tasks.
    saved: IdVec<LayerId, Vec<BufferId>>,
    /// Values whose gradient is of use: they depend on a parameter that is not frozen.
    wanted: IdVec<ValueId, bool>,
    /// Along which dimension of each value samples lie, if along one.
    batches: IdVec<ValueId, Option<usize>>,
    contributions: BTreeMap<ValueId, Vec<Contribution>>,
    /// The first use of every value whose gradient is complete.
    first_use: BTreeMap<ValueId, Order>,
    /// How many gradients the layer at hand gave so far.
    given: usize,
    /// Values joined anew for the backward tasks of a layer.
    regathered: HashMap<(ValueId, LayerId), BufferId>,
    /// DeviceGroup lists known so far: equal ones are one.
    groups: HashMap<make::GroupsKey, Arc<[DeviceGroup]>>,
    /// The first layer that gives other bits than the whole tensor would.
    unaligned: Option<LowerError>,
    /// The layer at hand and its tasks.
    layer: LayerId,
    rule: Arc<TilingRule>,
}

/// The pass; see the head of the file.
pub fn expand_passes(graph: &ParallelGraph, options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let mut expander = Expander::new(graph, options)?;
    for layer in graph.layers().ids() {
        expander.enter(layer);
        expander.forward();
    }
    if options.goal != Goal::Infer {
        expander.backward_from_loss()?;
    }
    if let Goal::Train(_) = options.goal {
        expander.set_states();
    }
    if let Some(error) = expander.unaligned.filter(|_| !options.free_bits) {
        return Err(error);
    }
    let mut sharded = expander.sharded;
    for &output in graph.outputs() {
        if let Some(buffer) = expander.buffers[output] {
            keep(&mut sharded, graph.values()[output].name.clone(), buffer);
        }
    }
    Ok(sharded)
}

/// Lets the host read `buffer` after the step, under `name`.
pub(crate) fn keep(sharded: &mut ShardedGraph, name: String, buffer: BufferId) {
    let root = sharded.root(buffer);
    if sharded.buffers[root].role == Role::Temp {
        sharded.buffers[root].role = Role::Output;
    }
    sharded.outputs.push((name, buffer));
}

impl<'a> Expander<'a> {
    fn new(graph: &'a ParallelGraph, options: &'a LowerOptions) -> Result<Self, LowerError> {
        let rule = |layer| {
            let name = || graph.layer_name(layer).to_string();
            graph.rule(layer).map(Arc::new).map_err(|error| LowerError::Rule { layer: name(), error })
        };
        let rules: IdVec<LayerId, Arc<TilingRule>> =
            graph.layers().ids().map(rule).collect::<Result<_, _>>()?;
        let first = LayerId::from_index(0);
        Ok(Expander {
            graph,
            options,
            sharded: ShardedGraph { name: graph.name().to_string(), ..ShardedGraph::default() },
            buffers: graph.values().ids().map(|_| None).collect(),
            saved: graph.layers().ids().map(|_| Vec::new()).collect(),
            wanted: wanted(graph, &options.goal)?,
            batches: batches::batches(graph),
            contributions: BTreeMap::new(),
            first_use: BTreeMap::new(),
            given: 0,
            regathered: HashMap::new(),
            groups: HashMap::new(),
            unaligned: None,
            layer: first,
            rule: Arc::clone(&rules[first]),
            rules,
        })
    }

    fn enter(&mut self, layer: LayerId) {
        self.layer = layer;
        self.given = 0;
        self.rule = Arc::clone(&self.rules[layer]);
    }

    fn backward_from_loss(&mut self) -> Result<(), LowerError> {
        let loss = self.graph.outputs()[0];
        let name = self.graph.values()[loss].name.clone();
        let ty = self.graph.ty(loss);
        if ty.global() != TensorType::f32([]) || ty.tiles() != 1 {
            return Err(LowerError::NoLoss { output: name, ty: ty.to_string() });
        }
        if !self.wanted[loss] {
            return Err(LowerError::NothingToTrain { output: name });
        }
        self.enter(self.graph.values()[loss].layer);
        let seed = self.value_gradient(loss, 1);
        self.sharded.loss = self.buffers[loss];
        self.give_value(loss, seed);
        for layer in self.graph.layers().ids().rev() {
            self.enter(layer);
            self.backward();
        }
        for param in self.graph.leaves(|op| matches!(op, Op::Param(_))).collect::<Vec<_>>() {
            self.enter(self.graph.values()[param].layer);
            if let Some(gradient) = self.gradient(param) {
                self.sharded.gradients.push((self.buf(param), gradient));
            }
        }
        Ok(())
    }

    /// Records a gradient of `value` that has its shape.
    fn give_value(&mut self, value: ValueId, buffer: BufferId) {
        if self.wanted[value] {
            let label = &self.graph.layers()[self.layer].label;
            let (due, microbatch) = (label.due, label.microbatch);
            let ty = self.sharded.buffers[buffer].ty.clone();
            let buffer = match ty.global().shape == self.graph.ty(value).global().shape {
                true => buffer,
                false => self.view_of(buffer, self.graph.ty(value).dual()),
            };
            let order = self.order();
            self.contributions.entry(value).or_default().push(Contribution {
                buffer,
                order,
                due,
                microbatch,
            });
        }
    }

    /// The place of the gradient that the layer at hand gives now.
    fn order(&mut self) -> Order {
        self.given += 1;
        let own = (Reverse(self.layer), self.given);
        match self.graph.layers()[self.layer].op.is_parallel() {
            true => self.first_use.get(&self.graph.layers()[self.layer].results[0]).copied().unwrap_or(own),
            false => own,
        }
    }
}

/// Values whose gradient is of use.
fn wanted(graph: &ParallelGraph, goal: &Goal) -> Result<IdVec<ValueId, bool>, LowerError> {
    let frozen = match goal {
        Goal::Train(optimizer) => Some(FrozenParameters::new(optimizer, graph)?),
        Goal::Gradients | Goal::Infer => None,
    };
    let is_frozen =
        |value: ValueId| frozen.as_ref().is_some_and(|frozen| frozen.contains(&graph.values()[value].name));
    let mut wanted: IdVec<ValueId, bool> = graph.values().ids().map(|_| false).collect();
    for (_, layer) in graph.layers().iter() {
        let is_param = matches!(layer.op, Op::Param(_)) && !is_frozen(layer.results[0]);
        let depends = layer.operands.iter().any(|&operand| wanted[operand]);
        for &result in &layer.results {
            let is_float = DType::is_float(graph.ty(result).dtype());
            wanted[result] = *goal != Goal::Infer && is_float && (is_param || depends);
        }
    }
    Ok(wanted)
}
