//! What holds for every program:
//!
//! 1. every slice lies in the arena of its lane and starts on an aligned byte;
//! 2. an operation writes, and works in, its own lane only; only [`RECEIVE`] reads other lanes;
//! 3. no slice that an operation writes, its scratch included, overlaps another slice of the same operation;
//! 4. an operation has at most [`MAX_SLICES`] of a kind, a [`RECEIVE`] any number;
//! 5. a wait names an operation of another lane, and lanes that run in order and wait never wait in a circle;
//! 6. of a [`RECEIVE`] and an operation that writes, or works in, bytes it reads from another lane, lane orders and
//!    waits put one before the other;
//! 7. ports have distinct names; their tiles have the element type of the port and the bytes of their type, lie inside
//!    the tensor and cover it.
//!
//! There is no program without this check, so a runtime may rely on it. With points 2, 3 and 6 lanes may run on threads
//! of their own: bytes that an operation writes are touched by no other one at the same time.

mod cells;
mod clocks;
mod error;
mod races;
mod walk;

pub use error::ProgramError;

use std::collections::BTreeSet;

use crate::cover::covers;
use crate::{ALIGNMENT, MAX_SLICES, Operation, Port, PortTile, Program, RECEIVE, Slice, Wait};
use races::Races;
use walk::walk;

impl Program {
    /// Checks every invariant of this file's head. All broken ones are reported; circles only if operations and waits
    /// are sound by themselves, one operation a lane; races only if there is no circle, at most one an operation.
    pub fn verify(&self) -> Result<(), Vec<ProgramError>> {
        let mut check = Check {
            program: self,
            receive: self.kernels.iter().position(|name| name == RECEIVE),
            errors: vec![],
        };
        let mut order = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            for (position, operation) in self.operations_of(lane).iter().enumerate() {
                check.operation(
                    Wait { lane: number as u32, position: position as u32 },
                    operation,
                    &mut order,
                );
            }
        }
        if check.errors.is_empty() {
            check.lanes();
        }
        check.ports();
        if check.errors.is_empty() { Ok(()) } else { Err(check.errors) }
    }
}

struct Check<'a> {
    program: &'a Program,
    /// The position of [`RECEIVE`] in the list of kernels.
    receive: Option<usize>,
    errors: Vec<ProgramError>,
}

impl Check<'_> {
    fn what(&self, Wait { lane, position }: Wait) -> String {
        let lane_of = &self.program.lanes[lane as usize];
        let operation = &self.program.operations_of(lane_of)[position as usize];
        let (kernel, label) = (self.program.kernel(operation), self.program.label(operation));
        match self.program.lanes.len() {
            1 => format!("operation {position} ({kernel} of {label})"),
            _ => format!("operation {position} of lane {lane} ({kernel} of {label})"),
        }
    }

    fn operation(&mut self, at: Wait, operation: &Operation, order: &mut Vec<(u64, u64, bool)>) {
        let program = self.program;
        let receives = self.receive == Some(operation.kernel as usize);
        let (reads, writes) = (program.slices(&operation.reads), program.slices(&operation.writes));
        for &slice in reads.iter().chain(writes).chain([&operation.scratch]) {
            self.slice(slice, |check| check.what(at));
        }
        let own = |slice: &&Slice| slice.lane == at.lane;
        let read_here = if receives { &[] } else { reads };
        let foreign = read_here.iter().chain(writes).chain([&operation.scratch]).find(|slice| !own(slice));
        if let Some(&slice) = foreign {
            self.errors.push(ProgramError::Foreign { what: self.what(at), slice });
        }
        let found = reads.len().max(writes.len());
        if found > MAX_SLICES && !receives {
            self.errors.push(ProgramError::TooMany { what: self.what(at), found });
        }
        order.clear();
        let range = |slice: &Slice, written| (slice.offset, slice.end(), written);
        order.extend(reads.iter().filter(own).map(|slice| range(slice, false)));
        order.extend(writes.iter().chain([&operation.scratch]).filter(own).map(|slice| range(slice, true)));
        if overlaps(order) {
            self.errors.push(ProgramError::Overlap { what: self.what(at) });
        }
        for &Wait { lane, position } in program.waits(operation) {
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

    /// Checks how the lanes run beside each other.
    fn lanes(&mut self) {
        let program = self.program;
        let mut races = if program.lanes.len() > 1 { Races::new(program) } else { None };
        let done = walk(program, |at| races.iter_mut().for_each(|races| races.visit(at)));
        let is_left = |at: &Wait| program.lanes[at.lane as usize].operations.len() > at.position as usize;
        let stuck = (0..).zip(done).map(|(lane, position)| Wait { lane, position }).filter(is_left);
        let circles: Vec<_> = stuck.map(|at| ProgramError::Circle { what: self.what(at) }).collect();
        if !circles.is_empty() {
            return self.errors.extend(circles);
        }
        for race in races.into_iter().flat_map(|races| races.found) {
            let (reader, writer) = (self.what(race.reader), self.what(race.writer));
            self.errors.push(ProgramError::Race { reader, writer, bytes: race.bytes(program) });
        }
    }

    fn ports(&mut self) {
        let mut names = BTreeSet::new();
        for port in &self.program.ports {
            for tile in &port.tiles {
                self.slice(tile.slice, |_| format!("port `{}`", port.name));
            }
            let sized = |port: &Port| {
                let whole = |tile: &PortTile| tile.slice.bytes == tile.ty.bytes() as u64;
                port.tiles.iter().all(|tile| whole(tile) && tile.ty.dtype == port.ty.dtype)
            };
            let name = port.name.clone();
            if !names.insert(&port.name) || !sized(port) {
                self.errors.push(ProgramError::Port { name });
            } else if !covers(port) {
                let (ty, tiles) = (port.ty.to_string(), port.tiles.len());
                self.errors.push(ProgramError::Cover { name, ty, tiles });
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
