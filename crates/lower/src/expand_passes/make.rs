//! Buffers and tasks of the layer at hand.

use std::sync::Arc;

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::{
    Coord, DeviceGroup, DeviceId, LayerPlacement, ParallelType, TileMap, tile_groups,
};
use phalanx_ir::sharded::ShardedBuffer;
use phalanx_ir::tasks::{BufferId, Role};
use phalanx_ir::{Op, TensorType};

use super::Expander;
use crate::HYPER;

/// What a list of groups follows from: the tasks' groups (by address), their grid, the tiling and the map.
pub(super) type GroupsKey = (*const DeviceGroup, Vec<usize>, ParallelType, TileMap);

impl Expander<'_> {
    pub(super) fn label(&self) -> &LayerPlacement {
        &self.graph.layers()[self.layer].label
    }

    pub(super) fn name(&self, value: ValueId) -> &str {
        &self.graph.values()[value].name
    }

    pub(super) fn buf(&self, value: ValueId) -> BufferId {
        self.buffers[value].expect("operands are lowered before their users")
    }

    /// The buffer in which a value is joined anew for the backward tasks, if its join says so.
    pub(super) fn joined_again(&mut self, value: ValueId) -> Option<BufferId> {
        let source = self.joined_from(value)?;
        if let Some(&buffer) = self.regathered.get(&(value, self.layer)) {
            return Some(buffer);
        }
        let ShardedBuffer { name, ty, groups, .. } = self.sharded.buffers[self.buf(value)].clone();
        let buffer = self.push_buffer(&format!("{name}.again"), ty, groups, Role::Temp, None);
        let (layer, microbatch) = (self.graph.layer_name(self.layer).to_string(), self.label().due);
        self.sharded.push_move(self.buf(source), buffer, &layer, microbatch);
        self.regathered.insert((value, self.layer), buffer);
        Some(buffer)
    }

    /// What a chain of parallel operators with a join to be done again starts from.
    fn joined_from(&self, value: ValueId) -> Option<ValueId> {
        let (mut at, mut regather) = (value, false);
        while self.graph.op_of(at).is_parallel() {
            regather |= matches!(self.graph.op_of(at), Op::Combine { regather: true, .. });
            at = self.graph.layers()[self.graph.values()[at].layer].operands[0];
        }
        regather.then_some(at)
    }

    pub(super) fn push_buffer(
        &mut self,
        name: &str,
        ty: ParallelType,
        groups: Arc<[DeviceGroup]>,
        role: Role,
        view_of: Option<BufferId>,
    ) -> BufferId {
        self.sharded.buffers.push(ShardedBuffer { name: name.to_string(), ty, groups, role, view_of })
    }

    /// Where the tasks of the layer at hand have the tiles of a slot.
    pub(super) fn groups_of(&mut self, ty: &ParallelType, map: &TileMap) -> Arc<[DeviceGroup]> {
        let groups = &self.graph.layers()[self.layer].label.groups;
        let key = (groups.as_ptr(), self.rule.extents.clone(), ty.of(phalanx_ir::DType::F32), map.clone());
        let make = || tile_groups(ty, map, &self.rule.extents, groups);
        Arc::clone(self.groups.entry(key).or_insert_with(make))
    }

    /// A new buffer for the gradient of `value`, where its own layer has it.
    pub(super) fn value_gradient(&mut self, value: ValueId, sums: usize) -> BufferId {
        let (ty, groups) = self.gradient_layout(value, sums);
        let name = format!("{}.grad", self.name(value));
        self.push_buffer(&name, ty, groups, Role::Temp, None)
    }

    /// How the gradient of `value` lies where its own layer has it. If what comes has only `sums` partial sums, it has no
    /// more; devices of parts that are one part then have it all.
    pub(super) fn gradient_layout(&self, value: ValueId, sums: usize) -> (ParallelType, Arc<[DeviceGroup]>) {
        let ty = self.graph.ty(value);
        let own = self.graph.groups(value).expect("the rules were checked at the start");
        let (dual, groups) = (ty.dual(), dual_groups(ty, &own));
        let fewer = (1..=sums)
            .rev()
            .find(|fewer| sums.is_multiple_of(*fewer) && dual.sum_degree().is_multiple_of(*fewer));
        let fewer = fewer.unwrap_or(1);
        let degrees: Vec<usize> = dual.dims().iter().map(|dim| dim.degree).collect();
        let joined = ParallelType::tiled(&dual.global(), &degrees, fewer, dual.copy_degree());
        let joined = joined.expect("the same cuts divide the same extents");
        let together = dual.sum_degree() / fewer;
        let group = |index: usize| {
            let Coord { sum, copy, dims } = joined.coord(index);
            let parts =
                (sum * together..(sum + 1) * together).map(|sum| Coord { sum, copy, dims: dims.clone() });
            DeviceGroup::new(parts.flat_map(|coord| groups[dual.index(&coord)].devices().to_vec()))
        };
        let groups = if together == 1 { groups } else { (0..joined.tiles()).map(group).collect() };
        (joined, groups)
    }

    /// The bytes of `buffer`, tile by tile, with the type `ty`.
    pub(super) fn view_of(&mut self, buffer: BufferId, ty: ParallelType) -> BufferId {
        let ShardedBuffer { name, groups, role, .. } = self.sharded.buffers[buffer].clone();
        self.push_buffer(&name, ty, groups, role, Some(buffer))
    }
}

/// The scalars the host feeds with every step; made on first use, on all `groups`.
pub(crate) fn hyper<'a, I: Iterator<Item = &'a DeviceGroup>>(
    sharded: &mut phalanx_ir::sharded::ShardedGraph,
    groups: impl FnOnce() -> I,
) -> BufferId {
    let found = sharded.find(HYPER, |role| role == Role::Input);
    found.unwrap_or_else(|| {
        let devices: std::collections::BTreeSet<DeviceId> =
            groups().flat_map(|group| group.devices().iter().copied()).collect();
        let ty = ParallelType::whole(&TensorType::f32([8]));
        let (name, groups) = (HYPER.to_string(), Arc::from([DeviceGroup::new(devices)]));
        sharded.buffers.push(ShardedBuffer { name, ty, groups, role: Role::Input, view_of: None })
    })
}

/// The groups of a gradient's tiles, from those of the value's.
pub(crate) fn dual_groups(ty: &ParallelType, groups: &[DeviceGroup]) -> Arc<[DeviceGroup]> {
    let dual = ty.dual();
    let group = |index: usize| {
        let Coord { sum, copy, dims } = dual.coord(index);
        groups[ty.index(&Coord { sum: copy, copy: sum, dims })].clone()
    };
    (0..dual.tiles()).map(group).collect()
}
