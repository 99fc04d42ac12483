//! What a step leaves for the next one: the weights and the optimizer's state, tile by tile.
//!
//! Together with the number of steps done they are all that a run depends on, besides its configuration.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_program::{Port, PortKind, PortTile};

use super::Session;
use crate::Error;

/// The kinds of tensors that a step leaves for the next one.
const KEPT: [PortKind; 2] = [PortKind::Param, PortKind::State];

impl Session {
    /// Every weight and state of all processes, in the order of [`Session::visit_state`], with each of its tiles once and
    /// the first rank that has it.
    pub fn state_tiles(&self) -> Vec<(&Port, Vec<(&PortTile, u32)>)> {
        let ports = self.program().ports();
        let kept = KEPT.iter().flat_map(|&kind| ports.iter().filter(move |port| port.kind == kind));
        kept.map(|port| (port, self.first_holders(port))).collect()
    }

    fn first_holders<'a>(&self, port: &'a Port) -> Vec<(&'a PortTile, u32)> {
        match &self.job {
            Some(job) => {
                let holders = job.holders(port).into_iter();
                holders.filter_map(|(tile, ranks)| Some((tile, ranks.into_iter().min()?))).collect()
            }
            None => {
                let mut seen = BTreeSet::new();
                port.tiles.iter().filter(|tile| seen.insert(&tile.origin)).map(|tile| (tile, 0)).collect()
            }
        }
    }

    /// Waits for the runs in flight and shows every tile of every weight and state that lies in this process, weights
    /// first, each kind in the order of the program; what devices have in common comes once for each. The bytes may be
    /// changed: all copies of an element alike.
    pub fn visit_state(&mut self, mut visit: impl FnMut(&Port, &PortTile, &mut [u8])) -> Result<(), Error> {
        for kind in KEPT {
            let ports: Vec<Port> =
                self.part().ports().iter().filter(|port| port.kind == kind).cloned().collect();
            for port in &ports {
                self.replay.fill_tiles(&port.name, |tile, bytes| visit(port, tile, bytes))?;
            }
        }
        Ok(())
    }

    /// Waits likewise and shows the tiles that this rank is the first to have, in the same order, each once: over all
    /// ranks, every element comes once.
    pub fn visit_own_state(&mut self, mut visit: impl FnMut(&Port, &PortTile, &[u8])) -> Result<(), Error> {
        let rank = self.rank();
        let mut own: BTreeMap<String, BTreeSet<Vec<usize>>> = BTreeMap::new();
        for (port, tiles) in self.state_tiles() {
            let tiles = tiles.into_iter().filter(|&(_, first)| first == rank);
            own.insert(port.name.clone(), tiles.map(|(tile, _)| tile.origin.clone()).collect());
        }
        self.visit_state(|port, tile, bytes| {
            if own.get_mut(&port.name).is_some_and(|origins| origins.remove(&tile.origin)) {
                visit(port, tile, bytes);
            }
        })
    }
}
