//! Which devices of a mesh do the same, so that one of them can stand for all.
//!
//! A device has a place on every axis of the mesh. Along an axis that is *alike* the device at the first place stands for
//! those at all others. An axis is alike if its places do not differ in what the caller knows (their speed, their links; a
//! pipeline's stages differ), and if every list of groups of the graph stays the same list when all devices move on by one
//! place, the last to the first: then moving on maps all tasks and tiles to others of the same size. A list that knows
//! the first place alone, as that of a norm which one device computes, does no harm: the device that stands for all
//! does that, too.

use std::collections::HashSet;

use phalanx_ir::Id;
use phalanx_ir::parallel::{DeviceGroup, DeviceId};
use phalanx_ir::sharded::ShardedGraph;

/// An axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassAxis {
    size: usize,
    stride: usize,
    alike: bool,
}

/// The classes of a graph's devices: those that differ only in places on axes that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClasses {
    axes: Vec<ClassAxis>,
}

impl DeviceClasses {
    /// The classes on a mesh with these extents, the last axis fastest; along axes that may not be `alike` devices differ.
    pub fn of(sharded: &ShardedGraph, mesh: &[(usize, bool)]) -> DeviceClasses {
        let stride = |axis: usize| mesh[axis + 1..].iter().map(|(size, _)| size).product();
        let axis = |(number, &(size, alike)): (usize, &(usize, bool))| ClassAxis {
            size,
            stride: stride(number),
            alike: alike && size > 1,
        };
        let mut classes = DeviceClasses { axes: mesh.iter().enumerate().map(axis).collect() };
        let mut seen: HashSet<*const DeviceGroup> = HashSet::new();
        let mut lists: HashSet<&[DeviceGroup]> = HashSet::new();
        let of_tasks = sharded.tasks.iter().map(|(_, task)| &task.groups);
        for groups in sharded.buffers.iter().map(|(_, buffer)| &buffer.groups).chain(of_tasks) {
            if seen.insert(groups.as_ptr()) && lists.insert(groups) {
                classes.check(groups);
            }
        }
        classes
    }

    /// Keeps the axes alike that leave a list of groups as it is.
    fn check(&mut self, groups: &[DeviceGroup]) {
        let all: HashSet<&DeviceGroup> = groups.iter().collect();
        for axis in &mut self.axes {
            let mut devices = groups.iter().flat_map(|group| group.devices());
            let ClassAxis { size, stride, .. } = *axis;
            let next = |device: &DeviceId| {
                let place = device.index() / stride % size;
                DeviceId::from_index(device.index() - place * stride + (place + 1) % size * stride)
            };
            axis.alike = axis.alike
                && (devices.all(|device| (device.index() / stride).is_multiple_of(size))
                    || groups
                        .iter()
                        .all(|group| all.contains(&DeviceGroup::new(group.devices().iter().map(next)))));
        }
    }

    /// Whether the places of an axis are alike.
    pub fn is_alike(&self, axis: usize) -> bool {
        self.axes[axis].alike
    }

    /// How many devices each class has.
    pub fn members(&self) -> usize {
        self.alike().map(|axis| axis.size).product()
    }

    /// The device that stands for the class of `device`: the lowest of them.
    pub fn representative(&self, device: DeviceId) -> DeviceId {
        let places: usize =
            self.alike().map(|axis| device.index() / axis.stride % axis.size * axis.stride).sum();
        DeviceId::from_index(device.index() - places)
    }

    /// The devices of a group after all have moved so that `device` is where its representative was.
    pub(crate) fn moved(&self, group: &DeviceGroup, device: DeviceId) -> DeviceGroup {
        let moved = |member: &DeviceId| {
            let mut number = member.index();
            for ClassAxis { size, stride, .. } in self.alike() {
                let [place, by] = [member, &device].map(|device| device.index() / stride % size);
                number = number - place * stride + (place + size - by) % size * stride;
            }
            DeviceId::from_index(number)
        };
        DeviceGroup::new(group.devices().iter().map(moved))
    }

    fn alike(&self) -> impl Iterator<Item = &ClassAxis> {
        self.axes.iter().filter(|axis| axis.alike)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use phalanx_ir::TensorType;
    use phalanx_ir::parallel::ParallelType;
    use phalanx_ir::sharded::ShardedBuffer;
    use phalanx_ir::tasks::Role;

    use super::*;

    fn group(devices: &[usize]) -> DeviceGroup {
        DeviceGroup::new(devices.iter().map(|&device| DeviceId::from_index(device)))
    }

    fn graph(lists: &[&[&[usize]]]) -> ShardedGraph {
        let mut sharded = ShardedGraph::default();
        for list in lists {
            let groups: Arc<[DeviceGroup]> = list.iter().map(|devices| group(devices)).collect();
            let ty = ParallelType::whole(&TensorType::f32([4]));
            let name = String::new();
            sharded.buffers.push(ShardedBuffer { name, ty, groups, role: Role::Temp, view_of: None });
        }
        sharded
    }

    /// A mesh of 2 x 3 devices.
    const MESH: [(usize, bool); 2] = [(2, true), (3, true)];

    #[test]
    fn axes_are_alike_where_moving_on_changes_no_list() {
        let rows: &[&[usize]] = &[&[0, 1, 2], &[3, 4, 5]];
        let columns: &[&[usize]] = &[&[0, 3], &[1, 4], &[2, 5]];
        let both = DeviceClasses::of(&graph(&[rows, columns, &[&[0]]]), &MESH);
        assert_eq!((both.is_alike(0), both.is_alike(1), both.members()), (true, true, 6));
        let uneven = DeviceClasses::of(&graph(&[rows, &[&[0, 1], &[3, 4]]]), &MESH);
        assert_eq!((uneven.is_alike(0), uneven.is_alike(1), uneven.members()), (true, false, 2));
        let stages = DeviceClasses::of(&graph(&[rows]), &[(2, false), (3, true)]);
        assert_eq!((stages.is_alike(0), stages.members()), (false, 3));
        assert_eq!(stages.representative(DeviceId::from_index(5)).index(), 3);
    }

    #[test]
    fn a_group_moves_as_its_device_does() {
        let classes = DeviceClasses::of(&graph(&[]), &MESH);
        let device = DeviceId::from_index(4);
        assert_eq!(classes.moved(&group(&[4]), device), group(&[0]));
        assert_eq!(classes.moved(&group(&[1, 5]), device), group(&[1, 3]));
    }
}
