//! Whether operations of different lanes that touch the same bytes are ordered.
//!
//! An arena is touched by its home lane; by its *guests*, the [`RECEIVE`](crate::RECEIVE)s of other lanes, which read
//! it; and by guests that also write it, if its device has lanes for transfers. Operations are visited in an order
//! that lanes and waits allow. Whichever of two that conflict is visited second must know that the first is complete:
//!
//! * at a read, the last writers of the bytes, one of each lane that writes them: they know all writers before them;
//! * at a write, these, the last reader of the home lane, and every read of a guest. Reads found complete need not be
//!   asked for again by the same lane: what it knows it knows at all its later operations.
//!
//! Every pair is looked at this way, or implied by one that is. Time: the logarithm of the number of guests for every
//! slice and lane that writes there, and the number of lanes for every wait.

use std::ops::Range;

use super::cells::Cells;
use super::clocks::Clocks;
use crate::{Operation, Program, Slice, Wait};

/// Operations that touch the same bytes, one of them writing, and that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Race {
    /// The one visited first.
    pub before: Wait,
    pub after: Wait,
}

pub(super) struct Races<'a> {
    pub program: &'a Program,
    pub clocks: Clocks<'a>,
    pub arenas: Arenas,
    /// At most one for each operation visited.
    pub found: Vec<Race>,
}

impl<'a> Races<'a> {
    /// Before the first operation; none if no lane has guests.
    pub fn new(program: &'a Program) -> Option<Self> {
        let arenas = Arenas::new(program)?;
        Some(Races { program, clocks: Clocks::new(program), arenas, found: Vec::new() })
    }

    /// The operation `at` is next; all it waits for has been visited.
    pub fn visit(&mut self, at: Wait) {
        let program = self.program;
        let operation = &program.operations[program.index_of(at)];
        let limit = self.found.len() + 1;
        for &wait in program.waits(operation) {
            self.clocks.wait(at.lane, wait);
        }
        for (slice, writes) in uses(program, operation) {
            let Races { clocks, found, .. } = self;
            let row = self.arenas.conflicts(at, slice, writes, |before| {
                if !clocks.knows(at.lane, before) {
                    found.push(Race { before, after: at });
                }
            });
            self.arenas.note(at, slice, writes, &row);
        }
        self.found.truncate(limit);
        self.clocks.complete(at);
    }
}

impl Race {
    /// Bytes of both.
    pub fn bytes(self, program: &Program) -> Slice {
        shared(program, self.before, self.after).expect("operations that race share bytes")
    }
}

/// The cells of every arena, by its home lane.
pub(crate) struct Arenas {
    cells: Vec<Cells>,
}

impl Arenas {
    /// Nothing is visited yet; none if no lane has guests.
    pub fn new(program: &Program) -> Option<Arenas> {
        let mut cells: Vec<Cells> = program.lanes.iter().map(|_| Cells::default()).collect();
        let mut writers: Vec<Vec<u32>> = vec![Vec::new(); cells.len()];
        let mut any = false;
        for (number, lane) in (0..).zip(&program.lanes) {
            for operation in program.operations_of(lane) {
                for (slice, writes) in uses(program, operation).filter(|(slice, _)| slice.lane != number) {
                    cells[slice.lane as usize].announce(slice);
                    let writers = &mut writers[slice.lane as usize];
                    if writes && writers.last() != Some(&number) {
                        writers.push(number);
                    }
                    any = true;
                }
            }
        }
        cells.iter_mut().zip(&writers).for_each(|(cells, writers)| cells.freeze(writers));
        any.then_some(Arenas { cells })
    }

    /// Shows `earlier` the operations of other lanes that `at` must come after; the cells it touches. Reads of guests are
    /// shown once to each lane.
    pub fn conflicts(
        &mut self,
        at: Wait,
        slice: Slice,
        writes: bool,
        mut earlier: impl FnMut(Wait),
    ) -> Range<usize> {
        let arena = slice.lane as usize;
        let (cells, is_home) = (&mut self.cells[arena], slice.lane == at.lane);
        if is_home && !writes && !cells.has_guest_writes() {
            return 0..0;
        }
        let row = cells.touched(slice);
        if row.is_empty() {
            return row;
        }
        let mut show = |lane: u32, position: Option<u32>| {
            position.into_iter().for_each(|position| earlier(Wait { lane, position }));
        };
        if !is_home {
            show(slice.lane, cells.home_writes.at(&row));
            if writes {
                show(slice.lane, cells.home_reads.at(&row));
            }
        }
        for writer in cells.writers.iter().filter(|writer| writer.lane != at.lane) {
            show(writer.lane, writer.writes.at(&row));
        }
        if writes && let Some(open) = cells.open_to(at.lane, is_home) {
            while let Some(reader) = open.take(&row) {
                if reader.lane != at.lane {
                    earlier(reader);
                }
            }
        }
        row
    }

    /// `at` touches the cells of `slice`.
    pub fn note(&mut self, at: Wait, slice: Slice, writes: bool, row: &Range<usize>) {
        if row.is_empty() {
            return;
        }
        let cells = &mut self.cells[slice.lane as usize];
        match (slice.lane == at.lane, writes) {
            (true, true) => cells.home_writes.set(row, at.position),
            (true, false) => cells.home_reads.set(row, at.position),
            (false, true) => cells.guest_writes(row, at),
            (false, false) => cells.guest_reads(row, at),
        }
    }
}

/// What an operation touches: first what it reads, then what it writes or works in.
pub(crate) fn uses<'a>(
    program: &'a Program,
    operation: &'a Operation,
) -> impl Iterator<Item = (Slice, bool)> + use<'a> {
    let reads = program.slices(&operation.reads).iter().map(|&slice| (slice, false));
    let writes = program.slices(&operation.writes).iter().chain([&operation.scratch]);
    reads.chain(writes.map(|&slice| (slice, true))).filter(|(slice, _)| slice.bytes > 0)
}

/// Bytes that both operations touch, one of them writing.
pub(super) fn shared(program: &Program, one: Wait, other: Wait) -> Option<Slice> {
    let [one, other] = [one, other].map(|at| &program.operations[program.index_of(at)]);
    uses(program, one).find_map(|(a, writes)| {
        uses(program, other).filter(|(_, too)| writes || *too).find_map(|(b, _)| common(a, b))
    })
}

/// What two slices share.
fn common(a: Slice, b: Slice) -> Option<Slice> {
    let (offset, end) = (a.offset.max(b.offset), a.end().min(b.end()));
    (a.lane == b.lane && offset < end).then(|| Slice { lane: a.lane, offset, bytes: end - offset })
}
