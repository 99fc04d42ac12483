//! Makes forward and backward tasks of a parallel graph.
//!
//! Needs: a verified parallel graph of whole tensors.
//! Gives: forward tasks in layer order, then backward tasks in reverse. Gradients flow only from the first output to
//! parameters. The gradient of a value used several times is an explicit sum: for every use a balanced tree over
//! microbatches, then a chain over the uses in the order in which the backward walk meets them. The gradient of the
//! first output is a buffer nobody writes yet (`insert-loss` does).
//! All gradients are f32, whatever the value's storage type.

mod backward;
mod forward;
mod packed;

use std::collections::BTreeMap;

use phalanx_ir::graph::{LayerId, ValueId};
use phalanx_ir::parallel::{DeviceId, ParallelGraph};
use phalanx_ir::tasks::{Buffer, BufferId, Role, Task, TaskGraph, TaskOp};
use phalanx_ir::{Binary, DType, Id, IdVec, Op, Shape, TensorType, leaves_of};

use crate::{Goal, HYPER, LowerError, Options};
use packed::Packed;

/// One gradient that reached a value.
struct Contribution {
    buffer: BufferId,
    microbatch: u32,
}

/// State of the walk.
struct Expander<'a> {
    graph: &'a ParallelGraph,
    options: &'a Options,
    tasks: TaskGraph,
    /// The buffer of each value computed so far.
    buffers: IdVec<ValueId, Option<BufferId>>,
    /// What the forward tasks of a layer keep for its backward tasks.
    saved: IdVec<LayerId, Vec<BufferId>>,
    /// Values whose gradient is of use: they depend on a parameter.
    wanted: IdVec<ValueId, bool>,
    contributions: BTreeMap<ValueId, Vec<Contribution>>,
    packed: Packed,
    /// Into how many parts the batch is cut.
    microbatches: usize,
    /// The layer at hand.
    layer: LayerId,
}

/// The pass; see the head of the file.
pub fn expand_passes(graph: &ParallelGraph, options: &Options) -> Result<TaskGraph, LowerError> {
    if let Some((_, value)) = graph.values().iter().find(|(_, value)| value.ty.tiles() > 1) {
        return Err(LowerError::Tiled { value: value.name.clone(), ty: value.ty.to_string() });
    }
    let mut expander = Expander::new(graph, options);
    for layer in graph.layers().ids() {
        expander.layer = layer;
        expander.forward();
    }
    if options.goal != Goal::Infer {
        expander.backward_from_loss()?;
    }
    let mut tasks = expander.tasks;
    for &output in graph.outputs() {
        if let Some(buffer) = expander.buffers[output] {
            keep(&mut tasks, graph.values()[output].name.clone(), buffer);
        }
    }
    Ok(tasks)
}

/// Lets the host read `buffer` after the step, under `name`.
pub(crate) fn keep(tasks: &mut TaskGraph, name: String, buffer: BufferId) {
    let root = tasks.root(buffer);
    if tasks.buffers[root].role == Role::Temp {
        tasks.buffers[root].role = Role::Output;
    }
    tasks.outputs.push((name, buffer));
}

impl<'a> Expander<'a> {
    fn new(graph: &'a ParallelGraph, options: &'a Options) -> Self {
        let backward = options.goal != Goal::Infer;
        let mut wanted: IdVec<ValueId, bool> = graph.values().ids().map(|_| false).collect();
        for (_, layer) in graph.layers().iter() {
            let is_param = matches!(layer.op, Op::Param(_));
            let depends = layer.operands.iter().any(|&operand| wanted[operand]);
            for &result in &layer.results {
                let is_float = graph.ty(result).global().dtype.is_float();
                wanted[result] = backward && is_float && (is_param || depends);
            }
        }
        Expander {
            graph,
            options,
            tasks: TaskGraph { name: graph.name().to_string(), ..TaskGraph::default() },
            buffers: graph.values().ids().map(|_| None).collect(),
            saved: graph.layers().ids().map(|_| Vec::new()).collect(),
            wanted,
            contributions: BTreeMap::new(),
            packed: Packed::find(graph),
            microbatches: 1 + graph
                .layers()
                .iter()
                .map(|(_, layer)| layer.label.microbatch)
                .max()
                .unwrap_or(0) as usize,
            layer: LayerId::from_index(0),
        }
    }

    fn backward_from_loss(&mut self) -> Result<(), LowerError> {
        let loss = self.graph.outputs()[0];
        let name = self.graph.values()[loss].name.clone();
        let ty = self.ty(loss);
        if ty != TensorType::f32([]) {
            return Err(LowerError::NoLoss { output: name, ty: ty.to_string() });
        }
        if !self.wanted[loss] {
            return Err(LowerError::NothingToTrain { output: name });
        }
        self.layer = self.graph.values()[loss].layer;
        let seed = self.temp(&format!("{name}.grad"), ty);
        self.tasks.loss = self.buffers[loss];
        self.give(loss, seed);
        for layer in self.graph.layers().ids().rev() {
            self.layer = layer;
            self.backward();
        }
        let params: Vec<_> = self.graph.leaves(|op| matches!(op, Op::Param(_))).collect();
        for param in params {
            self.layer = self.graph.values()[param].layer;
            if let Some(gradient) = self.gradient(param) {
                self.tasks.gradients.push((self.buf(param), gradient));
            }
        }
        Ok(())
    }

    fn ty(&self, value: ValueId) -> TensorType {
        self.graph.ty(value).tile()
    }

    fn shape(&self, value: ValueId) -> Shape {
        self.ty(value).shape
    }

    fn buf(&self, value: ValueId) -> BufferId {
        self.buffers[value].expect("operands are lowered before their users")
    }

    fn device(&self) -> DeviceId {
        self.graph.layers()[self.layer].label.devices[0]
    }

    fn microbatch(&self) -> u32 {
        self.graph.layers()[self.layer].label.microbatch
    }

    fn new_buffer(&mut self, name: &str, ty: TensorType, role: Role, view_of: Option<BufferId>) -> BufferId {
        let device = self.device();
        self.tasks.buffers.push(Buffer { name: name.to_string(), ty, device, role, view_of })
    }

    fn temp(&mut self, name: &str, ty: TensorType) -> BufferId {
        self.new_buffer(name, ty, Role::Temp, None)
    }

    /// A buffer for the gradient of `value`.
    fn grad_buffer(&mut self, value: ValueId) -> BufferId {
        let name = format!("{}.grad", self.graph.values()[value].name);
        let shape = self.shape(value);
        self.temp(&name, TensorType::f32(shape))
    }

    /// The bytes of `buffer` in the type `ty`.
    fn view(&mut self, buffer: BufferId, ty: TensorType) -> BufferId {
        if self.tasks.buffers[buffer].ty == ty {
            return buffer;
        }
        let name = self.tasks.buffers[buffer].name.clone();
        let role = self.tasks.buffers[buffer].role;
        self.new_buffer(&name, ty, role, Some(buffer))
    }

    fn emit(&mut self, op: TaskOp, reads: &[BufferId], writes: &[BufferId]) {
        let microbatch = self.microbatch();
        self.emit_in(microbatch, op, reads, writes);
    }

    fn emit_in(&mut self, microbatch: u32, op: TaskOp, reads: &[BufferId], writes: &[BufferId]) {
        let layer = self.graph.layer_name(self.layer).to_string();
        let (reads, writes, device) = (reads.to_vec(), writes.to_vec(), self.device());
        self.tasks.tasks.push(Task { op, reads, writes, device, layer, microbatch });
    }

    /// The layer that the one at hand computes one microbatch of, if it does.
    fn part_of(&self) -> Option<&str> {
        self.graph.layer_name(self.layer).strip_suffix(&format!(".mb{}", self.microbatch()))
    }

    /// Leaves of a sum over rows. A microbatch owns an aligned part of the batch's leaves, so that the number of
    /// microbatches does not change bits; what all microbatches share has them all.
    fn batch_leaves(&self, rows: usize) -> usize {
        let most = self.options.leaves.batch;
        leaves_of(rows, if self.part_of().is_some() { most / self.microbatches } else { most })
    }

    /// Leaves of a sum over some axes of a tensor: only the outermost dimension is cut by microbatches.
    fn leaves_along(&self, shape: &Shape, axes: &[usize]) -> usize {
        match axes.first() {
            None => 1,
            Some(0) => self.batch_leaves(shape.dims()[0]),
            Some(&axis) => self.feature_leaves(shape.dims()[axis]),
        }
    }

    /// Leaves of a sum over features.
    fn feature_leaves(&self, features: usize) -> usize {
        leaves_of(features, self.options.leaves.feature)
    }

    /// The scalars the host feeds with every step.
    fn hyper(&mut self) -> BufferId {
        let found = self.tasks.find(HYPER, |role| role == Role::Input);
        found.unwrap_or_else(|| self.new_buffer(HYPER, TensorType::f32([8]), Role::Input, None))
    }

    /// Records a gradient of `value` that has its shape.
    fn give(&mut self, value: ValueId, buffer: BufferId) {
        if self.wanted[value] {
            let microbatch = self.microbatch();
            let buffer = self.view(buffer, TensorType::new(DType::F32, self.shape(value)));
            self.contributions.entry(value).or_default().push(Contribution { buffer, microbatch });
        }
    }

    /// The whole gradient of `value`, if any reached it.
    fn gradient(&mut self, value: ValueId) -> Option<BufferId> {
        let contributions = self.contributions.remove(&value)?;
        let uses = by_use(contributions);
        let sums: Vec<_> = uses.into_iter().map(|parts| self.tree_sum(value, parts)).collect();
        let chain = sums.into_iter().reduce(|sum, next| self.add(value, sum, next));
        chain.map(|total| total.buffer)
    }

    fn tree_sum(&mut self, value: ValueId, mut parts: Vec<Contribution>) -> Contribution {
        if parts.len() > 1 {
            let right = parts.split_off(parts.len().next_power_of_two() / 2);
            let left = self.tree_sum(value, parts);
            let right = self.tree_sum(value, right);
            return self.add(value, left, right);
        }
        parts.pop().expect("a use has at least one contribution")
    }

    fn add(&mut self, value: ValueId, left: Contribution, right: Contribution) -> Contribution {
        let buffer = self.grad_buffer(value);
        let microbatch = left.microbatch.max(right.microbatch);
        let op = TaskOp::Binary { kind: Binary::Add };
        self.emit_in(microbatch, op, &[left.buffer, right.buffer], &[buffer]);
        Contribution { buffer, microbatch }
    }
}

/// Groups contributions by use: the k-th of each microbatch belong together, microbatches ascending.
fn by_use(contributions: Vec<Contribution>) -> Vec<Vec<Contribution>> {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut uses: Vec<Vec<Contribution>> = Vec::new();
    for contribution in contributions {
        let position = seen.entry(contribution.microbatch).or_default();
        if *position == uses.len() {
            uses.push(Vec::new());
        }
        uses[*position].push(contribution);
        *position += 1;
    }
    for parts in &mut uses {
        parts.sort_by_key(|contribution| contribution.microbatch);
    }
    uses
}
