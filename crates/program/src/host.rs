//! What the host hands to a run and gets back from it.
//!
//! The *arguments* of a run are the bytes of all inputs, its *results* those of all small outputs, each tensor whole.
//! Arenas are not touched by the host while runs go on: the first operation of a lane, [`FEED`], writes its tiles of
//! inputs from the arguments, and its last one, [`FETCH`], reads its tiles of outputs into the results. So there may be
//! several runs in flight, each with arguments and results of its own. Tiles of a fetched port are equal or apart, and
//! of equal ones the first is fetched: every byte of the results is written once.
//!
//! Neither operation has any freedom: what each lane's must be follows from the ports.

use std::collections::BTreeSet;

use crate::rect::Tile;
use crate::{
    ALIGNMENT, Draft, FEED, FETCH, MAX_RESULT, Operation, Piece, Port, PortKind, PortTile, Program, Slice,
};

/// How the arguments or the results of a run lie in one block of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The tensors, in the order of their ports.
    pub fields: Vec<Field>,
    /// Bytes of the whole block.
    pub bytes: u64,
}

/// A whole tensor in a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The port's place in the program's list.
    pub port: usize,
    /// The first byte, aligned.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Record {
    /// The arguments of a program with these ports.
    pub(crate) fn of_arguments(ports: &[Port]) -> Record {
        Record::of(ports, Port::is_argument)
    }

    /// The results of a program with these ports.
    pub(crate) fn of_results(ports: &[Port]) -> Record {
        Record::of(ports, Port::is_result)
    }

    fn of(ports: &[Port], belongs: impl Fn(&Port) -> bool) -> Record {
        let mut record = Record { fields: Vec::new(), bytes: 0 };
        for (index, port) in ports.iter().enumerate().filter(|(_, port)| belongs(port)) {
            let field = Field { port: index, offset: record.bytes, bytes: port.ty.bytes() as u64 };
            record.bytes += field.bytes.next_multiple_of(ALIGNMENT);
            record.fields.push(field);
        }
        record
    }
}

impl Port {
    /// Whether it is part of a run's arguments.
    pub fn is_argument(&self) -> bool {
        self.kind == PortKind::Input
    }

    /// Whether it is part of a run's results. A larger output is read from the arenas, between runs.
    pub fn is_result(&self) -> bool {
        self.kind == PortKind::Output && self.ty.bytes() as u64 <= MAX_RESULT
    }
}

/// The one [`FEED`] or [`FETCH`] of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTransfer {
    kernel: &'static str,
    /// The tiles on its lane.
    pub(crate) tiles: Vec<Slice>,
    pieces: Vec<Piece>,
}

impl HostTransfer {
    /// Whether `operation` is this one.
    pub(crate) fn is(&self, program: &Program, operation: &Operation) -> bool {
        let slices = (program.slices(&operation.reads), program.slices(&operation.writes));
        let is_same =
            (program.kernel(operation), program.pieces(operation)) == (self.kernel, &self.pieces[..]);
        is_same && slices == self.slices() && operation.scratch.bytes == 0
    }

    /// Its kernel and its label.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        (self.kernel, if self.kernel == FEED { "arguments" } else { "results" })
    }

    /// The operation, as it is added to its lane.
    pub fn draft(&self) -> Draft<'_> {
        let scratch = Slice { lane: self.tiles[0].lane, ..Slice::default() };
        let ((kernel, label), (reads, writes)) = (self.names(), self.slices());
        Draft { kernel, label, pieces: self.pieces.clone(), reads, writes, scratch, ..Draft::default() }
    }

    /// What it reads and writes.
    fn slices(&self) -> (&[Slice], &[Slice]) {
        if self.kernel == FEED { (&[], &self.tiles) } else { (&self.tiles, &[]) }
    }
}

/// For each of `lanes` lanes, in which all tiles lie, its [`FEED`], which must be its first operation; none if it has no
/// tile of an input.
pub fn feeds(ports: &[Port], lanes: usize) -> Vec<Option<HostTransfer>> {
    let mut feeds = vec![None; lanes];
    for (argument, port) in (0..).zip(ports.iter().filter(|port| port.is_argument())) {
        for tile in &port.tiles {
            push(&mut feeds, FEED, port, tile, argument);
        }
    }
    feeds
}

/// For each of `lanes` lanes, in which all tiles lie, its [`FETCH`], which must be its last operation; none if no result
/// comes from it.
pub fn fetches(ports: &[Port], lanes: usize) -> Vec<Option<HostTransfer>> {
    let mut fetches = vec![None; lanes];
    for (result, port) in (0..).zip(ports.iter().filter(|port| port.is_result())) {
        let mut seen = BTreeSet::new();
        for tile in port.tiles.iter().filter(|tile| seen.insert((&tile.origin, tile.ty.shape.dims()))) {
            push(&mut fetches, FETCH, port, tile, result);
        }
    }
    fetches
}

/// Adds a tile to the transfer of its lane; `field` is its tensor's place in the record.
fn push(lanes: &mut [Option<HostTransfer>], kernel: &'static str, port: &Port, tile: &PortTile, field: u32) {
    let transfer = lanes[tile.slice.lane as usize].get_or_insert_with(|| HostTransfer {
        kernel,
        tiles: Vec::new(),
        pieces: Vec::new(),
    });
    let origin = vec![0; port.ty.shape.rank()];
    let whole = (field, Tile { origin: &origin, extents: port.ty.shape.dims() });
    let rect = Tile { origin: &tile.origin, extents: tile.ty.shape.dims() };
    let part = (transfer.tiles.len() as u32, rect);
    let (target, source) = if kernel == FEED { (part, whole) } else { (whole, part) };
    transfer.pieces.push(Piece::new(port.ty.dtype.bytes(), rect, target, &[source]));
    transfer.tiles.push(tile.slice);
}
