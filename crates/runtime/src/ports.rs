//! What the host reads and writes between runs: whole tensors, whose tiles may lie on several lanes.

use std::borrow::Cow;
use std::collections::HashMap;

use phalanx_program::{Port, PortTile, Program};

use crate::Arena;
use crate::rect::{PerDim, Tile, copy};

/// Why the host cannot reach a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// There is no such port.
    #[error("program `{program}` has no tensor `{name}`; it has {known}")]
    Unknown {
        /// The program.
        program: String,
        /// The name asked for.
        name: String,
        /// Names it has.
        known: String,
    },
    /// The host brings another number of bytes.
    #[error("`{name}` is {ty} of {need} bytes; {found} were given")]
    Size {
        /// The port.
        name: String,
        /// Its type.
        ty: String,
        /// Its bytes.
        need: usize,
        /// The bytes given.
        found: usize,
    },
}

/// The places of a program's ports in its list, by name.
pub(crate) struct Names(HashMap<Box<str>, usize>);

impl Names {
    pub(crate) fn new(program: &Program) -> Names {
        let names = program.ports().iter().enumerate();
        Names(names.map(|(index, port)| (port.name.as_str().into(), index)).collect())
    }

    pub(crate) fn find<'a>(&self, program: &'a Program, name: &str) -> Result<&'a Port, PortError> {
        match self.0.get(name) {
            Some(&index) => Ok(&program.ports()[index]),
            None => {
                let known: Vec<_> = program.ports().iter().take(8).map(|port| port.name.as_str()).collect();
                let (program, name) = (program.name().to_string(), name.to_string());
                Err(PortError::Unknown { program, name, known: known.join(", ") })
            }
        }
    }
}

/// The bytes of a whole tensor: borrowed if one tile is all of it, else gathered.
pub(crate) fn read<'a>(port: &Port, arenas: &'a [Arena]) -> Cow<'a, [u8]> {
    let bytes = |tile: &PortTile| arenas[tile.slice.lane as usize].get(tile.slice);
    if let Some(tile) = port.tiles.iter().find(|tile| tile.ty == port.ty) {
        return Cow::Borrowed(bytes(tile));
    }
    let mut all = vec![0; port.ty.bytes()];
    let origin = origin(port);
    let whole = Tile { origin: &origin, extents: port.ty.shape.dims() };
    // Backwards, so that of mirrored tiles the first one stays.
    for tile in port.tiles.iter().rev() {
        let rect = rect(tile);
        copy(port.ty.dtype.bytes(), rect, (rect, bytes(tile)), (whole, &mut all));
    }
    Cow::Owned(all)
}

/// Replaces a whole tensor in all its tiles. Allocates nothing.
pub(crate) fn write(port: &Port, arenas: &mut [Arena], bytes: &[u8]) -> Result<(), PortError> {
    let (need, found) = (port.ty.bytes(), bytes.len());
    if need != found {
        return Err(PortError::Size { name: port.name.clone(), ty: port.ty.to_string(), need, found });
    }
    let origin = origin(port);
    let whole = Tile { origin: &origin, extents: port.ty.shape.dims() };
    for tile in &port.tiles {
        let target = arenas[tile.slice.lane as usize].get_mut(tile.slice);
        copy(port.ty.dtype.bytes(), rect(tile), (whole, bytes), (rect(tile), target));
    }
    Ok(())
}

fn rect(tile: &PortTile) -> Tile<'_> {
    Tile { origin: &tile.origin, extents: tile.ty.shape.dims() }
}

/// The coordinates of a tensor's first element.
fn origin(port: &Port) -> PerDim {
    port.ty.shape.dims().iter().map(|_| 0).collect()
}
