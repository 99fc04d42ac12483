//! A program cut into one part for each rank.
//!
//! Control is replicated: every rank has the whole program and computes its own part of it, and since all do the same,
//! both ends of every message agree without a word. An operation goes to the rank of its device. Only a receive that
//! reads tiles of other ranks changes: it becomes arrivals on its rank, sends on the others, and what is left to do where
//! all has arrived (`receive`). Arrivals lie on *in-lanes* and sends on *out-lanes* beside the home lane of their device, so
//! that several are under way while the device computes.
//!
//! All this happens in one order of the whole program, in which the sends and the arrival of a group stand side by side
//! before what is left of their receive. Waits between ranks are dropped: messages take their place. On each rank,
//! operations that touch the same bytes are ordered as in that order (`waits`). So the lanes, waits and messages of all
//! parts agree with a single order, and even if a message moves only when both of its ends are ready, the first operation
//! in that order that is not complete can always go on. `certificate` checks that for any parts.
//!
//! The order is that of *levels*: an operation is one level above all it comes after. Lanes that run beside each other
//! advance together in it, so a send does not stand behind others that are needed much later.

mod messages;
mod part;
mod receive;
mod waits;

pub use receive::{SEGMENT, landing_bytes};
pub(crate) use waits::settle;

use std::collections::HashMap;

use crate::verify::walk;
use crate::{Draft, FEED, FETCH, Lane, Operation, PartOf, Placement, Port, PortTile, Program, ProgramError};
use crate::{RECEIVE, Slice, Wait};
use part::{Part, Step};
use receive::{Group, split};

/// Arrivals that a device can have under way at once.
pub const IN_LANES: u32 = 4;

/// Sends that a device can have under way at once.
pub const OUT_LANES: u32 = 4;

impl Program {
    /// The part of one rank, verified. Its lanes are those of the rank's devices, in the order of the whole, then in- and
    /// out-lanes; its ports have the tiles on these. Operations keep kernel and label, and messages have the label of the
    /// receive that they belong to.
    pub fn slice(&self, placement: &Placement, rank: u32) -> Result<Program, Vec<ProgramError>> {
        let (program, ranks) = (self.name.clone(), placement.ranks);
        if rank >= ranks {
            return Err(vec![ProgramError::NoPart { program, rank, ranks }]);
        }
        let mut parts = Slicer::run(self, placement, |wanted| wanted == rank)?;
        let part = parts.pop().expect("the rank is one of them");
        part.finish(&self.name, PartOf { rank, ranks, whole: self.hash() })
    }

    /// The parts of all ranks.
    pub fn parts(&self, placement: &Placement) -> Result<Vec<Program>, Vec<ProgramError>> {
        let (ranks, whole) = (placement.ranks, self.hash());
        let parts = Slicer::run(self, placement, |_| true)?;
        let finish = |(rank, part): (u32, Part<'_>)| part.finish(&self.name, PartOf { rank, ranks, whole });
        (0..).zip(parts).map(finish).collect()
    }
}

struct Slicer<'a> {
    whole: &'a Program,
    /// By lane of the whole: its rank, and its number in the part.
    ranks: Vec<u32>,
    local: Vec<u32>,
    /// By rank: its part, if it is wanted.
    parts: Vec<Option<Part<'a>>>,
    /// By operation of the whole, in parts that are wanted: the position of the last one that stands for it in its lane.
    done: Vec<u32>,
    /// By sender and receiver: how many messages there are so far.
    tags: HashMap<(u32, u32), u32>,
}

impl<'a> Slicer<'a> {
    /// The parts of the ranks that are wanted, ascending.
    fn run(
        whole: &'a Program,
        placement: &Placement,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Vec<Part<'a>>, Vec<ProgramError>> {
        if let Some((rank, ranks)) = whole.part() {
            return Err(vec![ProgramError::NoPart { program: whole.name.clone(), rank, ranks }]);
        }
        let ranks = placement.ranks_of(whole).map_err(|error| vec![error])?;
        let mut counts = vec![0..; placement.ranks as usize];
        let local: Vec<u32> = ranks.iter().filter_map(|&rank| counts[rank as usize].next()).collect();
        let part = |rank| is_wanted(rank).then(|| new_part(whole, rank, &ranks, &local));
        let parts = (0..placement.ranks).map(part).collect();
        let done = vec![0; whole.operations.len()];
        let mut slicer = Slicer { whole, ranks, local, parts, done, tags: HashMap::new() };
        let errors: Vec<_> = order(whole).into_iter().filter_map(|at| slicer.operation(at).err()).collect();
        if errors.is_empty() { Ok(slicer.parts.into_iter().flatten().collect()) } else { Err(errors) }
    }

    fn operation(&mut self, at: Wait) -> Result<(), ProgramError> {
        let whole = self.whole;
        let operation = &whole.operations[whole.index_of(at)];
        let (rank, lane) = (self.ranks[at.lane as usize], self.local[at.lane as usize]);
        let kernel = whole.kernel(operation);
        let is_remote = |slice: &Slice| self.ranks[slice.lane as usize] != rank;
        if kernel == RECEIVE && whole.slices(&operation.reads).iter().any(is_remote) {
            return self.receive(at, operation);
        }
        let mut step = self.step(at, operation);
        if let Some(part) = &mut self.parts[rank as usize] {
            step.draft.pieces = whole.pieces(operation).to_vec();
            if [FEED, FETCH].contains(&kernel) {
                step = Step { waits: step.waits, ..part.take_host(lane, kernel) };
            }
            self.done[whole.index_of(at)] = part.push(lane, step);
        }
        Ok(())
    }

    /// The operation as its part has it, if it stays as it is.
    fn step(&self, at: Wait, operation: &Operation) -> Step<'a> {
        let whole = self.whole;
        let here = |slices: &[Slice]| slices.iter().map(|&slice| self.here(slice)).collect();
        Step {
            draft: Draft {
                kernel: whole.kernel(operation),
                label: whole.label(operation),
                blocks: operation.blocks,
                params: whole.params(operation),
                ..Draft::default()
            },
            reads: here(whole.slices(&operation.reads)),
            writes: here(whole.slices(&operation.writes)),
            scratch: self.here(operation.scratch),
            waits: self.waits(at, operation),
        }
    }

    /// What the operation waits for on its own rank.
    fn waits(&self, at: Wait, operation: &Operation) -> Vec<Wait> {
        let rank = self.ranks[at.lane as usize];
        let near = self.whole.waits(operation).iter().filter(|wait| self.ranks[wait.lane as usize] == rank);
        let here = |&wait: &Wait| {
            let (lane, position) = (self.local[wait.lane as usize], self.done[self.whole.index_of(wait)]);
            Wait { lane, position }
        };
        near.map(here).collect()
    }

    /// Adds a receive that reads tiles of other ranks. Whatever its rank, messages of those that are wanted belong to it.
    fn receive(&mut self, at: Wait, operation: &Operation) -> Result<(), ProgramError> {
        let rank = self.ranks[at.lane as usize];
        let groups = self.groups(at, operation)?;
        let is_local = |slice: &Slice| self.ranks[slice.lane as usize] == rank;
        let reads = self.whole.slices(&operation.reads).iter().copied().filter(is_local);
        let mut left = self.step(at, operation);
        left.reads = reads.map(|slice| self.here(slice)).collect();
        left.scratch = Slice { lane: left.scratch.lane, ..Slice::default() };
        for group in groups {
            let landing = self.landing(operation, &group);
            self.messages(at, operation, &group, landing);
            let mut step = left.clone();
            step.draft.pieces = group.pieces;
            step.reads.extend(landing);
            if let Some(part) = &mut self.parts[rank as usize] {
                self.done[self.whole.index_of(at)] = part.push(self.local[at.lane as usize], step);
            }
            // Those after the first one follow it in their lane.
            left.waits.clear();
        }
        Ok(())
    }

    /// What a receive is split into.
    fn groups(&self, at: Wait, operation: &Operation) -> Result<Vec<Group>, ProgramError> {
        let whole = self.whole;
        let rank = self.ranks[at.lane as usize];
        let reads = whole.slices(&operation.reads);
        let mut numbers = 0..;
        let mut number = |slice: &Slice| match self.ranks[slice.lane as usize] == rank {
            true => numbers.next(),
            false => None,
        };
        let local: Vec<Option<u32>> = reads.iter().map(&mut number).collect();
        let groups = split(whole.pieces(operation), &local);
        let (need, have) = (groups.last().map_or(0, |group| group.landing.end), operation.scratch.bytes);
        match need > have {
            true => Err(ProgramError::Landing { what: whole.what(at), need, have }),
            false => Ok(groups),
        }
    }

    /// Where a group of a receive lands, on its part; nothing if it does not.
    fn landing(&self, operation: &Operation, group: &Group) -> Option<Slice> {
        let Slice { lane, offset, .. } = self.here(operation.scratch);
        let (start, bytes) = (group.landing.start, group.landing.end - group.landing.start);
        (bytes > 0).then_some(Slice { lane, offset: offset + start, bytes })
    }

    /// A slice as its part numbers it.
    fn here(&self, slice: Slice) -> Slice {
        Slice { lane: self.local[slice.lane as usize], ..slice }
    }
}

/// The lanes and tiles of a rank.
fn new_part<'a>(whole: &'a Program, rank: u32, ranks: &[u32], local: &[u32]) -> Part<'a> {
    let here = |lane: u32| (ranks[lane as usize] == rank).then(|| local[lane as usize]);
    let lanes = whole.lanes.iter().filter_map(|lane| Some(Lane { home: here(lane.home)?, ..lane.clone() }));
    let tile = |tile: &PortTile| {
        let slice = Slice { lane: here(tile.slice.lane)?, ..tile.slice };
        Some(PortTile { slice, ..tile.clone() })
    };
    let ports = whole.ports.iter().filter_map(|port| {
        let tiles: Vec<PortTile> = port.tiles.iter().filter_map(tile).collect();
        (!tiles.is_empty()).then(|| Port { tiles, ..port.clone() })
    });
    Part::new(lanes, ports.collect())
}

/// All operations, level by level. A fetch that no operation waits for comes at the end: a part may fetch more tiles than the
/// whole does there, and of these, too, what they are at the end of the run.
fn order(program: &Program) -> Vec<Wait> {
    let mut levels = vec![0; program.operations.len()];
    let mut order = Vec::with_capacity(levels.len());
    walk(program, |at| {
        let index = program.index_of(at);
        let before = at.position.checked_sub(1).map(|_| levels[index - 1]);
        let waits = program.waits(&program.operations[index]).iter();
        let below = waits.map(|&wait| levels[program.index_of(wait)]).chain(before).max();
        levels[index] = below.map_or(0, |level: u32| level + 1);
        order.push(at);
    });
    let mut is_free: Vec<bool> =
        program.operations.iter().map(|operation| program.kernel(operation) == FETCH).collect();
    program.waits.iter().for_each(|&wait| is_free[program.index_of(wait)] = false);
    order.sort_by_key(|&at| (is_free[program.index_of(at)], levels[program.index_of(at)], at.lane));
    order
}
