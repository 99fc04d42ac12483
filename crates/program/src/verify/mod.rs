//! What holds for every program:
//!
//! 1. every slice lies in the arena of its lane and starts on an aligned byte;
//! 2. an operation writes, and works in, the arena of its lane's home only; only [`RECEIVE`] reads other arenas. A lane
//!    that is not its own home, a *guest*, has only [`RECEIVE`]s, [`SEND`]s and [`ARRIVE`]s, and its home is an earlier lane
//!    of the same device that is its own;
//! 3. no slice that an operation writes, its scratch included, overlaps another slice of the same operation;
//! 4. an operation has at most [`MAX_SLICES`] of a kind, one of [`TRANSFERS`] any number;
//! 5. a wait names an operation of another lane, and lanes that run in order and wait never wait in a circle;
//! 6. of two operations of different lanes that touch the same bytes, one of them writing or working there, lane orders
//!    and waits put one before the other;
//! 7. the same holds if they are of different runs: then carried waits put the one of the earlier run first, too;
//! 8. ports have distinct names; their tiles have the element type of the port and the bytes of their type, lie inside
//!    the tensor and cover it; those of an output that is fetched are equal or apart;
//! 9. a lane that has tiles of inputs starts with a [`FEED`], one from which results come ends with a [`FETCH`], and no
//!    other operation is one: a feed reads nothing and writes exactly these tiles, a fetch reads exactly its tiles and
//!    writes nothing, and their pieces are these tiles, each once;
//! 10. the pieces of a [`RECEIVE`] lie inside the slices they name, and neither the runs of a target nor those of a part
//!     overlap each other; sums are of whole 32-bit floats;
//! 11. only a part of a program has [`SEND`]s and [`ARRIVE`]s. A send only reads, an arrival only writes; their message
//!     ends are with other ranks of the job and inside the slices they name, their runs do not overlap, and of those that
//!     go the same way between the same ranks no two have the same tag.
//!
//! The tiles of a part's ports need not cover the tensor.
//!
//! There is no program without this check, so a runtime may rely on it. With points 2, 3, 6 and 7 lanes may run on
//! threads of their own, and start a run before others have ended the one before: bytes that an operation writes are
//! touched by no other one at the same time. With 8 and 9 no byte of a run's results is written twice, and with 9 and 10
//! pieces may be moved by address.

mod cells;
mod clocks;
mod error;
mod messages;
mod overtakes;
mod races;
mod walk;

pub(crate) use clocks::Clocks;
pub use error::ProgramError;
pub(crate) use overtakes::Overtake;
pub(crate) use races::{Arenas, uses};
pub(crate) use walk::walk;

use std::collections::{BTreeSet, HashSet};

use crate::cover::{are_apart, covers, spans};
use crate::host::{HostTransfer, feeds, fetches};
use crate::{
    ALIGNMENT, ARRIVE, FEED, FETCH, MAX_RANK, MAX_SLICES, Operation, Piece, Port, PortTile, Program, RECEIVE,
    SEND, Slice, TRANSFERS, Wait,
};
use overtakes::Overtakes;
use races::Races;

impl Program {
    /// Checks every invariant of this file's head. All broken ones are reported; feeds, fetches and circles only if
    /// operations, waits and ports are sound by themselves, one circle a lane; races only if there is no circle, at most
    /// one an operation; what is wrong between runs only if single ones are sound.
    pub fn verify(&self) -> Result<(), Vec<ProgramError>> {
        let overtakes = self.overtakes()?;
        if overtakes.is_empty() {
            return Ok(());
        }
        let check = Check::new(self);
        let error = |overtake: Overtake| ProgramError::Overtake {
            first: check.what(overtake.first),
            second: check.what(overtake.second),
            bytes: overtake.bytes(self),
        };
        Err(overtakes.into_iter().map(error).collect())
    }

    /// Checks single runs, then lists what is wrong between two.
    pub(crate) fn overtakes(&self) -> Result<Vec<Overtake>, Vec<ProgramError>> {
        let mut check = Check::new(self);
        let mut order = Vec::new();
        for (lane, operations) in (0..).zip(self.lanes.iter().map(|lane| self.operations_of(lane))) {
            check.lane(lane);
            for (position, operation) in (0..).zip(operations) {
                check.operation(Wait { lane, position }, operation, &mut order);
            }
        }
        check.ports();
        if !check.errors.is_empty() {
            return Err(check.errors);
        }
        check.host();
        let races = check.lanes();
        if !check.errors.is_empty() {
            return Err(check.errors);
        }
        let Some(races) = races else { return Ok(Vec::new()) };
        let mut overtakes = Overtakes::after(races);
        walk(self, |at| overtakes.visit(at));
        Ok(overtakes.found)
    }

    /// An operation with its place, for errors.
    pub(crate) fn what(&self, Wait { lane, position }: Wait) -> String {
        let operation = &self.operations_of(&self.lanes[lane as usize])[position as usize];
        let (kernel, label) = (self.kernel(operation), self.label(operation));
        match self.lanes.len() {
            1 => format!("operation {position} ({kernel} of {label})"),
            _ => format!("operation {position} of lane {lane} ({kernel} of {label})"),
        }
    }
}

struct Check<'a> {
    program: &'a Program,
    /// The position of [`RECEIVE`] in the list of kernels.
    receive: Option<usize>,
    /// The messages so far: whether it is sent, the peer and the tag.
    messages: HashSet<(bool, u32, u32)>,
    errors: Vec<ProgramError>,
}

impl<'a> Check<'a> {
    fn new(program: &'a Program) -> Self {
        let receive = program.kernels.iter().position(|name| name == RECEIVE);
        Check { program, receive, messages: HashSet::new(), errors: Vec::new() }
    }

    fn what(&self, at: Wait) -> String {
        self.program.what(at)
    }

    fn lane(&mut self, number: u32) {
        let lanes = &self.program.lanes;
        let lane = &lanes[number as usize];
        if lane.home == number {
            return;
        }
        let sound = lanes[..number as usize]
            .get(lane.home as usize)
            .is_some_and(|home| home.home == lane.home && home.device == lane.device && lane.arena == 0);
        let mut operations = self.program.operations_of(lane).iter();
        let moves = |kernel: &str| [RECEIVE, SEND, ARRIVE].contains(&kernel);
        if !sound || operations.any(|operation| !moves(self.program.kernel(operation))) {
            self.errors.push(ProgramError::Beside { lane: number, home: lane.home });
        }
    }

    fn operation(&mut self, at: Wait, operation: &Operation, order: &mut Vec<(u64, u64, bool)>) {
        let program = self.program;
        let receives = self.receive == Some(operation.kernel as usize);
        let (reads, writes) = (program.slices(&operation.reads), program.slices(&operation.writes));
        for &slice in reads.iter().chain(writes).chain([&operation.scratch]) {
            self.slice(slice, |check| check.what(at));
        }
        let home = program.lanes[at.lane as usize].home;
        let own = |slice: &&Slice| slice.lane == home;
        let read_here = if receives { &[] } else { reads };
        let foreign = read_here.iter().chain(writes).chain([&operation.scratch]).find(|slice| !own(slice));
        if let Some(&slice) = foreign {
            self.errors.push(ProgramError::Foreign { what: self.what(at), slice });
        }
        let found = reads.len().max(writes.len());
        if found > MAX_SLICES && !TRANSFERS.contains(&program.kernel(operation)) {
            self.errors.push(ProgramError::TooMany { what: self.what(at), found });
        }
        if [SEND, ARRIVE].contains(&program.kernel(operation)) {
            self.messages(at, operation);
        }
        let is_outside = |piece: &Piece| receives && !piece.fits(reads, writes);
        if let Some(piece) = program.pieces(operation).iter().position(is_outside) {
            let (what, reads, writes) = (self.what(at), reads.len(), writes.len());
            self.errors.push(ProgramError::Piece { what, piece, reads, writes });
        }
        order.clear();
        let range = |slice: &Slice, written| (slice.offset, slice.end(), written);
        order.extend(reads.iter().filter(own).map(|slice| range(slice, false)));
        order.extend(writes.iter().chain([&operation.scratch]).filter(own).map(|slice| range(slice, true)));
        if overlaps(order) {
            self.errors.push(ProgramError::Overlap { what: self.what(at) });
        }
        for &Wait { lane, position } in program.waits(operation).iter().chain(program.carried(operation)) {
            let awaited = program.lanes.get(lane as usize).map_or(0, |lane| lane.operations.len());
            if lane == at.lane || position as usize >= awaited {
                self.errors.push(ProgramError::Wait { what: self.what(at), lane, position });
            }
        }
    }

    fn slice(&mut self, slice: Slice, what: impl Fn(&Self) -> String) {
        let Slice { lane, offset, bytes } = slice;
        let arena = self.program.lanes.get(lane as usize).map_or(0, |lane| lane.arena);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= arena);
        if !inside || !offset.is_multiple_of(ALIGNMENT) {
            let what = what(self);
            self.errors.push(ProgramError::Slice { what, lane, offset, bytes, arena });
        }
    }

    /// Checks what the lanes exchange with the host.
    fn host(&mut self) {
        let (program, lanes) = (self.program, self.program.lanes.len());
        let transfers = feeds(&program.ports, lanes).into_iter().zip(fetches(&program.ports, lanes));
        for (lane, (feed, fetch)) in (0..).zip(transfers) {
            let operations = program.operations_of(&program.lanes[lane as usize]);
            if !self.is_only(FEED, operations, operations.first(), feed.as_ref()) {
                let tiles = feed.map_or(0, |feed| feed.tiles.len());
                self.errors.push(ProgramError::Feed { lane, tiles });
            }
            if !self.is_only(FETCH, operations, operations.last(), fetch.as_ref()) {
                let tiles = fetch.map_or(0, |fetch| fetch.tiles.len());
                self.errors.push(ProgramError::Fetch { lane, tiles });
            }
        }
    }

    /// Whether of `operations` only the one `at` its place is of this kernel, and as it must be; or none if none must.
    fn is_only(
        &self,
        kernel: &str,
        operations: &[Operation],
        at: Option<&Operation>,
        expected: Option<&HostTransfer>,
    ) -> bool {
        let number = self.program.kernels.iter().position(|name| name == kernel);
        let found = operations.iter().filter(|operation| Some(operation.kernel as usize) == number).count();
        match (at, expected) {
            (_, None) => found == 0,
            (None, Some(_)) => false,
            (Some(at), Some(expected)) => found == 1 && expected.is(self.program, at),
        }
    }

    /// Checks how the lanes run beside each other in one run; what that tells for the next.
    fn lanes(&mut self) -> Option<Races<'a>> {
        let program = self.program;
        let mut races = if program.lanes.len() > 1 { Races::new(program) } else { None };
        let done = walk(program, |at| races.iter_mut().for_each(|races| races.visit(at)));
        let is_left = |at: &Wait| program.lanes[at.lane as usize].operations.len() > at.position as usize;
        let stuck = (0..).zip(done).map(|(lane, position)| Wait { lane, position }).filter(is_left);
        let circles: Vec<_> = stuck.map(|at| ProgramError::Circle { what: self.what(at) }).collect();
        if !circles.is_empty() {
            self.errors.extend(circles);
            return None;
        }
        for race in races.iter().flat_map(|races| &races.found) {
            let (before, after) = (self.what(race.before), self.what(race.after));
            self.errors.push(ProgramError::Race { before, after, bytes: race.bytes(program) });
        }
        races
    }

    fn ports(&mut self) {
        let mut names = BTreeSet::new();
        for port in &self.program.ports {
            for tile in &port.tiles {
                self.slice(tile.slice, |_| format!("port `{}`", port.name));
            }
            let sized = |port: &Port| {
                let whole = |tile: &PortTile| tile.slice.bytes == tile.ty.bytes() as u64;
                let mut tiles = port.tiles.iter();
                port.ty.shape.rank() <= MAX_RANK
                    && tiles.all(|tile| whole(tile) && tile.ty.dtype == port.ty.dtype)
            };
            let name = port.name.clone();
            if !names.insert(&port.name) || !sized(port) {
                self.errors.push(ProgramError::Port { name });
                continue;
            }
            let whole = |spans: &Vec<_>| self.program.part.is_some() || covers(port, spans);
            match spans(port).filter(whole) {
                None => {
                    let (ty, tiles) = (port.ty.to_string(), port.tiles.len());
                    self.errors.push(ProgramError::Cover { name, ty, tiles });
                }
                Some(spans) if port.is_result() && !are_apart(&spans) => {
                    self.errors.push(ProgramError::Result { name });
                }
                Some(_) => {}
            }
        }
    }
}

/// Whether a written range (start, end, written) shares a byte with another one.
fn overlaps(ranges: &mut Vec<(u64, u64, bool)>) -> bool {
    ranges.retain(|(start, end, _)| start < end);
    ranges.sort_unstable();
    let (mut any, mut written) = (0, 0);
    ranges.iter().any(|&(start, end, writes)| {
        let clash = start < written || (writes && start < any);
        any = any.max(end);
        written = if writes { written.max(end) } else { written };
        clash
    })
}
