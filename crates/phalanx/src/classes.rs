//! Which devices of a cluster are alike: by their speed and by their links.
//!
//! Devices along an axis of the mesh are alike if each computes as fast as the next one, and if every unit of every level
//! is a box of the mesh: then all have equally many of the others on each level. What leaves a unit by its uplink is the
//! traffic of all its devices, of which those of one class do the same: the uplink is as much narrower for the
//! one that stands for them.

use phalanx_ir::Id;
use phalanx_ir::parallel::DeviceId;
use phalanx_link::{NetworkLevel, Topology};
use phalanx_lower::DeviceClasses;

use crate::pipeline::Settings;

/// The extents of the mesh, each with whether its places may be alike.
pub(crate) fn mesh(settings: &Settings) -> Vec<(usize, bool)> {
    let axes = &settings.plan.mesh.axes;
    let sizes: Vec<usize> = axes.iter().map(|(_, size)| *size).collect();
    let levels = settings.topology.as_ref().map_or(&[][..], Topology::levels);
    let fits = levels.iter().all(|level| is_box(&sizes, level.size));
    let stages = settings.plan.pipeline.as_ref().map(|pipeline| pipeline.axis.as_str());
    let alike = |(number, (name, _)): (usize, &(String, usize))| {
        Some(name.as_str()) != stages && fits && same_speed(&settings.speeds, &sizes, number)
    };
    let alike: Vec<bool> = axes.iter().enumerate().map(alike).collect();
    sizes.into_iter().zip(alike).collect()
}

/// Whether `count` consecutive devices, from a multiple of that on, are always a box of the mesh.
fn is_box(sizes: &[usize], count: usize) -> bool {
    let mut left = count;
    for &size in sizes.iter().rev() {
        if left <= size {
            return size.is_multiple_of(left);
        }
        if !left.is_multiple_of(size) {
            return left >= sizes.iter().product();
        }
        left /= size;
    }
    true
}

/// Whether devices that differ in their place on one axis alone are equally fast.
fn same_speed(speeds: &[f64], sizes: &[usize], axis: usize) -> bool {
    let stride: usize = sizes[axis + 1..].iter().product();
    let speed = |device: usize| speeds.get(device).copied().unwrap_or(1.0);
    let first = |device: usize| device - device / stride % sizes[axis] * stride;
    (0..sizes.iter().product()).all(|device| speed(device) == speed(first(device)))
}

/// The settings by which one device of each class is scheduled. Orders are not searched for: those found would not be
/// those that the search finds for all devices.
pub(crate) fn settings(settings: &Settings, classes: &DeviceClasses) -> Settings {
    let devices = settings.plan.mesh.devices();
    let level = |level: &NetworkLevel| {
        let unit = 0..level.size.min(devices);
        let first = classes.representative(DeviceId::from_index(0));
        let alike =
            unit.filter(|&device| classes.representative(DeviceId::from_index(device)) == first).count();
        NetworkLevel { uplink: level.uplink.map(|rate| rate / alike.max(1) as f64), ..*level }
    };
    let topology = settings.topology.as_ref().map(|topology| {
        let levels = topology.levels().iter().map(level).collect();
        Topology::new(levels).expect("uplinks play no part in whether levels nest")
    });
    Settings { topology, runs: Some(0), ..settings.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_are_no_box_of_the_mesh_are_found() {
        let sizes = [2, 4, 8];
        let found = [1, 2, 4, 8, 16, 32, 64, 1000, 3, 12, 24, 48].map(|count| is_box(&sizes, count));
        assert_eq!(found[..8], [true; 8]);
        assert_eq!(found[8..], [false; 4]);
    }

    #[test]
    fn a_slow_half_makes_one_axis_differ() {
        let speeds = [1.0, 1.0, 0.5, 0.5];
        assert_eq!([0, 1].map(|axis| same_speed(&speeds, &[2, 2], axis)), [false, true]);
        assert!(same_speed(&[], &[2, 2], 0), "all are equal if nothing is said");
    }
}
