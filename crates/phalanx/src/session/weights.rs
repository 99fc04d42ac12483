//! Weights from one session to another of the same model, without a copy of all of them in between.

use phalanx_program::{Port, PortKind, Program};

use super::Session;
use crate::Error;

impl Session {
    /// Takes over the parameters of `other`, a session of the same model in the same job; all ranks call it together.
    /// Where both lay a parameter out alike, as they do under the same plan, no bytes leave their device.
    pub fn copy_weights(&mut self, other: &mut Session) -> Result<(), Error> {
        let names: Vec<String> = self.names(PortKind::Param).map(str::to_string).collect();
        let mut tiles = Vec::new();
        for name in &names {
            // The program of all ranks decides, so that they all do the same.
            if placed(self.program(), self.port(name)?) != placed(other.program(), other.port(name)?) {
                self.feed(name, &other.read(name)?.into_owned())?;
            } else if self.own_port(name)?.is_some() {
                tiles.clear();
                other.replay.fill_tiles(name, |_, bytes| tiles.extend_from_slice(bytes))?;
                let mut rest = &tiles[..];
                self.replay.fill_tiles(name, |_, bytes| {
                    let (tile, behind) = rest.split_at(bytes.len());
                    bytes.copy_from_slice(tile);
                    rest = behind;
                })?;
            }
        }
        Ok(())
    }
}

/// Which rectangles of a tensor lie on which devices, in order.
fn placed<'a>(program: &'a Program, port: &'a Port) -> Vec<(u32, &'a [usize], &'a [usize])> {
    let tiles = port.tiles.iter().map(|tile| {
        let device = program.lanes()[tile.slice.lane as usize].device;
        (device, &tile.origin[..], tile.ty.shape.dims())
    });
    tiles.collect()
}
