//! What holds for every program:
//!
//! 1. every slice lies in the arena of its lane and starts on an aligned byte;
//! 2. an operation writes, and works in, its own lane only; only [`RECEIVE`] reads other lanes;
//! 3. no slice that an operation writes, its scratch included, overlaps another slice of the same operation;
//! 4. an operation has at most [`MAX_SLICES`] of a kind, a [`RECEIVE`] any number;
//! 5. a wait names an operation of another lane, and lanes that run in order and wait never wait in a circle;
//! 6. ports have distinct names; their tiles have the element type of the port and the bytes of their type, lie inside
//!    the tensor and cover it.
//!
//! That accesses of different lanes to the same bytes are ordered by waits is not checked here: the verifier of
//! schedules, which knows which bytes live when, has done so.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::cover::covers;
use crate::{ALIGNMENT, MAX_SLICES, Operation, Port, PortTile, Program, RECEIVE, Slice, Wait};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A slice is outside the arena or unaligned.
    #[error("{what}: {bytes} bytes at {offset} are unaligned or outside the arena of {arena} of lane {lane}")]
    Slice {
        /// The operation or port.
        what: String,
        /// Whose arena.
        lane: u32,
        /// Its first byte.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The arena; empty if there is no such lane.
        arena: u64,
    },
    /// An operation would touch another lane's memory.
    #[error(
        "{what}: slice {slice} is in another lane; only `{RECEIVE}` reads other lanes, and none writes there"
    )]
    Foreign {
        /// The operation.
        what: String,
        /// The slice.
        slice: Slice,
    },
    /// An operation would write what it reads.
    #[error("{what}: a written slice overlaps another operand")]
    Overlap {
        /// The operation.
        what: String,
    },
    /// Too many operands.
    #[error("{what}: {found} operands of a kind; at most {MAX_SLICES} are possible")]
    TooMany {
        /// The operation.
        what: String,
        /// How many it has.
        found: usize,
    },
    /// A wait for nothing.
    #[error("{what}: waits for operation {position} of lane {lane}, which is its own lane or has none there")]
    Wait {
        /// The operation.
        what: String,
        /// The lane it names.
        lane: u32,
        /// The operation it names.
        position: u32,
    },
    /// Lanes that wait for each other.
    #[error("{what}: never runs, because the lanes wait for each other in a circle")]
    Circle {
        /// The first operation of some lane that never runs.
        what: String,
    },
    /// A port has the wrong size or a name twice.
    #[error("port `{name}` is named twice or does not have the bytes of its type")]
    Port {
        /// The port.
        name: String,
    },
    /// Tiles outside the tensor, or parts of it in no tile.
    #[error("port `{name}` is {ty}, and its {tiles} tiles do not cover exactly that")]
    Cover {
        /// The port.
        name: String,
        /// Its type.
        ty: String,
        /// How many tiles it has.
        tiles: usize,
    },
}

impl Program {
    /// Checks every invariant of this file's head; all broken ones are reported, of circles one operation a lane.
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
            check.circles();
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

    /// Lets the lanes run as far as their waits allow; reports those that do not reach their end.
    fn circles(&mut self) {
        let program = self.program;
        let mut done = vec![0; program.lanes.len()];
        // Who waits until how many operations of a lane are done, nearest first.
        let mut waiting: Vec<BinaryHeap<Reverse<(u32, usize)>>> = vec![BinaryHeap::new(); done.len()];
        let mut ready: Vec<usize> = (0..done.len()).collect();
        while let Some(lane) = ready.pop() {
            let operations = program.operations_of(&program.lanes[lane]);
            while let Some(operation) = operations.get(done[lane] as usize) {
                let open = |wait: &&Wait| done[wait.lane as usize] <= wait.position;
                if let Some(wait) = program.waits(operation).iter().find(open) {
                    waiting[wait.lane as usize].push(Reverse((wait.position + 1, lane)));
                    break;
                }
                done[lane] += 1;
            }
            while waiting[lane].peek().is_some_and(|Reverse((need, _))| *need <= done[lane]) {
                ready.extend(waiting[lane].pop().map(|Reverse((_, waiter))| waiter));
            }
        }
        for (lane, &position) in done.iter().enumerate() {
            if (position as usize) < program.lanes[lane].operations.len() {
                let what = self.what(Wait { lane: lane as u32, position });
                self.errors.push(ProgramError::Circle { what });
            }
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
