//! Lets every byte of a sum or a gather cross between nodes once.
//!
//! Needs: a sharded graph in which every task has its operands on its own devices; sums that all devices need are spread.
//! Gives: the same values. A sum into one block on each of its n devices becomes two: the devices of a node add what they
//! have among them, each the blocks of one place of every node; then devices of the same place add across nodes. A
//! gather of n blocks becomes two as well: across nodes first, then inside them. With m devices a node, a device receives
//! from other nodes an m-th of what it did.
//!
//! The bits stay: only where a node's devices have an aligned subtree of the sum, whose root they now compute.

use std::sync::Arc;

use phalanx_ir::Id;
use phalanx_ir::parallel::{Coord, DeviceGroup, DeviceId, ParallelType};
use phalanx_ir::sharded::{ShardedBuffer, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{Role, TaskOp};

use crate::{LowerError, LowerOptions};

/// Tensors with fewer bytes on each device are not worth a second movement.
const LARGE: usize = 64 << 10;

pub fn two_levels(mut sharded: ShardedGraph, options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let Some(node) = options.node.filter(|&node| node > 1) else { return Ok(sharded) };
    for task in std::mem::take(&mut sharded.tasks) {
        match between(&sharded, &task, node) {
            None => _ = sharded.tasks.push(task),
            Some(buffer) => {
                let (from, to) = (task.reads[0].buffer, task.writes[0].buffer);
                let between = sharded.buffers.push(buffer);
                sharded.push_move(from, between, &task.layer, task.microbatch);
                sharded.push_move(between, to, &task.layer, task.microbatch);
            }
        }
    }
    Ok(sharded)
}

/// What lies between the two halves of a movement that is worth cutting.
fn between(sharded: &ShardedGraph, task: &ShardedTask, node: usize) -> Option<ShardedBuffer> {
    let TaskOp::Move { .. } = task.op else { return None };
    let [source, target] =
        [task.reads[0].buffer, task.writes[0].buffer].map(|buffer| &sharded.buffers[buffer]);
    let is_sum = source.ty.sum_degree() > 1;
    let (whole, cut) = if is_sum { (source, target) } else { (target, source) };
    let blocks = Blocks::of(&whole.ty, &cut.ty)?;
    if target.ty.sum_degree() > 1 || cut.ty.copy_degree() > 1 || whole.ty.tile().bytes() < LARGE {
        return None;
    }
    if is_sum && (source.ty.sum_degree() != blocks.count || source.ty.copy_degree() > 1) {
        return None;
    }
    // The devices of each tile of the one that is cut less, in the order of the blocks.
    let devices = |tile: usize| -> Option<Vec<DeviceId>> {
        let all: Option<Vec<DeviceId>> =
            (0..blocks.count).map(|block| only(&cut.groups[blocks.tile(whole, cut, tile, block)])).collect();
        all.filter(|all| has(whole, tile, all, is_sum))
    };
    let tiles = whole.ty.tiles() / whole.ty.sum_degree() / whole.ty.copy_degree();
    let lists: Vec<Vec<DeviceId>> = (0..tiles).map(devices).collect::<Option<_>>()?;
    let together = lists.first().and_then(|list| devices_of_a_node(list, node))?;
    if lists.iter().any(|list| devices_of_a_node(list, node) != Some(together)) {
        return None;
    }
    let nodes = blocks.count / together;
    let degrees: Vec<usize> = cut.ty.dims().iter().map(|dim| dim.degree).collect();
    let ty = ParallelType::tiled(&cut.ty.global(), &degrees, if is_sum { nodes } else { 1 }, 1)?;
    let group = |index: usize| {
        let coord = ty.coord(index);
        let (tile, block) = blocks.of_tile(whole, &coord);
        let at = |node: usize| lists[tile][node * together + block % together];
        match is_sum {
            true => DeviceGroup::one(at(coord.sum)),
            false => DeviceGroup::new((0..nodes).map(at)),
        }
    };
    let groups: Arc<[DeviceGroup]> = (0..ty.tiles()).map(group).collect();
    Some(ShardedBuffer { name: target.name.clone(), ty, groups, role: Role::Temp, view_of: None })
}

/// How one tiling cuts one dimension of another further.
struct Blocks {
    dim: usize,
    count: usize,
}

impl Blocks {
    fn of(whole: &ParallelType, cut: &ParallelType) -> Option<Blocks> {
        let mut further =
            whole.dims().iter().zip(cut.dims()).enumerate().filter(|(_, (a, b))| a.degree != b.degree);
        let (dim, (a, b)) = further.next()?;
        let count = b.degree.checked_div(a.degree).filter(|count| count * a.degree == b.degree)?;
        further.next().is_none().then_some(Blocks { dim, count })
    }

    /// The number of a block of a tile, among the tiles of `cut`.
    fn tile(&self, whole: &ShardedBuffer, cut: &ShardedBuffer, tile: usize, block: usize) -> usize {
        let mut dims = whole.ty.coord(tile).dims;
        dims[self.dim] = dims[self.dim] * self.count + block;
        cut.ty.index(&Coord { sum: 0, copy: 0, dims })
    }

    /// The tile of `whole` that a tile of `cut` is a block of, and the number of the block.
    fn of_tile(&self, whole: &ShardedBuffer, coord: &Coord) -> (usize, usize) {
        let mut dims = coord.dims.clone();
        let block = dims[self.dim] % self.count;
        dims[self.dim] /= self.count;
        (whole.ty.index(&Coord { sum: 0, copy: 0, dims }), block)
    }
}

/// The device of a group of one.
fn only(group: &DeviceGroup) -> Option<DeviceId> {
    (group.devices().len() == 1).then(|| group.first())
}

/// Whether a tile has a partial sum on each of these devices, in their order; or if it is no sum, is on all of them.
fn has(whole: &ShardedBuffer, tile: usize, devices: &[DeviceId], is_sum: bool) -> bool {
    let Coord { dims, .. } = whole.ty.coord(tile);
    if is_sum {
        let at =
            |sum: usize| only(&whole.groups[whole.ty.index(&Coord { sum, copy: 0, dims: dims.clone() })]);
        return devices.iter().enumerate().all(|(sum, &device)| at(sum) == Some(device));
    }
    let copies = 0..whole.ty.copy_degree();
    let on = copies.flat_map(|copy| {
        let index = whole.ty.index(&Coord { sum: 0, copy, dims: dims.clone() });
        whole.groups[index].devices().iter().copied()
    });
    let mut on: Vec<DeviceId> = on.collect();
    let mut wanted = devices.to_vec();
    on.sort_unstable();
    wanted.sort_unstable();
    on == wanted
}

/// How many of these devices each node has, if they are several on each of several nodes, node after node, and powers of two:
/// then those of a node are an aligned subtree.
fn devices_of_a_node(devices: &[DeviceId], node: usize) -> Option<usize> {
    let node_of = |device: &DeviceId| device.index() / node;
    let together = devices.iter().take_while(|device| node_of(device) == node_of(&devices[0])).count();
    let counts = together > 1 && together < devices.len();
    let powers = together.is_power_of_two() && devices.len().is_power_of_two();
    let mut nodes: Vec<usize> = devices.chunks(together.max(1)).map(|chunk| node_of(&chunk[0])).collect();
    let alike = devices.chunks(together.max(1)).all(|chunk| {
        chunk.len() == together && chunk.iter().all(|device| node_of(device) == node_of(&chunk[0]))
    });
    nodes.sort_unstable();
    let differ = nodes.windows(2).all(|pair| pair[0] != pair[1]);
    (counts && powers && alike && differ).then_some(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_nodes_are_found_where_they_are_subtrees() {
        let found = |devices: &[usize], node| {
            let devices: Vec<_> = devices.iter().map(|&device| DeviceId::from_index(device)).collect();
            devices_of_a_node(&devices, node)
        };
        assert_eq!(found(&[0, 1, 2, 3, 4, 5, 6, 7], 4), Some(4));
        assert_eq!(found(&[0, 1, 2, 3, 4, 5, 6, 7], 2), Some(2));
        assert_eq!(found(&[0, 4, 8, 12], 8), Some(2), "every fourth");
        assert_eq!(found(&[0, 1, 2, 3], 4), None, "one node");
        assert_eq!(found(&[0, 4, 8, 12], 4), None, "one on each");
        assert_eq!(found(&[0, 1, 2, 3, 4, 5], 3), None, "no power of two");
        assert_eq!(found(&[0, 4, 1, 5], 4), None, "not node after node");
    }
}
