//! What a step leaves for the next one: the weights and the optimizer's state, tile by tile.
//!
//! Together with the number of steps done they are all that a run depends on, besides its configuration.

use phalanx_program::{Port, PortKind, PortTile};

use super::Session;
use crate::Error;

impl Session {
    /// Waits for the runs in flight and shows every tile of every weight and state that lies in this process, weights
    /// first, each kind in the order of the program; what devices have in common comes once for each. The bytes may be
    /// changed: all copies of an element alike.
    pub fn visit_state(&mut self, mut visit: impl FnMut(&Port, &PortTile, &mut [u8])) -> Result<(), Error> {
        for kind in [PortKind::Param, PortKind::State] {
            let ports: Vec<Port> =
                self.part().ports().iter().filter(|port| port.kind == kind).cloned().collect();
            for port in &ports {
                self.replay.fill_tiles(&port.name, |tile, bytes| visit(port, tile, bytes))?;
            }
        }
        Ok(())
    }
}
