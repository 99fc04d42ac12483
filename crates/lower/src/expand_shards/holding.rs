//! Which tiles, or places of a grid, are expanded on which devices: all, or those of devices that stand for their class.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use phalanx_ir::parallel::{DeviceGroup, DeviceId};

use crate::DeviceClasses;

/// What is expanded of one list of groups.
pub struct Holding {
    /// Where each tile starts in `devices`, and where the last one ends.
    starts: Vec<u32>,
    /// The tiles with some device, with as many entries as devices.
    pairs: Vec<(u32, DeviceId)>,
}

impl Holding {
    fn new(groups: &[DeviceGroup], classes: Option<&DeviceClasses>) -> Holding {
        let mut holding = Holding { starts: vec![0], pairs: Vec::new() };
        let stands =
            |device: &DeviceId| classes.is_none_or(|classes| classes.representative(*device) == *device);
        for (tile, group) in (0..).zip(groups) {
            let devices = group.devices().iter().copied().filter(stands);
            holding.pairs.extend(devices.map(|device| (tile, device)));
            holding.starts.push(holding.pairs.len() as u32);
        }
        holding
    }

    /// Tiles and devices, in the order of tiles, then of devices.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, DeviceId)> {
        self.pairs.iter().map(|&(tile, device)| (tile as usize, device))
    }

    /// The position of a pair.
    pub fn position(&self, tile: usize, device: DeviceId) -> Option<usize> {
        let (start, end) = (self.starts[tile] as usize, self.starts[tile + 1] as usize);
        Some(start + self.pairs[start..end].binary_search_by_key(&device, |pair| pair.1).ok()?)
    }
}

/// What was found out about lists of groups, of which many tensors share one.
pub struct Holdings<'a> {
    classes: Option<&'a DeviceClasses>,
    /// By address: all lists live as long as the graph.
    known: HashMap<*const DeviceGroup, Rc<Holding>>,
    /// By address, too: the tiles of each group.
    tiles: HashMap<*const DeviceGroup, HashMap<DeviceGroup, Vec<u32>>>,
}

impl<'a> Holdings<'a> {
    pub fn new(classes: Option<&'a DeviceClasses>) -> Self {
        Holdings { classes, known: HashMap::new(), tiles: HashMap::new() }
    }

    /// Whether every device is expanded.
    pub fn is_whole(&self) -> bool {
        self.classes.is_none()
    }

    /// What is expanded of a list.
    pub fn of(&mut self, groups: &Arc<[DeviceGroup]>) -> Rc<Holding> {
        let known = self.known.entry(groups.as_ptr());
        Rc::clone(known.or_insert_with(|| Rc::new(Holding::new(groups, self.classes))))
    }

    /// The tile that stands for tile `tile` on `device`, and the device that has it.
    pub fn image(&mut self, groups: &Arc<[DeviceGroup]>, tile: usize, device: DeviceId) -> (usize, DeviceId) {
        let Some(classes) = self.classes else { return (tile, device) };
        let tiles = self.tiles.entry(groups.as_ptr()).or_insert_with(|| {
            let mut tiles: HashMap<DeviceGroup, Vec<u32>> = HashMap::new();
            for (tile, group) in (0..).zip(groups.iter()) {
                tiles.entry(group.clone()).or_default().push(tile);
            }
            tiles
        });
        let alike = &tiles[&groups[tile]];
        let rank = alike.partition_point(|&other| (other as usize) < tile);
        let image = &tiles[&classes.moved(&groups[tile], device)];
        (image[rank] as usize, classes.representative(device))
    }
}
