//! What the host reads and writes between runs: whole tensors.
//!
//! Inputs lie whole in the arguments of the next run, small outputs in the results of the last one; all others are read
//! and written in the arenas, where their tiles may lie on several lanes.

use std::borrow::Cow;
use std::collections::HashMap;

use phalanx_program::rect::{Tile, copy_tile};
use phalanx_program::{Field, Port, PortTile, Program, Record, Slice};
use phalanx_strided::Strides;

use crate::Arena;
use crate::transfer::Slices;

/// Why the host cannot reach a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum PortError {
    /// There is no such port.
    #[error("program `{program}` has no tensor `{name}`; it has {known}")]
    Unknown { program: String, name: String, known: String },
    /// The host brings another number of bytes.
    #[error("`{name}` is {ty} of {need} bytes; {found} were given")]
    Size { name: String, ty: String, need: usize, found: usize },
    /// The host brings or wants elements of another type.
    #[error("`{name}` is {ty}, not of {given} elements")]
    ElementType { name: String, ty: String, given: String },
    /// A run has failed and may never end, so its memory cannot be touched.
    #[error("the tensors of a run that failed cannot be reached any more: {fault}")]
    Failed { fault: String },
    /// The host would fill tiles that every run fills.
    #[error("`{name}` is an input, whose tiles every run fills with its arguments: write the whole tensor")]
    Fed { name: String },
}

impl PortError {
    /// `program` has no tensor called `name`.
    pub fn unknown(program: &Program, name: &str) -> PortError {
        let known: Vec<_> = program.ports().iter().take(8).map(|port| port.name.as_str()).collect();
        let (program, name) = (program.name().to_string(), name.to_string());
        PortError::Unknown { program, name, known: known.join(", ") }
    }
}

/// The places of a program's ports in its list, by name.
pub(crate) struct Names(HashMap<Box<str>, usize>);

impl Names {
    pub(crate) fn new(program: &Program) -> Names {
        let names = program.ports().iter().enumerate();
        Names(names.map(|(index, port)| (port.name.as_str().into(), index)).collect())
    }

    /// The port called `name`, and its place.
    pub(crate) fn find<'a>(&self, program: &'a Program, name: &str) -> Result<(usize, &'a Port), PortError> {
        match self.0.get(name) {
            Some(&index) => Ok((index, &program.ports()[index])),
            None => Err(PortError::unknown(program, name)),
        }
    }
}

/// The arguments or the results of a run: whole tensors in one block of memory.
pub(crate) struct PortBlock {
    memory: Arena,
    /// Where each tensor lies.
    slices: Vec<Slice>,
    /// Its port's place in the program's list, ascending.
    ports: Vec<usize>,
}

impl PortBlock {
    pub(crate) fn new(record: &Record) -> PortBlock {
        let slice = |field: &Field| Slice { lane: 0, offset: field.offset, bytes: field.bytes };
        PortBlock {
            memory: Arena::new(record.bytes),
            slices: record.fields.iter().map(slice).collect(),
            ports: record.fields.iter().map(|field| field.port).collect(),
        }
    }

    /// All tensors, as operands of a transfer.
    pub(crate) fn slices(&self) -> Slices<'_> {
        (std::slice::from_ref(&self.memory), &self.slices)
    }

    /// Takes all tensors from a block of the same program.
    ///
    /// # Safety
    /// Nothing else touches the bytes of this block meanwhile.
    pub(crate) unsafe fn copy_from(&self, other: &PortBlock) {
        for (&to, &from) in self.slices.iter().zip(&other.slices) {
            // SAFETY: exclusive by the caller's promise.
            unsafe { self.memory.part(to) }.copy_from_slice(other.memory.get(from));
        }
    }

    /// Replaces the tensor of a port, if it is here.
    ///
    /// # Safety
    /// Nothing else touches the bytes of this block meanwhile.
    pub(crate) unsafe fn set(&self, port: usize, bytes: &[u8]) {
        if let Some(slice) = self.slice(port) {
            // SAFETY: exclusive by the caller's promise.
            unsafe { self.memory.part(slice) }.copy_from_slice(bytes);
        }
    }

    /// The tensor of a port, if it is here.
    pub(crate) fn get(&self, port: usize) -> Option<&[u8]> {
        Some(self.memory.get(self.slice(port)?))
    }

    /// The same, to be written.
    pub(crate) fn get_mut(&mut self, port: usize) -> Option<&mut [u8]> {
        let slice = self.slice(port)?;
        Some(self.memory.get_mut(slice))
    }

    fn slice(&self, port: usize) -> Option<Slice> {
        self.ports.binary_search(&port).ok().map(|field| self.slices[field])
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
        copy_tile(port.ty.dtype.bytes(), rect, (rect, bytes(tile)), (whole, &mut all));
    }
    Cow::Owned(all)
}

/// Whether `bytes` are as many as the tensor has.
pub(crate) fn check(port: &Port, bytes: &[u8]) -> Result<(), PortError> {
    let (need, found) = (port.ty.bytes(), bytes.len());
    match need == found {
        true => Ok(()),
        false => Err(PortError::Size { name: port.name.clone(), ty: port.ty.to_string(), need, found }),
    }
}

/// Replaces a whole tensor in all its tiles, which `part` gives to be written. Allocates nothing.
pub(crate) fn write<'a>(port: &Port, bytes: &[u8], part: impl Fn(Slice) -> &'a mut [u8]) {
    let origin = origin(port);
    let whole = Tile { origin: &origin, extents: port.ty.shape.dims() };
    for tile in &port.tiles {
        let target = part(tile.slice);
        copy_tile(port.ty.dtype.bytes(), rect(tile), (whole, bytes), (rect(tile), target));
    }
}

fn rect(tile: &PortTile) -> Tile<'_> {
    Tile { origin: &tile.origin, extents: tile.ty.shape.dims() }
}

/// The coordinates of a tensor's first element.
fn origin(port: &Port) -> Strides {
    port.ty.shape.dims().iter().map(|_| 0).collect()
}
