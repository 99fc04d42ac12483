//! Whole tensors of a job: what a rank lacks comes from the first one that has it.

use std::borrow::Cow;

use phalanx_program::rect::{Tile, copy_tile};
use phalanx_program::{Port, PortTile};
use phalanx_runtime::{PortError, Replay};

use super::Share;
use crate::Error;
use crate::device::CpuDevice;

impl Share {
    /// The tensor called `name`, wherever it lies.
    pub(super) fn port(&self, name: &str) -> Result<&Port, PortError> {
        let found = self.whole.ports().iter().find(|port| port.name == name);
        found.ok_or_else(|| PortError::unknown(&self.whole, name))
    }

    /// The bytes of a whole tensor; all ranks ask for it together.
    pub(super) fn read<'a>(&self, replay: &'a Replay<CpuDevice>, name: &str) -> Result<Cow<'a, [u8]>, Error> {
        let port = self.port(name)?;
        let missing = self.scattered(port);
        if missing.is_empty() || port.is_argument() {
            return Ok(replay.read(name)?);
        }
        let mut all = match replay.port(name) {
            Ok(_) => replay.read(name)?.into_owned(),
            Err(_) => vec![0; port.ty.bytes()],
        };
        let origin = vec![0; port.ty.shape.rank()];
        let whole = Tile { origin: &origin, extents: port.ty.shape.dims() };
        for (tile, owner) in missing {
            let rect = Tile { origin: &tile.origin, extents: tile.ty.shape.dims() };
            let mut bytes = vec![0; tile.ty.bytes()];
            if owner == self.network.rank() {
                copy_tile(port.ty.dtype.bytes(), rect, (whole, &all), (rect, &mut bytes));
            }
            self.network.broadcast(owner, &mut bytes)?;
            copy_tile(port.ty.dtype.bytes(), rect, (rect, &bytes), (whole, &mut all));
        }
        Ok(Cow::Owned(all))
    }

    /// Every tile that some rank lacks, once, and the first rank that has it.
    fn scattered<'a>(&self, port: &'a Port) -> Vec<(&'a PortTile, u32)> {
        let everywhere = |ranks: &[u32]| (0..self.placement.ranks).all(|rank| ranks.contains(&rank));
        let lacking = self.holders(port).into_iter().filter(|(_, ranks)| !everywhere(ranks));
        lacking.filter_map(|(tile, ranks)| Some((tile, ranks.into_iter().min()?))).collect()
    }

    /// Every tile, once, and the ranks that have it.
    pub(super) fn holders<'a>(&self, port: &'a Port) -> Vec<(&'a PortTile, Vec<u32>)> {
        let rank_of = |tile: &PortTile| {
            let device = self.whole.lanes()[tile.slice.lane as usize].device;
            self.placement.rank_of(device).expect("a program that was sliced has all devices on ranks")
        };
        let mut tiles: Vec<(&PortTile, Vec<u32>)> = Vec::new();
        for tile in &port.tiles {
            let same = |(other, _): &&mut (&PortTile, _)| other.origin == tile.origin && other.ty == tile.ty;
            match tiles.iter_mut().find(same) {
                Some((_, ranks)) => ranks.push(rank_of(tile)),
                None => tiles.push((tile, vec![rank_of(tile)])),
            }
        }
        tiles
    }
}
