//! Adds clipping and the optimizer.
//!
//! Needs: gradients of parameters.
//! Gives: every gradient summed and laid out like its parameter; for a training goal, the sums of squares of all gradients
//! gathered on one device, the factor that clips them, and one update task a parameter with its state buffers, on the
//! parameter's own tiles; kept gradients become outputs.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_ir::parallel::{DeviceGroup, DeviceId, Dim, ParallelType, TileMap};
use phalanx_ir::sharded::{Operand, ShardedBuffer, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskOp};
use phalanx_ir::text::Attrs;
use phalanx_ir::{Binary, DType, Reduce, TensorType, leaves_of, reduce_task};

use crate::expand_passes::{hyper, keep};
use crate::{Decays, Goal, GroupPatterns, LowerError, LowerOptions, Optimizer, ParameterGroup, UpdateRule};

/// The name of the input `f32[8]` fed with every step: learning rate, 1 - beta1^t, 1 - beta2^t, the step's number as its
/// lower 24 bits and the rest.
pub const HYPER: &str = "hyper";

/// The name of the output with the gradient norm and the clip factor.
const CLIP: &str = "gradient_norm";

/// Leaves of the gradient norm along the outermost dimension, or the only one: what plans cut most finely.
const OUTER_LEAVES: usize = 64;
/// Leaves of the gradient norm along the second and along the innermost of several dimensions.
const INNER_LEAVES: usize = 8;

pub fn insert_updates(mut sharded: ShardedGraph, options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let kept = match &options.goal {
        Goal::Infer => return Ok(sharded),
        Goal::Gradients => true,
        Goal::Train(optimizer) => optimizer.keep_gradients,
    };
    let microbatch = sharded.tasks.iter().map(|(_, task)| task.microbatch).max().unwrap_or(0);
    let everywhere = everywhere(&sharded);
    let (free_bits, scaled) = (options.free_bits, Vec::new());
    let mut updates = Updates { sharded: &mut sharded, microbatch, free_bits, everywhere, scaled };
    updates.complete();
    let gradients = updates.sharded.gradients.clone();
    if let Goal::Train(optimizer) = &options.goal {
        let clip = optimizer.clip.map(|max_norm| updates.clip(&gradients, max_norm)).transpose()?;
        let names: Vec<String> =
            gradients.iter().map(|&(param, _)| updates.sharded.buffers[param].name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let groups = GroupPatterns::new(optimizer, &names)?;
        for (&(param, gradient), name) in gradients.iter().zip(names) {
            updates.update(optimizer, groups.find(name), param, gradient, clip);
        }
    }
    if kept {
        for (param, gradient) in gradients {
            let name = format!("{}.grad", sharded.buffers[param].name);
            keep(&mut sharded, name, gradient);
        }
    }
    Ok(sharded)
}

struct Updates<'a> {
    sharded: &'a mut ShardedGraph,
    microbatch: u32,
    free_bits: bool,
    /// All devices.
    everywhere: DeviceGroup,
    /// Inputs of updates with another learning rate, by what it is multiplied by.
    scaled: Vec<(f32, BufferId)>,
}

/// All devices of a graph.
fn everywhere(sharded: &ShardedGraph) -> DeviceGroup {
    let mut devices: BTreeSet<DeviceId> = BTreeSet::new();
    for group in sharded.buffers.iter().flat_map(|(_, buffer)| buffer.groups.iter()) {
        devices.extend(group.devices());
    }
    DeviceGroup::new(devices)
}

/// The one tile of a tensor that is not cut.
fn whole(buffer: BufferId, rank: usize) -> Operand {
    Operand { buffer, map: TileMap { dims: vec![Vec::new(); rank], ..TileMap::default() } }
}

/// A dimension along which the squares of a gradient are summed in leaves; of a vector one is made up.
struct LeafAxis {
    dim: Option<usize>,
    leaves: usize,
    degree: usize,
}

impl LeafAxis {
    /// Those of a gradient: the outermost, the second and the innermost dimension. Where the innermost has one leaf, such
    /// as the kernel of a convolution, it is summed as a part of the second.
    fn of(dims: &[Dim]) -> Vec<LeafAxis> {
        let axis = |dim: usize, most| match dims.get(dim) {
            Some(found) => {
                LeafAxis { dim: Some(dim), leaves: leaves_of(found.size, most), degree: found.degree }
            }
            None => LeafAxis { dim: None, leaves: 1, degree: 1 },
        };
        let inner = axis(dims.len().saturating_sub(1), INNER_LEAVES);
        match dims.len() {
            0 | 1 => vec![axis(dims.len(), 1), axis(0, OUTER_LEAVES)],
            2 => vec![axis(0, OUTER_LEAVES), inner],
            _ if inner.leaves == 1 && inner.degree == 1 => vec![axis(0, OUTER_LEAVES), axis(1, INNER_LEAVES)],
            _ => vec![axis(0, OUTER_LEAVES), axis(1, INNER_LEAVES), inner],
        }
    }
}

impl Updates<'_> {
    /// Sums every gradient and lays it out like its parameter.
    fn complete(&mut self) {
        for index in 0..self.sharded.gradients.len() {
            let (param, gradient) = self.sharded.gradients[index];
            let ShardedBuffer { name, ty, groups, .. } = self.sharded.buffers[param].clone();
            let ty = ty.of(DType::F32);
            let found = &self.sharded.buffers[gradient];
            if found.ty != ty || found.groups != groups {
                let total = self.buffer(&format!("{name}.grad"), ty, groups, Role::Temp);
                self.sharded.push_move(gradient, total, &name, self.microbatch);
                self.sharded.gradients[index].1 = total;
            }
        }
    }

    fn buffer(&mut self, name: &str, ty: ParallelType, groups: Arc<[DeviceGroup]>, role: Role) -> BufferId {
        self.sharded.buffers.push(ShardedBuffer { name: name.to_string(), ty, groups, role, view_of: None })
    }

    /// A task on one group of devices.
    fn on_one(
        &mut self,
        at: &Arc<[DeviceGroup]>,
        layer: &str,
        op: TaskOp,
        reads: Vec<Operand>,
        writes: Vec<Operand>,
    ) {
        let (groups, layer, microbatch) = (Arc::clone(at), layer.to_string(), self.microbatch);
        self.sharded.tasks.push(ShardedTask {
            op,
            reads,
            writes,
            extents: Vec::new(),
            groups,
            layer,
            microbatch,
        });
    }

    /// The gradient norm over all parameters, summed in their order on one device, and the factor that clips it, on all.
    fn clip(&mut self, gradients: &[(BufferId, BufferId)], max_norm: f32) -> Result<BufferId, LowerError> {
        let here: Arc<[DeviceGroup]> = Arc::from([DeviceGroup::one(self.everywhere.first())]);
        let scalar = ParallelType::whole(&TensorType::f32([1]));
        // All squares first: what moves of them is small, and can be one movement if nothing between needs it.
        let mut all = Vec::with_capacity(gradients.len());
        for &(param, gradient) in gradients {
            let name = self.sharded.buffers[param].name.clone();
            all.push((self.squares(&name, gradient, &here)?, name));
        }
        let mut total: Option<BufferId> = None;
        for (squares, name) in all {
            let sum = self.buffer(&format!("{name}.squares"), scalar.clone(), Arc::clone(&here), Role::Temp);
            let rank = self.sharded.buffers[squares].ty.dims().len();
            let op = reduce_task(Reduce::Sum, &(0..rank).collect::<Vec<_>>(), 1);
            self.on_one(&here, &name, op, vec![whole(squares, rank)], vec![whole(sum, 1)]);
            total = Some(match total {
                None => sum,
                Some(before) => {
                    let both = self.buffer("squares", scalar.clone(), Arc::clone(&here), Role::Temp);
                    let (op, reads) =
                        (TaskOp::Binary { kind: Binary::Add }, vec![whole(before, 1), whole(sum, 1)]);
                    self.on_one(&here, &name, op, reads, vec![whole(both, 1)]);
                    both
                }
            });
        }
        let total = total.expect("a trained graph has a parameter with a gradient");
        let ty = ParallelType::whole(&TensorType::f32([2]));
        let clip = self.buffer(CLIP, ty, Arc::clone(&here), Role::Temp);
        keep(self.sharded, CLIP.to_string(), clip);
        let op = TaskOp::call("clip_scale", Attrs::new().with("max_norm", max_norm));
        self.on_one(&here, CLIP, op, vec![whole(total, 1)], vec![whole(clip, 1)]);
        Ok(clip)
    }

    /// The sums of squares of all leaves of a gradient, on one device. A tile's are computed by one of its devices.
    fn squares(
        &mut self,
        name: &str,
        gradient: BufferId,
        here: &Arc<[DeviceGroup]>,
    ) -> Result<BufferId, LowerError> {
        let ShardedBuffer { ty, groups, .. } = self.sharded.buffers[gradient].clone();
        let (extents, map) = ty.grid();
        let (rank, axes) = (ty.dims().len(), LeafAxis::of(ty.dims()));
        let matrix = TileMap {
            sum: Vec::new(),
            copy: map.copy.clone(),
            dims: axes
                .iter()
                .map(|axis| axis.dim.map_or_else(Vec::new, |dim| map.dims[dim].clone()))
                .collect(),
        };
        let degree: usize = axes.iter().map(|axis| axis.degree).product();
        let inner = ty.dims().iter().map(|dim| dim.degree).product::<usize>() / degree;
        let fits = inner == 1 && axes.iter().all(|axis| axis.leaves.is_multiple_of(axis.degree));
        if !fits && !self.free_bits {
            let (layer, what) = (name.to_string(), "the squares of a gradient".to_string());
            let leaves = axes.iter().map(|axis| axis.leaves).product();
            return Err(LowerError::Unaligned { layer, what, extent: 0, leaves, degree: degree * inner });
        }
        let mut leaves: Vec<usize> =
            axes.iter().map(|axis| if fits { axis.leaves } else { axis.degree }).collect();
        leaves[0] *= inner;
        let global = TensorType::f32(leaves.clone());
        let ty = matrix.tiling(&global, &extents).expect("the leaves are cut like the gradient");
        let one: Arc<[DeviceGroup]> = groups.iter().map(|group| DeviceGroup::one(group.first())).collect();
        let parts = self.buffer(&format!("{name}.squares"), ty, Arc::clone(&one), Role::Temp);
        let own: Vec<usize> = leaves.iter().zip(&axes).map(|(leaves, axis)| leaves / axis.degree).collect();
        let (row, middle, column) = (own[0], &own[1..own.len() - 1], own[own.len() - 1]);
        let attrs = Attrs::new().with("row_leaves", row).with("col_leaves", column);
        let attrs = match middle {
            [] => attrs.with_unless(false, "merged", axes[1].dim.is_some_and(|dim| dim + 1 < rank)),
            middle => attrs.with("middle_leaves", middle[0]),
        };
        let op = TaskOp::call("sum_squares", attrs);
        let (reads, writes) =
            (vec![Operand { buffer: gradient, map }], vec![Operand { buffer: parts, map: matrix }]);
        let (layer, microbatch) = (name.to_string(), self.microbatch);
        self.sharded.tasks.push(ShardedTask { op, reads, writes, extents, groups: one, layer, microbatch });
        let all = self.buffer(
            &format!("{name}.squares"),
            ParallelType::whole(&global),
            Arc::clone(here),
            Role::Temp,
        );
        self.sharded.push_move(parts, all, name, self.microbatch);
        Ok(all)
    }

    /// The input [`HYPER`] with `factor` times its learning rate.
    fn hyper(&mut self, factor: f32) -> BufferId {
        let hyper = hyper(self.sharded, || [&self.everywhere].into_iter());
        if factor == 1.0 {
            return hyper;
        }
        if let Some((_, known)) = self.scaled.iter().find(|(known, _)| *known == factor) {
            return *known;
        }
        let (ty, at) = (ParallelType::whole(&TensorType::f32([8])), Arc::from([self.everywhere.clone()]));
        let scaled = self.buffer(&format!("{HYPER}.scaled"), ty, Arc::clone(&at), Role::Temp);
        let op = TaskOp::call("scale_rate", Attrs::new().with("factor", factor));
        self.on_one(&at, HYPER, op, vec![whole(hyper, 1)], vec![whole(scaled, 1)]);
        self.scaled.push((factor, scaled));
        scaled
    }

    fn update(
        &mut self,
        optimizer: &Optimizer,
        group: Option<&ParameterGroup>,
        param: BufferId,
        gradient: BufferId,
        clip: Option<BufferId>,
    ) {
        let ShardedBuffer { name, ty, groups, .. } = self.sharded.buffers[param].clone();
        let decay = match (optimizer.decays, group.and_then(|group| group.decay)) {
            (_, Some(decay)) => decay,
            (Decays::Matrices, None) if ty.dims().len() < 2 => 0.0,
            _ => optimizer.decay,
        };
        let hyper = self.hyper(group.map_or(1.0, |group| group.rate));
        let (extents, map) = ty.grid();
        let own = |buffer| Operand { buffer, map: map.clone() };
        let reads =
            [own(gradient), whole(hyper, 1)].into_iter().chain(clip.map(|clip| whole(clip, 1))).collect();
        let clip = clip.is_some();
        let (op, states): (_, &[&str]) = match optimizer.rule {
            UpdateRule::Adam { beta1, beta2, eps, decoupled } => {
                let attrs = Attrs::new().with("beta1", beta1).with("beta2", beta2).with("eps", eps);
                let attrs = attrs.with("decay", decay).with_unless(false, "decoupled", decoupled);
                (TaskOp::call("adamw", attrs.with_unless(false, "clip", clip)), &["m", "v"])
            }
            UpdateRule::Sgd { momentum, nesterov } => {
                let states: &[&str] = if momentum > 0.0 { &["velocity"] } else { &[] };
                let attrs = Attrs::new().with("momentum", momentum).with("decay", decay);
                let attrs = attrs.with_unless(false, "nesterov", nesterov);
                (TaskOp::call("sgd", attrs.with_unless(false, "clip", clip)), states)
            }
        };
        let mut writes = vec![own(param)];
        for state in states {
            let state = self.buffer(&format!("{name}.{state}"), ty.clone(), Arc::clone(&groups), Role::State);
            writes.push(own(state));
        }
        let microbatch = self.microbatch;
        self.sharded.tasks.push(ShardedTask { op, reads, writes, extents, groups, layer: name, microbatch });
    }
}
