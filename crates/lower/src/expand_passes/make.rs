//! Buffers and tasks of the layer at hand.

use std::sync::Arc;

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::{Coord, DeviceId, ParallelType, Placement, Site, TileMap, tile_sites};
use phalanx_ir::tasks::{BufferId, Role, TaskOp};
use phalanx_ir::wide::{Operand, WideBuffer, WideTask};
use phalanx_ir::{Binary, Op, TensorType};

use super::Expander;
use crate::HYPER;

/// What a list of sites follows from: the tasks' sites (by address), their grid, the tiling and the map.
pub(super) type SitesKey = (*const Site, Vec<usize>, ParallelType, TileMap);

impl Expander<'_> {
    pub(super) fn label(&self) -> &Placement {
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
        if let Some(&buffer) = self.again.get(&(value, self.layer)) {
            return Some(buffer);
        }
        let WideBuffer { name, ty, sites, .. } = self.wide.buffers[self.buf(value)].clone();
        let buffer = self.push_buffer(&format!("{name}.again"), ty, sites, Role::Temp, None);
        let (layer, round) = (self.graph.layer_name(self.layer).to_string(), self.label().round);
        self.wide.push_move(self.buf(source), buffer, &layer, round);
        self.again.insert((value, self.layer), buffer);
        Some(buffer)
    }

    /// What a chain of parallel operators with a join to be done again starts from.
    fn joined_from(&self, value: ValueId) -> Option<ValueId> {
        let (mut at, mut again) = (value, false);
        while self.graph.op_of(at).is_parallel() {
            again |= matches!(self.graph.op_of(at), Op::Combine { again: true, .. });
            at = self.graph.layers()[self.graph.values()[at].layer].operands[0];
        }
        again.then_some(at)
    }

    pub(super) fn push_buffer(
        &mut self,
        name: &str,
        ty: ParallelType,
        sites: Arc<[Site]>,
        role: Role,
        view_of: Option<BufferId>,
    ) -> BufferId {
        self.wide.buffers.push(WideBuffer { name: name.to_string(), ty, sites, role, view_of })
    }

    /// Where the tasks of the layer at hand have the tiles of a slot.
    pub(super) fn sites_of(&mut self, ty: &ParallelType, map: &TileMap) -> Arc<[Site]> {
        let sites = &self.graph.layers()[self.layer].label.sites;
        let key = (sites.as_ptr(), self.rule.extents.clone(), ty.of(phalanx_ir::DType::F32), map.clone());
        let make = || tile_sites(ty, map, &self.rule.extents, sites);
        Arc::clone(self.sites.entry(key).or_insert_with(make))
    }

    /// A new buffer for the gradient of `value`, where its own layer has it. If what comes has only `sums` partial sums, it
    /// has no more; devices of parts that are one part then have it all.
    pub(super) fn value_gradient(&mut self, value: ValueId, sums: usize) -> BufferId {
        let ty = self.graph.ty(value);
        let own = self.graph.sites(value).expect("the rules were checked at the start");
        let (dual, sites) = (ty.dual(), dual_sites(ty, &own));
        let fewer = (1..=sums)
            .rev()
            .find(|fewer| sums.is_multiple_of(*fewer) && dual.sum_degree().is_multiple_of(*fewer));
        let fewer = fewer.unwrap_or(1);
        let degrees: Vec<usize> = dual.dims().iter().map(|dim| dim.degree).collect();
        let joined = ParallelType::tiled(&dual.global(), &degrees, fewer, dual.copy_degree());
        let joined = joined.expect("the same cuts divide the same extents");
        let together = dual.sum_degree() / fewer;
        let site = |index: usize| {
            let Coord { sum, copy, dims } = joined.coord(index);
            let parts =
                (sum * together..(sum + 1) * together).map(|sum| Coord { sum, copy, dims: dims.clone() });
            Site::new(parts.flat_map(|coord| sites[dual.index(&coord)].devices().to_vec()))
        };
        let sites = if together == 1 { sites } else { (0..joined.tiles()).map(site).collect() };
        let name = format!("{}.grad", self.name(value));
        self.push_buffer(&name, joined, sites, Role::Temp, None)
    }

    /// The bytes of `buffer`, tile by tile, with the type `ty`.
    pub(super) fn view_of(&mut self, buffer: BufferId, ty: ParallelType) -> BufferId {
        let WideBuffer { name, sites, role, .. } = self.wide.buffers[buffer].clone();
        self.push_buffer(&name, ty, sites, role, Some(buffer))
    }

    /// Two contributions to the gradient of `value` with the same tiling: one that has fewer partial sums sets it.
    pub(super) fn alike(&mut self, value: ValueId, buffers: [BufferId; 2], round: u32) -> [BufferId; 2] {
        let sums = buffers.map(|buffer| self.wide.buffers[buffer].ty.sum_degree());
        let fewest = buffers[usize::from(sums[1] < sums[0])];
        let WideBuffer { name, ty, sites, .. } = self.wide.buffers[fewest].clone();
        buffers.map(|buffer| {
            if self.wide.buffers[buffer].ty == ty {
                return buffer;
            }
            let to = self.push_buffer(&name, ty.clone(), Arc::clone(&sites), Role::Temp, None);
            let layer = self.name(value).to_string();
            self.wide.push_move(buffer, to, &layer, round);
            to
        })
    }

    /// The sum of two contributions to the gradient of `value`, tile by tile, where the first one lies.
    pub(super) fn sum(&mut self, value: ValueId, left: BufferId, right: BufferId, round: u32) -> BufferId {
        let WideBuffer { ty, sites, .. } = self.wide.buffers[left].clone();
        let (extents, map) = ty.grid();
        let name = format!("{}.grad", self.name(value));
        let buffer = self.push_buffer(&name, ty, Arc::clone(&sites), Role::Temp, None);
        let operand = |buffer| Operand { buffer, map: map.clone() };
        let (reads, writes) = (vec![operand(left), operand(right)], vec![operand(buffer)]);
        let layer = self.graph.layer_name(self.layer).to_string();
        let op = TaskOp::Binary { kind: Binary::Add };
        self.wide.tasks.push(WideTask { op, reads, writes, extents, sites, layer, round });
        buffer
    }
}

/// The scalars the host feeds with every step; made on first use, on all `sites`.
pub(crate) fn hyper<'a, I: Iterator<Item = &'a Site>>(
    wide: &mut phalanx_ir::wide::WideGraph,
    sites: impl FnOnce() -> I,
) -> BufferId {
    let found = wide.find(HYPER, |role| role == Role::Input);
    found.unwrap_or_else(|| {
        let devices: std::collections::BTreeSet<DeviceId> =
            sites().flat_map(|site| site.devices().iter().copied()).collect();
        let ty = ParallelType::whole(&TensorType::f32([8]));
        let (name, sites) = (HYPER.to_string(), Arc::from([Site::new(devices)]));
        wide.buffers.push(WideBuffer { name, ty, sites, role: Role::Input, view_of: None })
    })
}

/// The sites of a gradient's tiles, from those of the value's.
pub(crate) fn dual_sites(ty: &ParallelType, sites: &[Site]) -> Arc<[Site]> {
    let dual = ty.dual();
    let site = |index: usize| {
        let Coord { sum, copy, dims } = dual.coord(index);
        sites[ty.index(&Coord { sum: copy, copy: sum, dims })].clone()
    };
    (0..dual.tiles()).map(site).collect()
}
